"""tune: measures the kernels of a model on this machine, for all of its buckets, and keeps what is faster."""

from __future__ import annotations

from typing import Any

from kiln.scons.builders.specialize import specialize
from kiln.scons.part import parts
from kiln.scons.session import session
from kiln.scons.stage import Stage, declare
from kiln.scons.unit import Unit


def tune(unit: Unit, dump: bool) -> Any:
    """tuned.json: what was measured. The file that lowering reads lies in kernels/tuned/; it counts from the
    next build on. Made anew each time: what a machine does today is not known from files."""
    config, target, out = unit.slice("lower"), unit.target_json(), f"{unit.folder}/tuned.json"
    flags: list[str] = []
    inputs: list[Any] = [config, target]
    for part in parts(unit):
        folder, files = specialize(part, dump)
        flags += ["--in", folder]
        inputs += files
    stage = Stage(
        "tune",
        unit.subject,
        [*flags, "--target", str(target), "--config", str(config), "--out", out],
        inputs,
        [out],
        speaks=True,
    )
    node = declare(stage)[0]
    session().env.AlwaysBuild(node)
    return node
