"""Whether a function has numbers of a type, seen from what it declares and makes."""

from __future__ import annotations

from typing import Any

import pytest
from kiln.tir.bfloat16 import declares
from tvm import tirx


def function(value: Any, dtype: str = "float32") -> tirx.PrimFunc:
    """A function over a pointer that stores `value` into a buffer of `dtype`."""
    buffer = tirx.decl_buffer([4], dtype, "y")
    pointer = tirx.Var("y", tirx.buffer_data_pointer_type(buffer))
    declared = tirx.DeclBuffer(buffer, data=pointer)
    return tirx.PrimFunc([pointer], tirx.SeqStmt([declared, tirx.BufferStore(buffer, value, [0])]), None)


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (function(tirx.FloatImm("float32", 1)), []),
        (function(tirx.FloatImm("float16", 1), "float16"), ["float16"]),
        (function(tirx.Cast("float32", tirx.FloatImm("float16", 1))), ["float16"]),
        (function(tirx.Cast("bfloat16", tirx.FloatImm("float32", 1)), "bfloat16"), ["bfloat16"]),
        (function(tirx.reinterpret("float16", tirx.const(1, "uint16")), "float16"), ["float16"]),
        (function(tirx.Cast("float32", tirx.Cast("float16", tirx.FloatImm("float32", 1)))), ["float16"]),
    ],
)
def test_types_that_a_function_has(made: tirx.PrimFunc, found: list[str]) -> None:
    assert [dtype for dtype in ("float16", "bfloat16") if declares(made, dtype)] == found
    assert declares(made, "float16", "bfloat16") == bool(found)
