"""fetch: download, generate or copy a model's file, and check it."""

from __future__ import annotations

import argparse
from pathlib import Path

from kiln.files import read_json
from kiln.sources.cache import copy
from kiln.sources.fetch import fetch
from kiln.sources.onnx_data import write_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare this program's flags."""
    parser.add_argument("--config", type=Path, required=True, help="the model's fetch slice, with its source")
    parser.add_argument("--out", type=Path, required=True, help="the model file to write")


def run(args: argparse.Namespace) -> None:
    """Fetch the source and write it to --out, as one file."""
    source = read_json(args.config)["source"]
    path = fetch(source)
    if source["kind"] != "file" or not write_whole(path, args.out):
        copy(path, args.out)
