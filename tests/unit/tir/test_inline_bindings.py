"""Bound integers in a kernel: which are replaced by their values, and which stay bound."""

from __future__ import annotations

from kiln.callbacks import structural_walk
from kiln.tir.builder import int64
from kiln.tir.inline_bindings import inline_bindings
from tvm import sym, tirx
from tvm.ir import TensorLoad


def test_values_of_variables_replace_chains_and_loads_stay_bound() -> None:
    data, out = (tirx.decl_buffer([64], "int64", name) for name in ("data", "out"))
    row = tirx.Var("row", "int64")
    first, loaded, second = (tirx.Var(name, "int64") for name in ("first", "loaded", "second"))
    body = tirx.SeqStmt(
        [
            tirx.Bind(first, row * int64(8)),
            tirx.Bind(loaded, tirx.BufferLoad(data, [first])),
            tirx.Bind(second, first + int64(1)),
            tirx.BufferStore(out, loaded, [second + row]),
        ]
    )
    func = inline_bindings(tirx.PrimFunc([data, out, row], body))
    bound: list[tirx.Bind] = []
    structural_walk(func.body, ((tirx.Bind, bound.append),))
    assert [item.var.name for item in bound] == ["loaded"]
    reads: list[TensorLoad] = []
    structural_walk(func.body, ((TensorLoad, reads.append),))
    (store,) = [item for item in func.body.seq if isinstance(item, tirx.BufferStore)]
    analyzer = sym.Analyzer()
    assert store.value.same_as(loaded)
    assert analyzer.can_prove_equal(store.indices[0], row * int64(9) + int64(1))
    assert analyzer.can_prove_equal(reads[0].indices[0], row * int64(8))


def test_functions_without_bindings_are_returned_as_they_are() -> None:
    out = tirx.decl_buffer([1], "int64", "out")
    func = tirx.PrimFunc([out], tirx.BufferStore(out, int64(0), [int64(0)]))
    assert inline_bindings(func).same_as(func)
