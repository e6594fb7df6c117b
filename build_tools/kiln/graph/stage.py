"""simplify: stage that converts a model to its canonical graph, independent of the target."""

from __future__ import annotations

import shutil

from kiln.files import atomic_dir
from kiln.graph.pipeline import simplify
from kiln.params import store
from kiln.stages.model import SimplifyStage


def run(args: SimplifyStage) -> None:
    """Write the simplified module, and a copy of interface.json, into the folder `args.out`."""
    module = simplify(store.load(args.source), args.dump)
    with atomic_dir(args.out) as folder:
        store.save(module, folder)
        shutil.copyfile(args.source / "interface.json", folder / "interface.json")
