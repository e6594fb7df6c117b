"""Make golden vectors: inputs of several kinds, and the outputs that the reference computes from them."""

from __future__ import annotations

import argparse
from pathlib import Path

from kiln.errors import KilnError
from kiln.files import atomic_dir, atomic_write, read_json, write_json
from kiln.golden.compare import RULE


def add_arguments(p: argparse.ArgumentParser) -> None:
    """--config (golden, preprocess of the model), --source file, --interface interface.json, --out folder."""
    p.add_argument("--config", type=Path, required=True, help="slice of the model's configuration, JSON")
    p.add_argument("--source", type=Path, required=True, help="model file: .onnx or .tflite")
    p.add_argument("--called", help="how errors call the model file; by its path when left out")
    p.add_argument("--interface", type=Path, required=True, help="interface.json of the imported model")
    p.add_argument("--buckets", type=Path, help="buckets.json; a model without dimensions needs none")
    p.add_argument("--padding", type=Path, help="padding.json of the stage of that name, where buckets pad")
    p.add_argument("--out", type=Path, required=True, help="folder for golden.json and the tensors (*.bin)")


def run(args: argparse.Namespace) -> None:
    """Write golden.json, one raw little-endian file a tensor, and padding.json where inputs are padded.

    All files are written, or none: raises KilnError for a bucket whose padding changes an output.
    """
    from kiln.golden.vectors import make_vectors

    buckets = read_json(args.buckets) if args.buckets else None
    proofs = read_json(args.padding) if args.padding else None
    try:
        vectors, about, padding = make_vectors(
            read_json(args.config), args.source, read_json(args.interface), buckets, proofs
        )
    except KilnError as error:
        raise KilnError(str(error).replace(str(args.source), args.called or str(args.source))) from error
    with atomic_dir(args.out) as folder:
        for path, content in vectors.files.items():
            atomic_write(folder / path, content)
        write_json(folder / "golden.json", {"format": 1, **about, "rule": RULE, "vectors": vectors.entries})
        if padding is not None:
            write_json(folder / "padding.json", padding)
