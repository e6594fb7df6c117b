"""Divisions of indices towards zero round down after a change of sign."""

from __future__ import annotations

from typing import Any

import pytest
from kiln.callbacks import structural_map, structural_walk
from kiln.tir.truncated_division import round_down
from tvm import sym, tirx


def _function(make: Any) -> Any:
    x = tirx.decl_buffer((9,), "int32", "x")
    i = tirx.Var("i", "int32")
    store = tirx.BufferStore(x, make(x, i), [i])
    zero, nine = tirx.IntImm("int32", 0), tirx.IntImm("int32", 9)
    return tirx.PrimFunc([x], tirx.For(i, zero, nine, tirx.ForKind.SERIAL, store))


@pytest.mark.parametrize("kind", [tirx.Div, tirx.Mod])
def test_values_are_those_of_c(kind: Any) -> None:
    four = tirx.IntImm("int32", 4)
    found: list[Any] = []
    func = round_down(_function(lambda _, i: kind(7 - i * 2, four)))
    structural_walk(func.body, [(tirx.BufferStore, found.append), ((tirx.Div, tirx.Mod), pytest.fail)])
    (store,) = found
    analyzer = sym.Analyzer()
    for number in range(9):
        given = tirx.IntImm("int32", number)
        value = structural_map(store.value, ((tirx.Var, lambda _, given=given: given),))
        dividend = 7 - number * 2
        quotient = abs(dividend) // 4 * (1 if dividend >= 0 else -1)
        expected = quotient if kind is tirx.Div else dividend - 4 * quotient
        assert int(analyzer.simplify(value)) == expected


def test_divisions_of_elements_and_by_variables_stay() -> None:
    two = tirx.IntImm("int32", 2)
    func = _function(lambda x, i: tirx.Div(tirx.BufferLoad(x, [i]), two) + tirx.Div(9 - i, i + 1))
    assert round_down(func).same_as(func)
