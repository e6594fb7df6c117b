"""tune: times the kernels of a model in all buckets, and records what is faster than the heuristics."""

from __future__ import annotations

from typing import Any

from kiln.scons.bucket_build import parts
from kiln.scons.builders.place import Place
from kiln.scons.builders.specialize import specialize
from kiln.scons.model_build import Unit
from kiln.scons.session import session
from kiln.scons.stage import Stage, declare


def tune(unit: Unit, dump: bool, device: str | None) -> Any:
    """Declare tuned.json, the measurements; the stage runs in every build with `tune`.

    The tuning records that `lower` reads are in tir/tuned/; new ones take effect in the next build.
    """
    place, config, target = Place(unit, device), unit.slice("lower"), unit.target_json()
    out, flags = f"{place.folder}/tuned.json", list(place.flags)
    inputs: list[Any] = [config, target, *place.inputs]
    for part in parts(unit):
        folder, files = specialize(part, dump)
        flags += ["--in", folder]
        inputs += files
    stage = Stage(
        "tune",
        place.subject,
        [*flags, "--target", str(target), "--config", str(config), "--out", out],
        inputs,
        [out],
        speaks=True,
        foretold=place.foretold("tune"),
    )
    node = declare(stage)[0]
    session().env.AlwaysBuild(node)
    return node
