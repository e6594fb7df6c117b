"""report: report.html, a page with the sizes, the arena and the checks of a bundle."""

from __future__ import annotations

from typing import Any

from kiln.scons.builders.golden import golden
from kiln.scons.builders.library import choice
from kiln.scons.builders.plan import plan
from kiln.scons.builders.precision import precision
from kiln.scons.builders.size import size
from kiln.scons.model_build import Unit
from kiln.scons.stage import Stage, declare


def report(unit: Unit, dump: bool) -> Any:
    """Declare report.html; returns its node."""
    target, planned, sizes = unit.target_json(), plan(unit, dump), size(unit, dump)
    (vectors, vector_files), tolerance = golden(unit), unit.slice("tolerance")
    out = f"{unit.folder}/report.html"
    given = ["--target", str(target), "--plan", str(planned.plan), "--size", str(sizes)]
    given += ["--golden", vectors, "--tolerance", str(tolerance)]
    measured = precision(unit, dump)
    more = [] if measured is None else [measured]
    given += ["--precision", str(measured)] if more else []
    chosen = choice(unit, dump)
    if chosen is not None:
        given += ["--byoc", str(chosen)]
        more.append(chosen)
    stage = Stage(
        "report",
        unit.subject,
        ["--bundle", f"{unit.folder}/link", *given, "--out", out],
        [target, planned.plan, sizes, vector_files, tolerance, *more],
        [out],
    )
    return declare(stage)[0]
