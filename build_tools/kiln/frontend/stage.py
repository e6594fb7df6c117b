"""import: stage that converts a model file (.onnx, .tflite) to a Relax module, parameters and interface."""

from __future__ import annotations

from kiln.config.boxes import Box
from kiln.config.records import read
from kiln.config.slice_records import ImportConfig
from kiln.errors import KilnError
from kiln.files import atomic_dir, write_json
from kiln.frontend import options
from kiln.frontend.importer import import_model
from kiln.params import store
from kiln.stages.model import ImportStage


def run(args: ImportStage) -> None:
    """Write module.json, params.safetensors and interface.json of the imported model, all or none."""
    settings = options.from_config(
        read(ImportConfig, args.config), read(Box, args.bucket) if args.bucket else None
    )
    try:
        module, interface = import_model(args.source, settings)
    except KilnError as error:
        raise KilnError(str(error).replace(str(args.source), args.called or str(args.source))) from error
    with atomic_dir(args.out) as folder:
        store.save(module, folder)
        write_json(folder / "interface.json", interface.model_dump())
