"""Kernel parameters for sizes whose variables share a name, as an input and a result may."""

from __future__ import annotations

from kiln.tir.builder import Kernel, with_sizes
from kiln.tir.symbols import SymbolRanges
from tvm import tirx


def test_variables_of_one_name_are_two_sizes() -> None:
    of_input, of_result = (tirx.Var("n", "int64") for _ in range(2))
    out = tirx.decl_buffer((8,), "int64", "out")
    body = tirx.BufferStore(out, of_result, [tirx.IntImm("int64", 0)])
    ranges = SymbolRanges({of_input: (0, 8), of_result: (0, 8)})
    func = with_sizes(tirx.PrimFunc([out], body), ranges)
    assert len(func.params) == 2  # the body does not use the size of the input
    (size,) = Kernel(func, ranges=ranges).sizes
    assert size.same_as(of_result)
