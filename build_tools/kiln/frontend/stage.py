"""import: stage that converts a model file (.onnx, .tflite) to a Relax module, parameters and interface."""

from __future__ import annotations

import argparse
from pathlib import Path

from kiln.errors import KilnError
from kiln.files import atomic_dir, read_json, write_json


def add_arguments(p: argparse.ArgumentParser) -> None:
    """--config import.json (name, inputs, outputs, dims of the model), --source file, --out folder.

    --bucket bucket.json: one entry of buckets.json.
    """
    p.add_argument("--config", type=Path, required=True, help="slice of the model's configuration, JSON")
    p.add_argument(
        "--bucket", type=Path, help="bucket.json: the sizes to import for; left out: a static model"
    )
    p.add_argument("--source", type=Path, required=True, help="model file: .onnx or .tflite")
    p.add_argument("--called", help="how errors call the model file; by its path when left out")
    p.add_argument(
        "--out", type=Path, required=True, help="folder for module.json, params.safetensors, interface.json"
    )


def run(args: argparse.Namespace) -> None:
    """Write module.json, params.safetensors and interface.json of the imported model, all or none."""
    from kiln.frontend import options
    from kiln.frontend.importer import import_model
    from kiln.params import store

    settings = options.from_config(read_json(args.config), read_json(args.bucket) if args.bucket else None)
    try:
        module, interface = import_model(args.source, settings)
    except KilnError as error:
        raise KilnError(str(error).replace(str(args.source), args.called or str(args.source))) from error
    with atomic_dir(args.out) as folder:
        store.save(module, folder)
        write_json(folder / "interface.json", interface)
