"""Check that LLVM compiles for a target's triple, CPU and features together.

LLVM ends the process where they contradict each other. So a trial is compiled in a process of its own: a fork
of a process with one thread, as stages are, else a new one (`python -m kiln.lower.target_trial`, which reads
the target as JSON).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tvm

import kiln
from kiln.config import Target, canonical_json, target_config
from kiln.errors import KilnError
from kiln.forks import threads
from kiln.interpreter import module_command
from kiln.lower.instructions import instructions, record
from kiln.lower.llvm_target import tvm_target
from kiln.lower.target_check import without_root
from kiln.tir import abi
from kiln.tir.builder import Argument, Kernel, define, load, store, vector


def check_together(target: Target) -> None:
    """Raise KilnError where LLVM cannot compile for the target or for one of its variants.

    Raises KilnError, too, for a core without floats under an operating system whose programs need them.
    """
    for name in target.variant_names:
        _check(target.for_variant(name))
        _check_floats(target.for_variant(name))


def _check(target: Target) -> None:
    """Compile a small kernel in a process of its own. Raises KilnError where LLVM ends that process.

    That process records the target's instructions in a file, which is then a record of success, too.
    """
    if record(target).is_file():
        return
    status, text = _trial_fork(target) if threads() == 1 else _trial_process(target)
    if status == 0:
        return
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = next(
        (line for line in lines if "LLVM ERROR" in line), lines[-1] if lines else "it gives no reason"
    )
    words = " ".join([target.cpu, *target.features])
    raise KilnError(
        f"target '{target.name}': LLVM cannot compile for triple '{target.triple}' with {words} (keys "
        f"'triple', 'cpu' and 'features'): {reason.removeprefix('LLVM ERROR: ')[:200]}"
    )


def _check_floats(target: Target) -> None:
    """Raise KilnError where the ABI of the target's triple keeps floats in registers that its cores lack."""
    if target.deployment == "freestanding":  # RISC-V's ABI follows from the features
        needed = {"float32"} if target.triple.endswith("hf") else set()
    else:
        in_library = target.arch == "armv7" and not target.triple.endswith("hf")
        needed = set() if in_library else {"float32", "float64"}
    lacking = sorted(needed & without_root(target))
    if lacking:
        raise KilnError(
            f"target '{target.name}': CPU '{target.cpu}' with features {target.features} has no instructions "
            f"for {' and '.join(lacking)}, which programs for '{target.triple}' need (keys 'triple', 'cpu' "
            "and 'features')"
        )


def _trial_fork(target: Target) -> tuple[int, str]:
    """Compile in a fork of this process, the quickest way; returns its status and its stderr.

    Only for a process of one thread (see `kiln.forks`).
    """
    with tempfile.TemporaryFile() as stderr_file:
        child = os.fork()
        if child == 0:
            os.dup2(stderr_file.fileno(), 2)
            status = 1
            try:
                _compile_trial(target)
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        stderr_file.seek(0)
        return status, stderr_file.read().decode("utf-8", "replace")


def _trial_process(target: Target) -> tuple[int, str]:
    """Compile in a new process; returns its status and its stderr."""
    path = os.pathsep.join([str(Path(kiln.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        module_command("kiln.lower.target_trial"),
        input=canonical_json(target_config(target)).encode(),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
        check=False,
    )
    return done.returncode, done.stderr.decode("utf-8", "replace")


def _compile_trial(target: Target) -> None:
    """Compile y[i] = x[i] * x[i] on float32 and on int64, which between them use an ABI's registers."""
    description, lowering = tvm_target(target), tvm_target(target, lowering=True)
    functions = {}
    for dtype in ("float32", "int64"):

        def body(buffers: list[tvm.tirx.Buffer], _begin: object, _end: object) -> None:
            x, y = buffers
            with vector(16) as lane:
                store(y, [lane], load(x, [lane]) * load(x, [lane]))

        function = define([Argument("x", [16], dtype), Argument("y", [16], dtype)], None, body, aliases=False)
        name = f"trial_{dtype}"
        lowered = abi.lower(Kernel(function), lowering).func
        functions[name] = lowered.with_attr("global_symbol", name)
    build = tvm.get_global_func("target.build.llvm")
    # Not a temporary file: it would stay where LLVM ends the process.
    build(tvm.IRModule(functions), description).write_to_file(os.devnull, "o")
    instructions(target)


if __name__ == "__main__":
    _compile_trial(Target.model_validate_json(sys.stdin.read()))
