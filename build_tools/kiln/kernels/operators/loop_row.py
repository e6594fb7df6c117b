"""The operator `loop_row`: each iteration of a loop writes a row of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder

from kiln.extents import extent
from kiln.frontend import added_operators
from kiln.tir.builder import int64, load, serial, store


def loop_row(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """The function that writes one row of a loop's result, see frontend/loops.py."""
    value, counter = call.args[1].fields
    about = added_operators.attributes_of(call)
    axis, dtype = int(about["axis"]), str(value.ty.dtype)

    def compute(source: Any, number: Any, shape: Any) -> Any:
        sizes = [extent(size) for size in shape]

        def write(inputs: Any, target: Any) -> Any:
            with IRBuilder() as ir:
                row_index = load(inputs[1], [int64(0)])
                if about["backwards"]:
                    row_index = int64(sizes[axis]) - int64(1) - row_index
                _each(
                    source.shape,
                    [],
                    lambda index: store(target, _inserted(index, axis, row_index), load(inputs[0], index)),
                )
            return ir.get()

        out = tirx.decl_buffer(sizes, dtype, "rows")
        return te.extern(
            [sizes], [source, number], lambda i, o: write(i, o[0]), dtype=dtype, out_buffers=[out]
        )

    shape = relax.ShapeExpr(list(call.ty.shape))
    return builder.call_te(compute, value, counter, shape, primfunc_name_hint="loop_row")


def _inserted(indices: Sequence[Any], axis: int, value: Any) -> list[Any]:
    return [*indices[:axis], value, *indices[axis:]]


def _each(sizes: Sequence[Any], before: list[Any], visit: Callable[[list[Any]], None]) -> None:
    """Emit nested loops over all axes of `sizes` after `before`, with visit(indices) as the body."""
    if len(before) == len(sizes):
        visit(before)
        return
    with serial(extent(sizes[len(before)])) as index:
        _each(sizes, [*before, index], visit)
