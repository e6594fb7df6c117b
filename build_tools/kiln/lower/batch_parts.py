"""Computes the first layers of a model for some elements of its batch at a time, so that caches hold them.

A layer of many images reads and writes more than a cache holds; the same layers, one image after the other,
find in the cache what the layer before has written, and the arena holds the feature maps of a part of the
batch alone. Later layers, whose weights are larger than their feature maps, compute the whole batch: each
part would read the weights again.

The rule counts the bytes that come from outside of a cache. It needs fixed sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import relax

from kiln.extents import bytes_of
from kiln.graph.bindings import constant, operands
from kiln.lower.batch_rules import batch_rule, is_fused
from kiln.lower.patches import ImageRegion, divided, regions_along
from kiln.tir.builder import Machine

_MOST_PARTS = 16  # each has its own steps
_LAST_LEVEL = 8 << 20  # bytes of the last-level cache of a target that does not name one
_BATCH = 0


@dataclass(frozen=True)
class _Traffic:
    """Bytes of a layer, for the whole batch: `all` that it reads and writes, and its `weights`.

    `inner`: those of tensors that another layer of the region writes or reads. The others, such as the images
    that come in, move in any case.
    """

    all: int
    inner: int
    weights: int


def in_batch_parts(mod: tvm.IRModule, machine: Machine) -> tvm.IRModule:
    """`mod` with the layers of `main` that gain from it in parts of the batch."""
    functions = dict(mod.functions_items())
    best: tuple[int, int, ImageRegion] | None = None
    for region in regions_along(mod, _BATCH, partial(batch_rule, functions=functions)):
        layers = _layers(region)
        for count in _counts(region.rows):
            gain = _gain(layers, count, machine)
            if gain > 0 and (best is None or gain > best[0]):
                best = gain, count, region
    if best is None:
        return mod
    _, count, region = best
    return divided(mod, region, count) or mod


def _counts(batch: int) -> list[int]:
    """The numbers of equal parts of a batch, fewest first."""
    return [count for count in range(2, min(batch, _MOST_PARTS) + 1) if batch % count == 0]


def _layers(region: ImageRegion) -> list[_Traffic]:
    """The layers of a region: its calls but elementwise ones, which are fused with them."""
    read_again: set[Any] = set()  # variables that a layer reads, through fused calls or at once
    for variable, call in reversed(region.calls):
        if not is_fused(call) or variable in read_again:
            read_again.update(operands(call))
    computed = {variable for variable, _ in region.calls}
    layers = []
    for variable, call in region.calls:
        if is_fused(call):
            continue
        sizes = {item: bytes_of(item) or 0 for item in operands(call) if isinstance(item, relax.Var)}
        weights = sum(value.nbytes for value in map(constant, operands(call)) if value is not None)
        read, written = sum(sizes.values()), bytes_of(variable) or 0
        inner = sum(size for item, size in sizes.items() if item in computed)
        layers.append(_Traffic(read + written, inner + written * (variable in read_again), weights))
    return layers


def _gain(layers: list[_Traffic], count: int, machine: Machine) -> int:
    """Bytes that `count` parts do not move to or from a cache, less those of weights that are read again."""
    private = machine.l2_bytes * (machine.cores if machine.parallel else 1)
    levels = private, max(machine.shared_bytes or _LAST_LEVEL, private)
    moved = again = 0
    for layer in layers:
        beyond = sum(layer.all > size for size in levels)
        moved += layer.inner * (beyond - sum(layer.all > size * count for size in levels))
        again += layer.weights * (count - 1)
    return moved - again
