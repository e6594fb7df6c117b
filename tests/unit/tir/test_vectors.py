"""Loops over vectors that stay vectors in a kernel's code."""

from __future__ import annotations

import re

from kiln.config import load_target
from kiln.kernels.cpu import elementwise
from kiln.lower.llvm_target import tvm_target
from kiln.tir import abi
from kiln.tir.builder import Machine
from kiln.tir.fused import Fused
from tvm import te, tirx


def test_tests_for_nan() -> None:
    """As in the greater of two numbers, NaN where the first one is: no loop over the elements of a vector."""
    machine = Machine(vector_bits=128, registers=16, in_order=False, l2_bytes=1 << 18, parallel=False)
    data = te.placeholder([tirx.IntImm("int64", 256)], "float32", name="data")
    greater = te.compute(
        data.shape, lambda i: tirx.Select(tirx.isnan(data[i]), data[i], te.max(data[i], data[255 - i]))
    )
    fused = Fused(te.create_prim_func([data, greater]))
    kernel, _ = elementwise.make(fused, fused.nests[-1], fused.params, machine)
    text = abi.lower(kernel, tvm_target(load_target("x86_64_v2").for_variant("v2"))).func.script()
    assert re.search(r"Select\(T\.isnan\(\w+\[T\.Ramp\(", text) and "T.grid" not in text, text
