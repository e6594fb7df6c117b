"""Builds a case as one shared library: its kernels, and a C function that calls them in the plan's order.

The stages' own functions do the work, so that hundreds of cases are built in a few minutes; what a bundle has
beyond the kernels, and what a call of the runtime costs, is not in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from kiln.config import Target
from kiln.config.boxes import STATIC_BOX
from kiln.config.slice_records import PlanConfig
from kiln.emit.objects import compile_all
from kiln.errors import KilnError
from kiln.files import atomic_dir, atomic_write
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.schema import LoweredBucket
from kiln.plan.schema import ExpressionArgument, PlannedStep, PortArgument
from kiln.plan.stage import LowerResult, make_plan

from benchmarks.operators.case import Case


def build_all(cases: Sequence[Case], target: Target, folder: Path) -> None:
    """Build the cases that are not in `folder` yet, each in a process, one process for each core."""
    waiting = [(case, folder / str(number)) for number, case in enumerate(cases)]
    missing = [
        (case, case_folder) for case, case_folder in waiting if not (case_folder / "case.json").exists()
    ]
    running: dict[int, tuple[Case, Path]] = {}
    while missing or running:
        while missing and len(running) < (os.cpu_count() or 1):
            case, case_folder = missing.pop(0)
            process = os.fork()
            if process == 0:
                _child(case, target, case_folder)
            running[process] = case, case_folder
        process, status = os.wait()
        case, case_folder = running.pop(process)
        if status:
            failed = {"name": case.name, "failed": f"the build ended with status {status}"}
            with atomic_dir(case_folder) as unfinished:
                atomic_write(unfinished / "case.json", json.dumps(failed))


def _child(case: Case, target: Target, folder: Path) -> None:
    """Build a case, write its file with the description or the error, and end the process."""
    status = 1
    try:
        with atomic_dir(folder) as unfinished:
            try:
                content = build(case, target, unfinished)
            except (KilnError, NotImplementedError) as error:
                content = {"failed": str(error)}
            atomic_write(unfinished / "case.json", json.dumps({"name": case.name, **content}))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def build(case: Case, target: Target, folder: Path) -> dict[str, Any]:
    """Write `model.onnx`, inputs, parameters and `case.so` into `folder`; the description of the case.

    Raises KilnError for what Kiln refuses.
    """
    path = folder / "model.onnx"
    onnx.save(case.model(), path)
    module, interface = import_model(path, ImportOptions("m"))
    steps = lower(simplify(module), Lowering("m", target, "pthread", winograd="auto"))
    compile_all(steps.functions, target, folder / "case.o", "m", steps.kernels)
    lowered = {"name": "", "params": "0/", "when": None, "lifted": {}, **dict(steps.record())}
    bucket = {"cases": [lowered], "threads": "pthread", "variants": [{"name": "base"}]}
    result = LowerResult(
        LoweredBucket.model_validate(bucket), {f"0/{name}": value for name, value in steps.params.items()}
    )
    plan, payload = make_plan([result], [STATIC_BOX], interface, PlanConfig(name="m"), target)
    planned = plan.buckets[0]
    kernels = {kernel.symbol: kernel for kernel in plan.kernels}
    if any(step.loop or step.branch or step.counts or step.check for step in planned.steps):
        raise NotImplementedError("a loop, a branch or a size of the run")
    calls = [_call(step, kernels[step.kernel].parallel) for step in planned.steps]
    text = "\n".join(["void run(char *arena, char *params, char **in, char **out) {", *calls, "}\n"])
    (folder / "run.c").write_text(text)
    command = ["cc", "-O1", "-w", "-shared", "-fPIC", "-o", "case.so", "run.c", "case.o"]
    subprocess.run(command, cwd=folder, check=True)
    (folder / "params").write_bytes(payload)
    np.savez(folder / "inputs.npz", **dict[str, Any](case.inputs))
    return {
        "inputs": [port.name for port in plan.inputs],
        "outputs": [{"name": port.name, "bytes": port.bytes, "dtype": port.dtype} for port in plan.outputs],
        "arena": planned.arena_bytes,
        "steps": [step.label for step in planned.steps],
        "families": [kernel.family for kernel in steps.kernels],
    }


def _call(step: PlannedStep, parallel: bool) -> str:
    """The C call of a step with all its tasks."""
    places = []
    for argument in step.args:
        assert not isinstance(argument, ExpressionArgument)  # sizes are fixed
        base = {"arena": "arena", "params": "params"}.get(argument.at)
        if isinstance(argument, PortArgument):
            base = f"{'in' if argument.at == 'input' else 'out'}[{argument.index}]"
        places.append(f"{base} + {argument.offset}")
    if parallel:
        places += ["0", str(step.extent)]
    return f"  {step.kernel}({', '.join(places)});"
