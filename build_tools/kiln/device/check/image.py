"""Test an image: the golden vectors of its model, run at its place in the program and from a copy in RAM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.config import Target, read_target
from kiln.config.memory import region_of
from kiln.device.bare import stack_bytes
from kiln.device.bundle import PlacedImage, open_bundle
from kiln.device.check.runners import runner_for
from kiln.device.check.test import check
from kiln.files import read_json, write_json
from kiln.stages.use import DeviceTestStage, ImageTestStage

_REST = 16 << 10  # bytes: tensors, tables, buffers


def run(args: ImageTestStage) -> None:
    """Print the results of each place; leave with status 1 and one line when any failed."""
    target = read_target(args.target)
    runner = runner_for(target)
    facts = read_json(args.facts)
    place_results = []
    for copied in (False, True):
        memory = "a copy in RAM" if copied else "flash" if target.memory else "the program's code"
        print(f"{args.image.name} of {facts['bytes']:,} bytes in {memory}", flush=True)
        reason = _no_room(target, facts) if copied else None
        if reason is not None:
            print(f"  not run: {reason}", flush=True)
            place_results.append({"place": memory, "not_run": reason})
            continue
        out = args.work / f"{'ram' if copied else 'flash'}.json"
        stage = DeviceTestStage(
            bundle=args.bundle,
            target=args.target,
            tolerance=args.tolerance,
            work=args.work / ("ram" if copied else "flash"),
            timeout=args.timeout,
            out=out,
        )
        image = PlacedImage(Path(args.image).absolute(), facts["align"], copied)
        check(stage, target, runner, bundle=open_bundle(args.bundle, image))
        place_results.append({"place": memory, **read_json(out)})
    write_json(args.out, {"format": 1, "places": place_results})


def _no_room(target: Target, facts: Mapping[str, Any]) -> str | None:
    """The reason why memory has no room for a copy of the image during its test; None if it has room."""
    if target.memory is None:
        return None
    heap = region_of(target.memory, "heap")
    # The test copies the parameters, too, and has guards around arena and tensors.
    needed = facts["bytes"] + facts["params_bytes"] + 2 * facts["arena_bytes"] + _REST
    if needed + stack_bytes(target) <= heap.bytes:
        return None
    return f"a copy and its test take {needed:,} bytes of region '{heap.name}' with {heap.bytes:,}"
