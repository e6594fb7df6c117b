"""What a group does with each element of its convolution: bias, residual, activation, quantisation.

The expression comes from the fused function as it is, whatever was fused; families only say where an
element lies and what was accumulated for it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from kiln.tir.builder import Expr, load, store
from kiln.tir.fused import Fused, Load, Nest, replace


def parameters(fused: Fused, anchor: Nest, last: Nest) -> list[Any]:
    """The buffers of a kernel for `anchor` … `last`: data, weights, what the epilogue reads, the output."""
    found = list(fused.params[:2])
    if last is not anchor:
        stored = [*fused.params, anchor.buffer]
        extra = fused.inputs(last, stored)
        found += [buffer for buffer in extra if buffer not in found and not buffer.same_as(anchor.buffer)]
        # A residual that is the convolution's own input comes again, under its own shape.
        found += [buffer for buffer in extra if buffer.same_as(fused.params[0])]
    return [*found, last.buffer]


def may_overwrite(fused: Fused, anchor: Nest, last: Nest, buffers: Sequence[Any]) -> tuple[int, ...]:
    """Positions of residuals that the output may overwrite: each element is read just before its store."""
    if last is anchor:
        return ()
    stored = [*fused.params, anchor.buffer]
    taken = fused.params[:2]
    return tuple(
        position
        for position in fused.same_index(last, stored, buffers)
        if not any(buffers[position].same_as(other) for other in taken)
    )


class Epilogue:
    """Stores elements of `last`, given elements of `anchor`."""

    def __init__(self, fused: Fused, anchor: Nest, last: Nest, buffers: Mapping[Any, Any]) -> None:
        self.fused, self.anchor, self.last = fused, anchor, last
        self.output = buffers[last.buffer]
        self.loads: dict[Any, Load] = {
            buffer: functools.partial(load, target)
            for buffer, target in buffers.items()
            if not buffer.same_as(last.buffer)
        }

    def store(self, indices: Sequence[Expr], accumulated: Expr) -> None:
        """Compute and store the element at `indices`, whose sum is `accumulated`."""
        bound = {axis.var: index for axis, index in zip(self.last.axes, indices, strict=True)}
        place = [replace(position, bound, {}) for position in self.last.store]
        if self.last is self.anchor:
            store(self.output, place, accumulated)
            return
        loads = {**self.loads, self.anchor.buffer: lambda _where: accumulated}
        store(self.output, place, self.fused.value(self.last, bound, loads))
