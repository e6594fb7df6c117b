"""fetch: downloads, generates or copies a model's file, and checks it."""

from __future__ import annotations

from kiln.files import read_json
from kiln.sources.cache import copy
from kiln.sources.fetch import fetch
from kiln.sources.onnx_data import write_whole
from kiln.sources.tflite_axes import write_mended
from kiln.stages.model import FetchStage


def run(args: FetchStage) -> None:
    """Fetch the source and write it to --out, as one file."""
    source = read_json(args.config)["source"]
    path = fetch(source)
    whole = source["kind"] == "file" and write_whole(path, args.out)
    if not whole and not write_mended(path, args.out):
        copy(path, args.out)
