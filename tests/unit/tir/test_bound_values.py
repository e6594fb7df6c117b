"""Let expressions become statements, but stay where a condition may guard their values."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from kiln.callbacks import structural_walk
from kiln.tir.bound_values import bound_values
from tvm import tirx


def _count(func: Any, kind: Any) -> int:
    found: list[Any] = []
    structural_walk(func.body, [(kind, found.append)])
    return len(found)


def _let(value: Any) -> Any:
    """A remainder by 3 whose sign is not known, as LowerIntrin writes it."""
    rest = tirx.Var("rest", "int32")
    return tirx.Let(rest, tirx.truncmod(value, tirx.IntImm("int32", 3)), tirx.max(rest, rest + 3))


def _function(make: Any) -> Any:
    x = tirx.decl_buffer((9,), "int32", "x")
    n = tirx.Var("n", "int32")
    return tirx.PrimFunc([x, n], make(x, n))


def test_every_place_in_a_statement() -> None:
    def body(x: Any, n: Any) -> Any:
        i, bound = tirx.Var("i", "int32"), tirx.Var("b", "int32")
        store = tirx.BufferStore(x, _let(n + i), [_let(_let(i))])
        branch = tirx.IfThenElse(_let(n) > 1, store, None)
        loop = tirx.For(i, tirx.IntImm("int32", 0), _let(n * 2), tirx.ForKind.SERIAL, branch)
        return tirx.SeqStmt([tirx.Bind(bound, _let(n - 7)), loop])

    func = _function(body)
    assert _count(func, tirx.Let) == 6
    after = bound_values(func)
    assert _count(after, tirx.Let) == 0
    binds: list[Any] = []
    structural_walk(after.body, [(tirx.Bind, binds.append)])
    assert len(binds) == 7
    assert len({bind.var for bind in binds}) == 7, "each variable is bound once"


def test_guarded_values_stay() -> None:
    def body(x: Any, n: Any) -> Any:
        loaded = _let(tirx.BufferLoad(x, [n]))
        divided = _let(tirx.truncdiv(tirx.IntImm("int32", 9), n))
        outer = tirx.Var("outer", "int32")
        inner = tirx.Let(outer, tirx.BufferLoad(x, [n]), _let(outer))
        zero = tirx.IntImm("int32", 0)
        return tirx.SeqStmt([tirx.BufferStore(x, value, [zero]) for value in (loaded, divided, inner)])

    func = _function(body)
    assert tvm_ffi.structural_equal(bound_values(func), func)


def test_functions_without_them_are_the_same() -> None:
    func = _function(lambda x, n: tirx.BufferStore(x, n, [n]))
    assert bound_values(func).same_as(func)
