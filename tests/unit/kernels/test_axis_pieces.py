"""Pieces of an axis: where the conditions of an expression change, and what remains of it in each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kiln.kernels.cpu.axis_pieces import pieces_of
from kiln.kernels.cpu.elementwise import make
from kiln.tir.builder import Machine
from kiln.tir.fused import Fused
from kiln.tir.inline import Expanded
from tvm import te, tirx
from tvm.ir import Range

MACHINE = Machine(vector_bits=256, registers=16, in_order=False, l2_bytes=1 << 18, parallel=False)
X = tirx.decl_buffer([4096], "float32", "x")


def an_axis(length: int) -> Any:
    domain = Range(tirx.const(0, "int64"), tirx.const(length, "int64"))
    return tirx.IterVar(domain, tirx.Var("j", "int64"), 0)


def at(index: Any) -> Any:
    return tirx.BufferLoad(X, [index])


def concat(j: Any, sizes: list[int]) -> Any:
    """Operands of `sizes` side by side; the elements of operand k begin at k * 100 of X."""
    end = sum(sizes[:-1])
    value = at(j - end + (len(sizes) - 1) * 100)
    for number in reversed(range(len(sizes) - 1)):
        begin = end - sizes[number]
        value = tirx.if_then_else(j < end, at(j - begin + number * 100), value)
        end = begin
    return value


@pytest.mark.parametrize(
    ("value", "length", "bounds"),
    [
        (lambda j: concat(j, [32] * 16), 512, list(range(0, 513, 32))),
        (lambda j: tirx.exp(concat(j, [3, 40, 5])), 48, [0, 3, 43, 48]),
        (lambda j: concat(j, [1] * 8), 8, list(range(9))),
        (lambda j: tirx.Select(j + 2 >= 10, at(j), at(j + 1)), 40, [0, 8, 40]),
        (lambda j: tirx.if_then_else(j - 2 <= 10, at(j), at(j + 1)), 40, [0, 13, 40]),
        (lambda j: tirx.if_then_else(tirx.const(9, "int64") < j, at(j), at(j + 1)), 40, [0, 10, 40]),
        (lambda j: tirx.if_then_else(tirx.all(j >= 3, j < 43), at(j - 3), 0.0), 46, [0, 3, 43, 46]),
    ],
)
def test_conditions_end_at_the_bounds_of_pieces(
    value: Callable[[Any], Any], length: int, bounds: list[int]
) -> None:
    axis = an_axis(length)
    pieces = pieces_of(Expanded([], value(axis.var)), axis, length, 8)
    assert [piece.begin for piece in pieces] + [pieces[-1].end] == bounds
    for piece in pieces:
        text = str(piece.expanded.value)
        assert "if_then_else" not in text and "Select" not in text


@pytest.mark.parametrize(
    ("value", "length"),
    [
        (lambda j: at(j), 40),
        (lambda j: tirx.if_then_else(j % 2 < 1, at(j), at(j + 1)), 40),  # changes at every element
        (lambda j: tirx.if_then_else(at(j) < 5.0, at(j), at(j + 1)), 40),
        (lambda j: tirx.if_then_else(j < 40, at(j), at(j + 1)), 40),  # always true
        (lambda j: concat(j, [2] * 20), 40),  # a loop for each would be too much code
    ],
)
def test_other_axes_stay_whole(value: Callable[[Any], Any], length: int) -> None:
    axis = an_axis(length)
    [piece] = pieces_of(Expanded([], value(axis.var)), axis, length, 8)
    assert (piece.begin, piece.end) == (0, length)


def test_vectors_of_a_concat_have_no_conditions() -> None:
    parts = [te.placeholder((4, 4, 32), "float32", f"x{number}") for number in range(16)]

    def joined(i: Any, j: Any, k: Any) -> Any:
        value = parts[-1][i, j, k - 15 * 32]
        for number in reversed(range(15)):
            value = tirx.if_then_else(k < (number + 1) * 32, parts[number][i, j, k - number * 32], value)
        return tirx.max(value, 0.0)

    fused = Fused(te.create_prim_func([*parts, te.compute((4, 4, 512), joined)]))
    kernel, _ = make(fused, fused.nests[-1], fused.params, MACHINE)
    assert "if_then_else" not in str(kernel.func)
