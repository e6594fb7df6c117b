"""Each clamp of a kernel's size becomes one variable; clamps of other values stay."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from kiln.callbacks import structural_walk
from kiln.tir.bound_sizes import bind_sizes
from tvm import tirx


def _clamp(value: Any, least: int, most: int) -> Any:
    dtype = str(value.ty.dtype)
    return tirx.max(tirx.min(value, tirx.IntImm(dtype, most)), tirx.IntImm(dtype, least))


def _function(make: Any) -> Any:
    x = tirx.decl_buffer((99,), "int32", "x")
    n = tirx.Var("n", "int32")
    return tirx.PrimFunc([x, n], tirx.SeqStmt(make(x, n)))


def _found(func: Any, kind: Any) -> list[Any]:
    nodes: list[Any] = []
    structural_walk(func.body, [(kind, nodes.append)])
    return nodes


def test_one_variable_for_each_clamp() -> None:
    def body(x: Any, n: Any) -> Any:
        short, long = _clamp(n, 1, 9), _clamp(tirx.Cast("int64", n), 1, 9)
        wider = _clamp(n, 1, 10)
        return [tirx.BufferStore(x, short * 2, [value]) for value in (short, long, wider, short + 1)]

    after = bind_sizes(_function(body))
    binds = _found(after, tirx.Bind)
    assert [str(bind.var.ty.dtype) for bind in binds] == ["int32", "int64", "int32"]
    assert len(_found(after, tirx.Max)) == len(binds), (
        "a clamp is where its variable is bound, and only there"
    )


def test_other_values_stay() -> None:
    def body(x: Any, n: Any) -> Any:
        zero = tirx.IntImm("int32", 0)
        loaded, computed = tirx.BufferLoad(x, [zero]), _clamp(n + 1, 1, 9)
        values = (_clamp(loaded, 0, 9), computed, tirx.max(n, zero), tirx.max(tirx.min(n, n * 2), zero))
        return [tirx.BufferStore(x, value, [zero]) for value in values]

    func = _function(body)
    assert tvm_ffi.structural_equal(bind_sizes(func), func)
