"""Truth values that become floats compile for the vectors of SVE."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kiln.config import load_target
from kiln.emit.objects import compile_object
from tvm.script import tirx


@tirx.prim_func(private=True, s_tir=True)
def equal(
    x: tirx.handle("int64", "global"),  # type: ignore[valid-type]
    y: tirx.handle("int64", "global"),  # type: ignore[valid-type]
    z: tirx.handle("float32", "global"),  # type: ignore[valid-type]
) -> None:
    left = tirx.decl_buffer((8,), "int64", data=x)
    right = tirx.decl_buffer((8,), "int64", data=y)
    result = tirx.decl_buffer((8,), "float32", data=z)
    result[0:4] = tirx.Cast("float32x4", left[tirx.Ramp(0, 1, 4)] == right[tirx.Ramp(0, 1, 4)])
    for i in range(4):  # LLVM makes a vector of it
        result[i + 4] = tirx.Cast("float32", left[i + 4] < right[i + 4])


@pytest.mark.parametrize("variant", ["sve256", "sve512"])
def test_floats_of_comparisons_of_64_bits(variant: str, tmp_path: Path) -> None:
    target = load_target("aarch64_sve").for_variant(variant)
    child = os.fork()  # LLVM ends the process where it cannot compile
    if child == 0:
        status = 1
        try:
            compile_object({"equal": equal.with_attr("global_symbol", "equal")}, target, tmp_path / "equal.o")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
