"""Candidates for a kernel's tuning, in two rounds: the second round varies the winner of the first.

Candidates that are known to lose are left out: tiles with more than a fifth of their rows empty, and tiles
that spill registers. tune/tuner.py also drops candidates whose tasks divide worse among the target's cores
than the heuristics' tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.gemm_tile import choose_tile
from kiln.kernels.cpu.winograd_transforms import growth
from kiln.tir.builder import Machine
from kiln.tir.tuning_records import HEURISTICS, TuningRecord, shapes_of

# (rows, vectors) of register tiles for 16 and 32 vector registers: the sums, the vectors of weights and one
# broadcast fit. With 16 registers 7x2 and 3x4 spill.
_TILES_16 = ((6, 2), (5, 2), (4, 2), (4, 3))
_TILES_32_WIDE = ((14, 2), (12, 2), (10, 2), (7, 2), (9, 3), (8, 3), (7, 3), (6, 4), (5, 4), (4, 4))
_TILES_32 = ((8, 3), (7, 3), (6, 3), (4, 4), (6, 4), (8, 2), (12, 2))
# Number of tiles of pixels that are computed with one panel of weights before the next panel. It sets the
# order of the loops: 0 has weights outside and all pixels inside, 1 has pixels outside and all weights
# inside.
_TILES_PER_PANEL = (0, 1, 4, 8)
_STRIPS = (2, 3, 4, 5, 6, 7, 8, 10, 14)
# The least share of a tile's rows, on average, that must be rows of the matrix.
_LEAST_FILLED = 0.8


def is_depthwise(key: str) -> bool:
    """Whether the kernel `key` is a depthwise convolution: one input channel for each output channel."""
    _, weights, _, _, groups = shapes_of(key)
    return groups > 1 and weights[2] == 1 and weights[3] == groups


def takes_winograd(key: str) -> bool:
    """Whether the convolution `key` can be computed with Winograd's transforms: 3x3, stride 1, no groups."""
    _, weights, stride, dilation, groups = shapes_of(key)
    return weights[:2] == [3, 3] and stride == dilation == [1, 1] and groups == 1


def first_round(key: str, machine: Machine, packed: bool = True) -> list[TuningRecord]:
    """The heuristics, and candidates with other methods: orders of the loops, Winograd where allowed.

    The target's `weight_growth` limits Winograd. `packed`: whether candidates may pack weights in another way
    than the heuristics do.
    """
    if is_depthwise(key):
        width = _matrix(key)[0]
        return [
            HEURISTICS,
            *(TuningRecord(strip=strip) for strip in _STRIPS if strip <= min(width, machine.registers)),
        ]
    parts = _TILES_PER_PANEL if _rows(key) > 1 else (0,)
    candidates = [HEURISTICS, *(TuningRecord(part=part) for part in parts)]
    if takes_winograd(key) and machine.winograd == "auto" and packed:
        candidates[1:] = [TuningRecord(winograd="off", part=part) for part in _TILES_PER_PANEL]
        candidates += [TuningRecord(winograd="f2")] if growth(2) <= machine.weight_growth else []
        candidates += [TuningRecord(winograd="f4")] if growth(4) <= machine.weight_growth else []
    return candidates


def second_round(key: str, best: TuningRecord, machine: Machine, packed: bool = True) -> list[TuningRecord]:
    """Variants of `best`: other register tiles, prefetch distances, blocks of Winograd tiles."""
    if is_depthwise(key):
        return []
    rows, columns = _rows(key), _matrix(key)[1]
    wide = machine.vector_bits >= 512
    tiles = _TILES_16 if machine.registers < 32 else _TILES_32_WIDE if wide else _TILES_32
    x, _, stride, _, _ = shapes_of(key)
    heuristic_tile = choose_tile(machine, rows, columns, row_bytes=stride[1] * x[3] * 4)
    winograd = best.winograd in ("f2", "f4")
    vectors = ceil_div(columns, heuristic_tile.lanes)
    shapes = [
        tile
        for tile in tiles
        if tile != (heuristic_tile.rows, heuristic_tile.vectors)
        and tile[1] <= vectors
        and (packed or tile[1] == heuristic_tile.vectors)
        and (winograd or _filled(rows, tile[0]) >= _LEAST_FILLED)
    ]
    candidates = [replace(best, tile=tile) for tile in shapes]
    if winograd:
        blocks = (0, *_multiples(heuristic_tile.rows))
        candidates = candidates[:3] + [replace(best, block=block) for block in blocks]
    return list(dict.fromkeys([*candidates, *(replace(best, fetch=fetch) for fetch in (0, 1, 2))]))


def _multiples(rows: int) -> Iterable[int]:
    return (rows * count for count in (1, 2, 4))


def _filled(rows: int, tile: int) -> float:
    """The share of the matrix's rows among the rows of all tiles."""
    return rows / (ceil_div(rows, tile) * tile)


def _rows(key: str) -> int:
    """Rows of the matmul that computes a convolution: output pixels of all images."""
    x, weights, stride, dilation, _ = shapes_of(key)
    sizes = [(x[axis + 1] - (weights[axis] - 1) * dilation[axis] - 1) // stride[axis] + 1 for axis in (0, 1)]
    return x[0] * sizes[0] * sizes[1]


def _matrix(key: str) -> tuple[int, int]:
    """Pixels of an output row, and columns of the matmul of one group: output channels per group."""
    x, weights, stride, dilation, groups = shapes_of(key)
    width = (x[2] - (weights[1] - 1) * dilation[1] - 1) // stride[1] + 1
    return width, weights[3] // groups
