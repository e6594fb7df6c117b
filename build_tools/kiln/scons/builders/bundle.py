"""bundle: the folder build/<target>/<model>/ and its archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kiln.scons import listing
from kiln.scons.builders.fetch import fetch
from kiln.scons.builders.golden import golden
from kiln.scons.builders.library import choice
from kiln.scons.builders.linked import linked
from kiln.scons.builders.plan import plan
from kiln.scons.builders.precision import precision
from kiln.scons.builders.report import report
from kiln.scons.builders.size import size
from kiln.scons.builders.source import source
from kiln.scons.model_build import Unit
from kiln.scons.session import session
from kiln.scons.stage import Stage, declare


class Bundle(list[Any]):
    """A bundle's SCons nodes, manifest first, and by name those that a program is built with.

    `include` is the folder of the headers, for CPPPATH; `library`, `header`, `manifest` and `archive` are
    nodes.
    """

    def __init__(self, folder: str, nodes: list[Any]) -> None:
        super().__init__(nodes)
        self.manifest, self.library, self.header, self.archive = nodes
        self.include = session().folder(f"{folder}/include")
        self.folder = session().folder(folder)


def bundle(unit: Unit, dump: bool) -> Bundle:
    """Declare the bundle of a model on a target; returns its nodes."""
    config, tolerance, target = unit.slice("bundle"), unit.slice("tolerance"), unit.target_json()
    planned, (given, source_files) = plan(unit, dump), source(unit, dump)
    link, link_files = linked(unit, dump)
    (vectors, vector_files), sizes, page = golden(unit), size(unit, dump), report(unit, dump)
    folder = unit.bundle
    # The manifest lists every file of the bundle: when one is missing, the bundle is built again.
    listing.check(Path(folder), Path(folder, "manifest.json"))
    flags = {
        "config": config, "model-file": unit.source, "target": target, "plan": planned.plan,
        "source": given, "link": link, "golden": vectors, "tolerance": tolerance, "size": sizes,
        "report": page, "out": folder, "archive": f"{folder}.tar.gz",
    }  # fmt: skip
    measured = precision(unit, dump)
    if measured is not None:
        flags["precision"] = measured
    chosen = choice(unit, dump)
    if chosen is not None:
        flags["byoc"] = chosen
    inputs = [
        *([node for node in (measured, chosen) if node is not None]),
        config,
        tolerance,
        target,
        fetch(unit),
        vector_files,
        planned.plan,
        *source_files,
    ]
    stage = Stage(
        "bundle",
        unit.subject,
        [word for flag, value in flags.items() for word in (f"--{flag}", str(value))],
        [*inputs, link_files, sizes, page],
        [
            f"{folder}/manifest.json",
            f"{folder}/lib/lib{unit.name}.a",
            f"{folder}/include/{unit.name}.h",
            f"{folder}.tar.gz",
        ],
        folder=folder,
    )
    return Bundle(folder, declare(stage))
