"""Scaling in fixed point on a core with Helium: vectors of words, no 64-bit arithmetic on lanes."""

from __future__ import annotations

import re
from pathlib import Path

from kiln.config import load_target
from kiln.emit import objects
from tvm.script import tirx

ELEMENTS = 12


@tirx.prim_func(private=True, s_tir=True)
def scale(
    x: tirx.handle("int32", "global"),  # type: ignore[valid-type]
    m: tirx.handle("int32", "global"),  # type: ignore[valid-type]
    b: tirx.handle("int64", "global"),  # type: ignore[valid-type]
    y: tirx.handle("int8", "global"),  # type: ignore[valid-type]
) -> None:
    operand = tirx.decl_buffer((ELEMENTS,), "int32", data=x)
    factors = tirx.decl_buffer((ELEMENTS,), "int32", data=m)
    added = tirx.decl_buffer((ELEMENTS,), "int64", data=b)
    output = tirx.decl_buffer((ELEMENTS,), "int8", data=y)
    for i in range(3):
        # One expression: an assigned value would be bound, and kernels bind none of these.
        output[i * 4 : i * 4 + 4] = tirx.Cast(
            "int8x4",
            tirx.min(
                tirx.max(
                    tirx.shift_right(
                        tirx.Cast("int64x4", operand[tirx.Ramp(i * 4, 1, 4)])
                        * tirx.Cast("int64x4", factors[tirx.Ramp(i * 4, 1, 4)])
                        + added[tirx.Ramp(i * 4, 1, 4)],
                        tirx.Broadcast(tirx.int64(35), 4),
                    )
                    - tirx.Broadcast(tirx.int64(9), 4),
                    tirx.Broadcast(tirx.int64(-128), 4),
                ),
                tirx.Broadcast(tirx.int64(127), 4),
            ),
        )


def test_words_alone(tmp_path: Path) -> None:
    function = scale.with_attr("global_symbol", "scale")
    ir = objects.compile_object({"scale": function}, load_target("cortex_m55"), tmp_path / "scale.o")
    assert "llvm.arm.mve.vmulh.v4i32" in ir and "llvm.arm.mve.vhadd.v4i32" in ir
    # What TVM's promises make of the lower words must not be left in 64 bits.
    assert not re.search(r"= (mul|add|sub|ashr|lshr|icmp)[^\n]*<4 x i64>", ir), ir


@tirx.prim_func(private=True, s_tir=True)
def multiply(
    x: tirx.handle("int32", "global"),  # type: ignore[valid-type]
    y: tirx.handle("int32", "global"),  # type: ignore[valid-type]
) -> None:
    operand = tirx.decl_buffer((ELEMENTS,), "int32", data=x)
    output = tirx.decl_buffer((ELEMENTS,), "int32", data=y)
    for i in range(3):
        output[i * 4 : i * 4 + 4] = tirx.Cast(
            "int32x4",
            tirx.shift_right(
                tirx.Cast("int64x4", operand[tirx.Ramp(i * 4, 1, 4)])
                * tirx.Broadcast(tirx.int64(1759218560), 4)
                + tirx.Broadcast(tirx.int64(1 << 30), 4),
                tirx.Broadcast(tirx.int64(31), 4),
            ),
        )


def test_a_rounded_product_is_one_instruction(tmp_path: Path) -> None:
    function = multiply.with_attr("global_symbol", "multiply")
    ir = objects.compile_object({"multiply": function}, load_target("cortex_m55"), tmp_path / "multiply.o")
    assert "llvm.arm.mve.vqrdmulh.v4i32" in ir and "i64>" not in ir, ir


@tirx.prim_func(private=True, s_tir=True)
def halve(
    x: tirx.handle("int32", "global"),  # type: ignore[valid-type]
    b: tirx.handle("int64", "global"),  # type: ignore[valid-type]
    y: tirx.handle("int32", "global"),  # type: ignore[valid-type]
) -> None:
    operand = tirx.decl_buffer((ELEMENTS,), "int32", data=x)
    added = tirx.decl_buffer((ELEMENTS,), "int64", data=b)
    output = tirx.decl_buffer((ELEMENTS,), "int32", data=y)
    for i in range(3):
        output[i * 4 : i * 4 + 4] = tirx.Cast(
            "int32x4",
            tirx.shift_right(
                tirx.Cast("int64x4", operand[tirx.Ramp(i * 4, 1, 4)])
                * tirx.Broadcast(tirx.int64(1759218560), 4)
                + added[tirx.Ramp(i * 4, 1, 4)],
                tirx.Broadcast(tirx.int64(31), 4),
            ),
        )


def test_a_result_without_limits_is_cut_off(tmp_path: Path) -> None:
    function = halve.with_attr("global_symbol", "halve")
    ir = objects.compile_object({"halve": function}, load_target("cortex_m55"), tmp_path / "halve.o")
    assert "llvm.arm.mve.vsri.v4i32" in ir and "vqshl" not in ir
    assert not re.search(r"= (mul|add|sub|ashr|lshr|icmp)[^\n]*<4 x i64>", ir), ir
