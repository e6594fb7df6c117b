"""Loops over whole tensors of float32 as one TVM tensor expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder


def extern_loops(
    inputs: Sequence[Any], shapes: Sequence[Sequence[Any]], names: Sequence[str],
    write: Callable[[Mapping[str, Any]], None],
) -> Any:  # fmt: skip
    """Results of `shapes`, computed from the tensors `inputs` by the loops that `write` emits.

    `write` is called with the buffers of inputs and results by their `names`, in this order.
    """
    outputs = [tirx.decl_buffer(shape, "float32", f"out{i}") for i, shape in enumerate(shapes)]

    def body(input_buffers: Any, output_buffers: Any) -> Any:
        with IRBuilder() as ir:
            write(dict(zip(names, [*input_buffers, *output_buffers], strict=True)))
        return ir.get()

    return te.extern(list(shapes), list(inputs), body, dtype=["float32"] * len(shapes), out_buffers=outputs)
