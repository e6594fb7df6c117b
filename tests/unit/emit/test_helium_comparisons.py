"""Comparisons of floats on a core with Helium: NaN is less than no constant, and `isnan` holds."""

from __future__ import annotations

import re

import pytest
from kiln.config import load_target
from kiln.emit import objects
from kiln.lower.llvm_target import tvm_target
from tvm import tirx as tir
from tvm.script import tirx

COUNT = 64
TARGET = load_target("cortex_m55")
# LT and LE hold for NaN.
OF_NAN = re.compile(r"\bv(?:cmp|pt)\w*\.f32\s+(lt|le)\b")


@tirx.prim_func(private=True, s_tir=True)
def vectors(x: tirx.handle("float32", "global"), y: tirx.handle("float32", "global")) -> None:  # type: ignore[valid-type]
    source = tirx.decl_buffer((COUNT,), "float32", data=x)
    result = tirx.decl_buffer((COUNT,), "float32", data=y)
    for i in range(COUNT // 4):
        zero = tirx.Broadcast(tirx.float32(0.0), 4)
        result[i * 4 : i * 4 + 4] = tirx.max(zero, source[tirx.Ramp(i * 4, 1, 4)])
    for i in range(COUNT // 4):
        six = tirx.Broadcast(tirx.float32(6.0), 4)
        result[i * 4 : i * 4 + 4] = tirx.min(result[tirx.Ramp(i * 4, 1, 4)], six)
    for i in range(COUNT // 4):
        result[i * 4 : i * 4 + 4] = tirx.Select(
            source[tirx.Ramp(i * 4, 1, 4)] <= tirx.Broadcast(tirx.float32(3.0), 4),
            result[tirx.Ramp(i * 4, 1, 4)],
            source[tirx.Ramp(i * 4, 1, 4)],
        )


@tirx.prim_func(private=True, s_tir=True)
def scalars(x: tirx.handle("float32", "global"), y: tirx.handle("float32", "global"), n: tirx.int32) -> None:  # type: ignore[valid-type]
    source = tirx.decl_buffer((COUNT,), "float32", data=x)
    result = tirx.decl_buffer((COUNT,), "float32", data=y)
    for i in range(n):
        result[i] = tirx.max(tirx.float32(0.0), source[i])


@tirx.prim_func(private=True, s_tir=True)
def unknown(x: tirx.handle("float32", "global"), y: tirx.handle("bool", "global")) -> None:  # type: ignore[valid-type]
    source = tirx.decl_buffer((COUNT,), "float32", data=x)
    result = tirx.decl_buffer((COUNT,), "int8", data=y)
    for i in range(COUNT // 4):
        result[i * 4 : i * 4 + 4] = tirx.Cast("int8x4", tirx.isnan(source[tirx.Ramp(i * 4, 1, 4)]))


def assembly(function: tir.PrimFunc) -> str:
    """The function's code as text."""
    functions = {"made": function.with_attr("global_symbol", "made")}
    text = str(objects._built(functions, TARGET, tvm_target(TARGET)).inspect_source("s"))
    return text[text.index("\nmade:") :].partition(".cfi_endproc")[0]


@pytest.mark.parametrize("function", [vectors, scalars, unknown], ids=["vectors", "scalars", "isnan"])
def test_no_condition_that_holds_for_nan(function: tir.PrimFunc, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not OF_NAN.search(assembly(function))
    # LLVM's fault is still there.
    monkeypatch.setattr(objects, "compare_in_order", lambda function: function)
    assert OF_NAN.search(assembly(function))


def test_the_operand_that_may_be_in_one_register_of_the_core_is_there() -> None:
    """x > c needs no vector of c."""

    @tirx.prim_func(private=True, s_tir=True)
    def greater(x: tirx.handle("float32", "global"), y: tirx.handle("float32", "global")) -> None:  # type: ignore[valid-type]
        source = tirx.decl_buffer((COUNT,), "float32", data=x)
        result = tirx.decl_buffer((COUNT,), "float32", data=y)
        for i in range(COUNT // 4):
            result[i * 4 : i * 4 + 4] = tirx.Select(
                source[tirx.Ramp(i * 4, 1, 4)] > tirx.Broadcast(tirx.float32(0.1), 4),
                source[tirx.Ramp(i * 4, 1, 4)],
                result[tirx.Ramp(i * 4, 1, 4)],
            )

    assert re.search(r"\bv(?:cmp|pt)\w*\.f32\s+gt, q\d, (?:r\d+|lr)", assembly(greater))
