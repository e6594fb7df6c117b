"""Loads at four computed positions on a core with Helium: one instruction, for all types that it has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kiln.config import load_target
from kiln.emit.gathers import gather
from kiln.emit.objects import compile_object, llvm_ir
from kiln.kernels.cpu import table
from kiln.lower.pipeline import machine_of
from kiln.tir.fused import Fused
from tvm import te
from tvm import tirx as tir
from tvm.script import tirx

COUNT = 64
TARGET = load_target("cortex_m55")
GATHER = re.compile(r"call .*@llvm\.arm\.mve\.vldr\.gather\.offset\.v4i32[^(]*\((.*)\)")


def loads(dtype: str, at: str = "int32") -> tir.PrimFunc:
    """z[i] = x[y[i]] + x[i], and w[i] = x[y[i]] as int32, in vectors of four."""

    @tirx.prim_func(private=True, s_tir=True)
    def function(
        x: tirx.handle(dtype, "global"),  # type: ignore[valid-type]
        y: tirx.handle(at, "global"),  # type: ignore[valid-type]
        z: tirx.handle(dtype, "global"),  # type: ignore[valid-type]
        w: tirx.handle("int32", "global"),  # type: ignore[valid-type]
    ) -> None:
        source = tirx.decl_buffer((COUNT,), dtype, data=x)
        place = tirx.decl_buffer((COUNT,), at, data=y)
        result = tirx.decl_buffer((COUNT,), dtype, data=z)
        wide = tirx.decl_buffer((COUNT,), "int32", data=w)
        for i in range(COUNT // 4):
            result[i * 4 : i * 4 + 4] = source[place[tirx.Ramp(i * 4, 1, 4)]] + source[tirx.Ramp(i * 4, 1, 4)]
        for i in range(COUNT // 4):
            index = tirx.Cast("int64x4", place[tirx.Ramp(i * 4, 1, 4)])
            wide[i * 4 : i * 4 + 4] = tirx.Cast("int32x4", source[index])

    return function.with_attr("global_symbol", "loads")


@pytest.mark.parametrize(
    ("dtype", "arguments"),
    [
        ("int8", "i32 8, i32 0, i32 0"),
        ("uint8", "i32 8, i32 0, i32 1"),
        ("int16", "i32 16, i32 1, i32 0"),
        ("uint16", "i32 16, i32 1, i32 1"),
        ("int32", "i32 32, i32 2, i32 0"),
        ("float32", "i32 32, i32 2, i32 0"),
    ],
)
def test_types(dtype: str, arguments: str, tmp_path: Path) -> None:
    """Size, shift and sign are the element's; adjacent elements are loaded as before."""
    made = GATHER.findall(llvm_ir({"loads": loads(dtype)}, TARGET))
    assert made and all(text.endswith(arguments) for text in made)
    assert "vldr.gather" in str(gather(loads(dtype)))
    compile_object({"loads": loads(dtype)}, TARGET, tmp_path / "loads.o")


def test_other_types() -> None:
    """The instruction has no elements of 64 bits for four lanes; positions of 64 bits are addresses of 32."""
    assert not GATHER.findall(llvm_ir({"loads": loads("int64")}, TARGET))
    assert len(GATHER.findall(llvm_ir({"loads": loads("int16", "int64")}, TARGET))) == 2


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_tables_of_bytes(dtype: str) -> None:
    """16 entries at a time; the rest of the elements one by one."""
    x, entries = te.placeholder((37,), dtype, "x"), te.placeholder((256,), dtype, "entries")

    def element(place: Any) -> Any:
        return entries(tir.bitwise_and(tir.Cast("int32", x(place)), 255))

    function = te.create_prim_func([x, entries, te.compute(x.shape, element, name="table")])
    kernel, _ = table.make(Fused(function), machine_of(TARGET, "none"))
    assert str(kernel.func).count("llvm.arm.mve.vldr.gather.offset") == 1
