"""The remainder of floats is C's fmod, bit by bit: of vectors, of single elements, and of 16 bits."""

from __future__ import annotations

import ctypes
import subprocess
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


def remainders(x: Array, y: Array, vector_bits: int, folder: Path) -> Array:
    """x mod y by a kernel for x86_64_v2 with vectors of `vector_bits`, linked without a library."""
    target = load_target("x86_64_v2").for_variant("v2")
    reason = obstacle(target)
    if reason is not None:
        pytest.skip(reason)
    a, b = (te.placeholder([tirx.IntImm("int64", x.size)], str(x.dtype), name=name) for name in "ab")
    result = te.compute(a.shape, lambda i: tirx.Mod(a[i], b[i]), name="result")
    fused = Fused(te.create_prim_func([a, b, result]))
    machine = Machine(vector_bits=vector_bits, registers=16, in_order=False, l2_bytes=1 << 18, parallel=False)
    kernel, _ = elementwise.make(fused, fused.nests[-1], fused.params, machine)
    lowered = abi.lower(kernel, tvm_target(target))
    path = folder / "kernel.o"
    compile_object({"kernel": lowered.func.with_attr("global_symbol", "kernel")}, target, path)
    library = path.with_suffix(".so")
    command = ["cc", "-shared", "-nostdlib", "-Wl,-z,defs", "-o", library, path]
    subprocess.run(command, check=True)
    out = np.zeros_like(x)
    ctypes.CDLL(str(library)).kernel(*(ctypes.c_void_p(array.ctypes.data) for array in (x, y, out)))
    return out


def operands(dtype: str) -> tuple[Array, Array]:
    """All pairs of special numbers, random bits, and products of the divisor and their neighbours."""
    rng, limits = np.random.default_rng(0), np.finfo(dtype)
    least = limits.smallest_subnormal
    special = [0, -0.0, 1, -3, 0.1, np.inf, -np.inf, np.nan, limits.max, -limits.max, limits.tiny]
    special += [least, -5 * least, limits.tiny * 0.75, 2.0**15, 2.0**13 + 8]
    pairs = np.array(special, dtype)
    bits = {2: "u2", 4: "u4", 8: "u8"}[pairs.itemsize]
    x, y = rng.integers(0, np.iinfo(bits).max, (2, 4003), bits).view(dtype)
    with np.errstate(all="ignore"):
        near = (y * rng.integers(1, 1 << 30, y.size).astype(dtype)).astype(dtype)
        x = np.concatenate([np.repeat(pairs, pairs.size), x, near, np.nextafter(near, np.array(0, dtype))])
    return x, np.concatenate([np.tile(pairs, pairs.size), y, y, y])


@pytest.mark.parametrize(
    ("dtype", "vector_bits"),
    [("float32", 128), ("float32", 32), ("float64", 128), ("float64", 64), ("float16", 128)],
)
def test_remainders_are_exact(dtype: str, vector_bits: int, tmp_path: Path) -> None:
    x, y = operands(dtype)
    with np.errstate(all="ignore"):
        want = np.fmod(x, y)
    got = remainders(x, y, vector_bits, tmp_path)
    bits = f"u{x.itemsize}"
    wrong = np.flatnonzero((got.view(bits) != want.view(bits)) & ~(np.isnan(got) & np.isnan(want)))
    assert not wrong.size, [(x[i], y[i], got[i], want[i]) for i in wrong[:5]]
