"""Positions of the elements that are not zero, in row-major order."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from kiln.extents import Extent, shape_of
from kiln.frontend.counted.sizes import counted
from kiln.frontend.symbols import Symbols, int64_of

_KEPT = ("relax.astype", "relax.reshape")  # the operators that keep how many elements are not zero
_ZERO, _ONE = tirx.IntImm("int64", 0), tirx.IntImm("int64", 1)


def positions(builder: relax.BlockBuilder, symbols: Symbols, tensor: str, data: Any) -> Any:
    """The indices of the elements of `data` that are not zero: int64, shape (count, rank of `data`).

    `tensor`: the tensor of the file that is counted. Where the same tensor was counted before, the result is
    the same, so that what is selected by a mask has one size.
    """
    computed = _computed(builder, data)
    if computed in symbols.found and not symbols.bounds.keys() & {tensor, symbols.inside}:
        return symbols.found[computed]
    most = symbols.most_counted(tensor, symbols.product(shape_of(data)))

    def compute(x: Any) -> Any:
        shape = [[int64_of(most), int64_of(len(x.shape))], [_ONE]]
        return te.extern(
            shape, [x], lambda i, o: _scan(i[0], list(x.shape), o[0], o[1]), dtype=["int64", "int64"],
            name="non_zero",
        )  # fmt: skip

    both = builder.emit_te(compute, data, primfunc_name_hint="non_zero")
    rows, count = (builder.emit(relax.TupleGetItem(both, index)) for index in (0, 1))
    places = counted(builder, symbols, tensor, count, [rows], most)[0]
    symbols.found[computed] = places
    return places


def count_of(builder: Any, symbols: Symbols, numbers: Any) -> Extent | None:
    """The sum of `numbers`, which are the elements of a mask, if the places of its elements are known."""
    call = _computed(builder, numbers)
    while str(call.ty.dtype) != "bool" or call not in symbols.found:
        if not isinstance(call, relax.Call) or getattr(call.op, "name", "") not in _KEPT:
            return None
        call = _computed(builder, call.args[0])
    return symbols.found[call].ty.shape[0]


def _computed(builder: relax.BlockBuilder, tensor: Any) -> Any:
    """The call that computes a tensor; the tensor itself if none does."""
    call = builder.lookup_binding(tensor) if isinstance(tensor, relax.Var) else tensor
    return tensor if call is None else call


def _scan(x: Any, shape: list[Extent], rows: Any, count: Any) -> Any:
    """The statement that writes the indices of elements that are not zero, and their number.

    Beyond the first axis of `rows`, elements are counted and not written.
    """
    with IRBuilder() as ir, script.seq_scope():
        script.buffer_store(count, _ZERO, [_ZERO])
        _nest(x, shape, [], rows, count)
    return ir.get()


def _nest(x: Any, shape: list[Extent], at: list[Any], rows: Any, count: Any) -> None:
    if len(at) < len(shape):
        with script.serial(_ZERO, shape[len(at)]) as index:
            _nest(x, shape, [*at, index], rows, count)
        return
    with script.If(_is_set(tirx.BufferLoad(x, at), str(x.dtype))), script.Then():
        number = tirx.BufferLoad(count, [_ZERO])
        with script.If(number < rows.shape[0]), script.Then():
            for axis, index in enumerate(at):
                script.buffer_store(rows, tirx.Cast("int64", index), [number, tirx.IntImm("int64", axis)])
        script.buffer_store(count, number + _ONE, [_ZERO])


def _is_set(value: Any, dtype: str) -> Any:
    """Whether an element is not zero. TVM compares floats such that NaN differs from none: bits decide."""
    if dtype == "bool":
        return value
    if not dtype.startswith(("float", "bfloat")):
        return value != tirx.const(0, dtype)
    width = int(dtype.removeprefix("bfloat").removeprefix("float"))
    bits = tirx.reinterpret(f"uint{width}", value)
    return (bits & tirx.const((1 << (width - 1)) - 1, f"uint{width}")) != tirx.const(0, f"uint{width}")
