"""Loops over whole tensors as one TVM tensor expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder


def extern_loops(
    inputs: Sequence[Any], shapes: Sequence[Sequence[Any]], names: Sequence[str],
    write: Callable[[Mapping[str, Any]], None], dtype: str = "float32",
) -> Any:  # fmt: skip
    """Results of `shapes` and type `dtype`, computed from the tensors `inputs` by the loops of `write`.

    `write` is called with the buffers of inputs and results by their `names`, in this order.
    """
    outputs = [tirx.decl_buffer(shape, dtype, f"out{i}") for i, shape in enumerate(shapes)]

    def body(input_buffers: Any, output_buffers: Any) -> Any:
        with IRBuilder() as ir:
            write(dict(zip(names, [*input_buffers, *output_buffers], strict=True)))
        return ir.get()

    return te.extern(list(shapes), list(inputs), body, dtype=[dtype] * len(shapes), out_buffers=outputs)
