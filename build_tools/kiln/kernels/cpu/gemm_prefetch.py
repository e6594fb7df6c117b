"""Prefetches of weights while the packed matmul computes: of its own next panels, and of later kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as script
from tvm.tirx.script.builder import ir as builder

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.gemm_tile import Loop, Tile
from kiln.tir.builder import CACHE_LINE, bind, int64, load


@dataclass(frozen=True)
class LaterPrefetch:
    """Prefetches on behalf of later kernels: `lines` cache lines, starting at element `first`.

    A tile issues them whenever it prefetches its own panel; the address advances every `turns` times.
    """

    first: Expr
    lines: int
    turns: int

    def in_turns_of(self, times: int) -> LaterPrefetch:
        """Prefetches at this rate for a tile that prefetches 1/`times` as often; both are powers of two."""
        if self.turns >= times:
            return replace(self, turns=self.turns // times)
        return LaterPrefetch(self.first, self.lines * times // self.turns, 1)


def prefetch_later(region: tuple[int, int], share: Expr, shares: int, times: int) -> LaterPrefetch:
    """The prefetches of `region` that tile number `share` of `shares` issues for later kernels.

    `region`: first byte and end, counted from the beginning of the weights. `times`: how often a tile
    prefetches.
    """
    begin, end = region
    each = (end - begin) / (4 * LINE) / shares / times
    lines, turns = max(1, round(each)), 1
    while each * turns < 0.7 and turns * 2 <= times:  # each line twice costs less than half of them skipped
        turns *= 2
    lines_per_tile = ceil_div(times, turns) * lines
    return LaterPrefetch(bind(int64(begin // 4) + share * int64(lines_per_tile * LINE)), lines, turns)


@dataclass(frozen=True)
class PanelPrefetch:
    """Prefetches of weights while a tile is computed: reading cold weights costs as much time as the sums.

    From element `first` on, `lines` cache lines for every `steps` iterations of the innermost loop. The
    address may be past the end of the weights, where the next layer's begin: a prefetch never faults.
    `later`: prefetches on behalf of later kernels.
    """

    first: Expr
    steps: int
    lines: int
    later: LaterPrefetch | None = None

    def in_steps_of(self, count: int) -> PanelPrefetch:
        """Prefetches at this rate for a loop that does `count` steps per iteration, a power of two."""
        if self.steps >= count:
            return replace(self, steps=self.steps // count)
        times = count // self.steps
        later = None if self.later is None else self.later.in_turns_of(times)
        return PanelPrefetch(self.first, 1, times * self.lines, later)


LINE = CACHE_LINE // 4  # float32 elements in a cache line; of shorter lines, every second is prefetched


@dataclass(frozen=True)
class PanelShare:
    """The cache lines of a panel that one tile prefetches.

    `lines` cache lines for every `steps` iterations of the innermost loop, `of_tile` in all. `tiles`: how
    many tiles prefetch the panel once.
    """

    steps: int
    lines: int
    of_tile: int
    tiles: int


def panel_share(width: int, loops: Sequence[Loop], tiles: int) -> PanelShare:
    """The share of each of `tiles` tiles in a panel `width` columns wide.

    `loops`: the reduction, outermost first.
    """
    extents = [loop.extent for loop in loops]
    depth, inner = math.prod(extents), next((extent for extent in reversed(extents) if extent > 1), 1)
    each = max(1, width // LINE)  # cache lines per step of k
    steps = 1
    while inner % (steps * 2) == 0 and steps * 2 * each <= tiles:
        steps *= 2
    lines = max(1, ceil_div(each * steps, tiles))
    of_tile = depth // steps * lines
    return PanelShare(steps, lines, of_tile, ceil_div(each * depth, of_tile))


def prefetch_panels(
    tile: Tile, loops: Sequence[Loop], panel: Expr, index: Expr, tiles: int, distance: int = 1,
    inside: Expr | None = None,
) -> PanelPrefetch:  # fmt: skip
    """The prefetches that tile `index` of `tiles` at `panel` issues for the panels `distance` tile widths on.

    `loops`: the reduction, outermost first. `inside`: first column of the tile in its panel; None: 0.

    Tiles for which no lines are left repeat the last share. In a first layer, whose innermost loop has three
    steps and whose image many tiles, new lines for each of them would be megabytes that no kernel reads:
    7x7 from 3 to 64 channels took 1.1 times as long on Emerald Rapids. Without prefetches in the loop, LLVM
    mixes its steps, and spills on AArch64.
    """
    depth, share = math.prod(loop.extent for loop in loops), panel_share(tile.width, loops, tiles)
    if share.tiles < tiles:
        index = tirx.min(index, int64(share.tiles - 1))
    first = (panel + int64(tile.adjacent * distance)) * int64(depth * tile.columns)
    first = first + index * int64(share.of_tile * LINE)
    if inside is not None:
        first = first + inside * int64(depth)
    return PanelPrefetch(bind(first), share.steps, share.lines)


def prefetch(weights: Any, offset: Expr) -> None:
    """Emit a prefetch of weights[offset] into the second-level cache."""
    address = script.address_of(load(weights, [offset]))
    read, second_level, data = (tirx.IntImm("int32", value) for value in (0, 2, 1))
    builder.evaluate(script.call_llvm_intrin("void", "llvm.prefetch", address, read, second_level, data))
