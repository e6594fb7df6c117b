"""MNN: its own converter, then the Module interface with high precision (float32)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Array, Interface, Run

DISTRIBUTIONS = ("MNN",)
SOURCES = ("onnx", "tflite")
ISAS: dict[str, dict[str, str]] = {"avx2": {}}  # PyPI's wheel has no instructions beyond AVX2

# The console script `mnnconvert` starts pip behind one's back; the native module below it does not.
CONVERT = "import sys, _tools; _tools.mnnconvert(sys.argv)"


def convert(source: Path, interface: Interface, folder: Path) -> Path:
    """The .mnn file."""
    converted = folder / "model.mnn"
    kind = {"onnx": "ONNX", "tflite": "TFLITE"}[interface["format"]]
    options = ["-f", kind, "--modelFile", str(source), "--MNNModel", str(converted), "--bizCode", "MNN"]
    done = subprocess.run([sys.executable, "-c", CONVERT, *options], stdout=sys.stderr, check=False)
    if not converted.is_file():
        raise RuntimeError(f"MNN's converter refuses it, exit status {done.returncode}:")
    return converted


def load(file: Path, interface: Interface, inputs: Sequence[Array], threads: int) -> Run:
    """A module; a run ends when its outputs can be read."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    import MNN.expr as expr
    import MNN.nn as nn

    manager = nn.create_runtime_manager(({"backend": "CPU", "numThread": threads, "precision": "high"},))
    names = [[tensor["name"] for tensor in interface[side]] for side in ("inputs", "outputs")]
    module = nn.load_module_from_file(str(file), *names, runtime_manager=manager, dynamic=False)
    order = expr.NHWC if interface["format"] == "tflite" else expr.NCHW
    kinds = {"float32": expr.float, "int32": expr.int}  # what expr.const takes
    # its converter makes int64 of ONNX int32
    inputs = [value.astype(np.int32) if value.dtype == np.int64 else value for value in inputs]
    strange = [str(value.dtype) for value in inputs if str(value.dtype) not in kinds]
    if strange:
        raise RuntimeError(f"its Python interface takes no {strange[0]} inputs")
    arrays = [np.ascontiguousarray(value) for value in inputs]
    variables = [expr.const(value, list(value.shape), order, kinds[str(value.dtype)]) for value in arrays]

    def run() -> list[Any]:
        return [output.read() for output in module.onForward(variables)]

    return run
