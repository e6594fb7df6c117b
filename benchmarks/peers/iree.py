"""IREE: imported from ONNX and compiled ahead of time for this processor, with data tiling at -O3."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Array, Interface, Run

DISTRIBUTIONS = ("iree-base-runtime", "iree-base-compiler", "onnx")
SOURCES = ("onnx",)

# What its guides to ONNX and to CPUs recommend; the limit is on what one dispatch may keep on the stack.
FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-opt-level=O3",
    "--iree-opt-data-tiling",
    "--iree-llvmcpu-stack-allocation-limit=262144",
)


def convert(source: Path, interface: Interface, folder: Path) -> Path:
    """The .vmfb file: machine code, weights and the program that calls it."""
    programs = Path(sys.executable).parent
    imported, compiled = folder / "model.mlir", folder / "model.vmfb"
    _run([str(programs / "iree-import-onnx"), str(source), "--opset-version", "17", "-o", str(imported)])
    _run([str(programs / "iree-compile"), str(imported), *FLAGS, "-o", str(compiled)])
    imported.unlink()
    return compiled


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        name = Path(command[0]).name
        raise RuntimeError(f"{name} cannot convert it:")


def load(file: Path, interface: Interface, inputs: Sequence[Array], threads: int) -> Run:
    """The module's function; inputs lie in the device's memory, and outputs are read from there."""
    import iree.runtime as runtime

    if threads == 1:
        device = runtime.get_device("local-sync")
    else:
        runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
        device = runtime.get_device("local-task")
    context = runtime.SystemContext(config=runtime.Config(device=device))
    module = runtime.VmModule.mmap(context.instance, str(file))
    context.add_vm_module(module)
    names = [name for name in module.function_names if not name.startswith("__")]
    name = next(name for name in names if not name.endswith("$async"))
    function = getattr(context.modules[module.name], name)
    device_arrays = [runtime.asdevicearray(device, np.ascontiguousarray(value)) for value in inputs]

    def run() -> list[Any]:
        result = function(*device_arrays)
        found = result if isinstance(result, (list, tuple)) else [result]
        return [value.to_host().copy() for value in found]  # a view does not keep the device's buffer alive

    return run
