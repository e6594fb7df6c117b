"""Epilogue of a convolution or matmul: bias, residual, activation, quantisation of each element.

The expression is copied from the fused function, whatever operators were fused; kernel families provide only
the index of an element and its accumulated sum.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from tvm.ir import Expr

from kiln.tir.builder import Argument, load, store
from kiln.tir.fused import Fused, Load, Nest, replace


def parameters(fused: Fused, anchor: Nest, last: Nest) -> list[Any]:
    """The buffers of a kernel of nests `anchor` to `last`: data, weights, epilogue inputs, the output."""
    buffers = list(fused.params[:2])
    if last is not anchor:
        stored = [*fused.params, anchor.buffer]
        extra = fused.inputs(last, stored)
        buffers += [buffer for buffer in extra if buffer not in buffers and not buffer.same_as(anchor.buffer)]
        # A residual that is the convolution's own input is a second parameter, with a shape of its own.
        buffers += [buffer for buffer in extra if buffer.same_as(fused.params[0])]
    return [*buffers, last.buffer]


def flat_argument(fused: Fused, buffer: Any) -> Argument:
    """The kernel argument for `buffer` as flat memory of its greatest size, such as x of a convolution."""
    size = fused.ranges.greatest(fused.ranges.product(list(buffer.shape)))
    return Argument(buffer.name, [size], str(buffer.dtype))


def may_overwrite(fused: Fused, anchor: Nest, last: Nest, buffers: Sequence[Any]) -> tuple[int, ...]:
    """Positions in `buffers` of residuals that the output may overwrite.

    Each element of such a residual is read just before the output element of the same index is stored.
    """
    if last is anchor:
        return ()
    stored = [*fused.params, anchor.buffer]
    operands = fused.params[:2]
    return tuple(
        position
        for position in fused.same_index(last, stored, buffers)
        if not any(buffers[position].same_as(other) for other in operands)
    )


class Epilogue:
    """Computes elements of nest `last` from sums of nest `anchor`, and stores them.

    `buffers`: buffers of the fused function → buffers of the kernel.
    """

    def __init__(self, fused: Fused, anchor: Nest, last: Nest, buffers: Mapping[Any, Any]) -> None:
        self.fused, self.anchor, self.last = fused, anchor, last
        self.output = buffers.get(last.buffer)  # None where elements are not stored
        self.loads: dict[Any, Load] = {
            buffer: functools.partial(load, target)
            for buffer, target in buffers.items()
            if not buffer.same_as(last.buffer)
        }

    def value(self, indices: Sequence[Expr], accumulated: Expr) -> Expr:
        """The element at `indices`, whose sum is `accumulated`."""
        if self.last is self.anchor:
            return accumulated
        bound = {axis.var: index for axis, index in zip(self.last.axes, indices, strict=True)}
        loads = {**self.loads, self.anchor.buffer: lambda _where: accumulated}
        return self.fused.value(self.last, bound, loads)

    def store(self, indices: Sequence[Expr], accumulated: Expr) -> None:
        """Emit the computation and store of the element at `indices`, whose sum is `accumulated`."""
        bound = {axis.var: index for axis, index in zip(self.last.axes, indices, strict=True)}
        indices_stored = [replace(position, bound, {}) for position in self.last.store]
        store(self.output, indices_stored, self.value(indices, accumulated))
