"""Elementwise kernels for x86_64_v2 that are linked without a library and called from Python."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kiln.config import load_target
from kiln.device.check.host_cpu import obstacle
from kiln.emit.objects import compile_object
from kiln.kernels.cpu import elementwise
from kiln.lower.llvm_target import tvm_target
from kiln.tir import abi
from kiln.tir.builder import Machine
from kiln.tir.fused import Fused
from tvm import te, tirx

Array = npt.NDArray[Any]


def elements_of(
    element: Callable[..., Any], arrays: Sequence[Array], vector_bits: int, folder: Path
) -> Array:
    """element(*tensors, i) for each i, of one-dimensional arrays of one size and type.

    Vectors have `vector_bits`. Skips the test where this machine cannot run the kernel.
    """
    target = load_target("x86_64_v2").for_variant("v2")
    reason = obstacle(target)
    if reason is not None:
        pytest.skip(reason)
    shape = [tirx.IntImm("int64", arrays[0].size)]
    data = [te.placeholder(shape, str(array.dtype), f"data{k}") for k, array in enumerate(arrays)]
    result = te.compute(shape, lambda i: element(*data, i), name="result")
    fused = Fused(te.create_prim_func([*data, result]))
    machine = Machine(vector_bits=vector_bits, registers=16, in_order=False, l2_bytes=1 << 18, parallel=False)
    kernel, _ = elementwise.make(fused, fused.nests[-1], fused.params, machine)
    lowered = abi.lower(kernel, tvm_target(target))
    folder.mkdir(exist_ok=True)
    path = folder / "kernel.o"
    compile_object({"kernel": lowered.func.with_attr("global_symbol", "kernel")}, target, path)
    # -nostdlib -z defs: any call of a library is an error here
    library = path.with_suffix(".so")
    subprocess.run(["cc", "-shared", "-nostdlib", "-Wl,-z,defs", "-o", library, path], check=True)
    out = np.zeros_like(arrays[0])
    ctypes.CDLL(str(library)).kernel(*(ctypes.c_void_p(array.ctypes.data) for array in (*arrays, out)))
    return out
