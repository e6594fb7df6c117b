"""simplify: convert a model to its canonical graph, independent of the target."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from kiln.files import atomic_dir
from kiln.graph.pipeline import simplify
from kiln.params import store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--in", dest="source", type=Path, required=True, help="folder of the import stage")
    parser.add_argument("--config", type=Path, help="slice of the model's configuration")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dump", type=Path, help="write the IR after each pass into this folder")


def run(args: argparse.Namespace) -> None:
    """Write the simplified module, and a copy of interface.json, into the folder `args.out`."""
    module = simplify(store.load(args.source), args.dump)
    with atomic_dir(args.out) as folder:
        store.save(module, folder)
        shutil.copyfile(args.source / "interface.json", folder / "interface.json")
