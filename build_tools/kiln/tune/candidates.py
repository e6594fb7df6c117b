"""Decisions worth trying for a kernel, in two rounds: the second varies the first one's winner."""

from __future__ import annotations

from dataclasses import replace

from kiln.kernels.choices import RULES, Choice, shapes_of
from kiln.kernels.gemm import choose_tile
from kiln.kernels.kernel import Machine
from kiln.kernels.winograd_transforms import growth

# Rows and vectors of register tiles that keep their sums in registers, by the number of those.
_TILES_16 = ((6, 2), (5, 2), (4, 2), (4, 3))
_TILES_32_WIDE = ((14, 2), (12, 2), (10, 2), (8, 3), (9, 3), (6, 4))
_TILES_32 = ((8, 3), (6, 3), (8, 2), (12, 2), (6, 4))
# Tiles of pixels that a panel of weights goes through at a time; 0: all.
_PARTS = (0, 1, 8)


def takes_winograd(key: str) -> bool:
    """Whether a convolution could be computed with Winograd's transforms."""
    _, weights, stride, dilation, groups = shapes_of(key)
    return weights[:2] == [3, 3] and stride == dilation == [1, 1] and groups == 1


def first_round(key: str, machine: Machine) -> list[Choice]:
    """The rules, and the methods: sizes of parts, and Winograd where the target lets weights grow."""
    found = [RULES, *(Choice(part=part) for part in _PARTS)]
    if takes_winograd(key) and machine.winograd == "auto":
        found[1:] = [Choice(winograd="off", part=part) for part in _PARTS]
        found += [Choice(winograd="f2")] if growth(2) <= machine.weight_growth else []
        found += [Choice(winograd="f4")] if growth(4) <= machine.weight_growth else []
    return found


def second_round(key: str, best: Choice, machine: Machine) -> list[Choice]:
    """Variants of `best`: other register tiles, no prefetch, other blocks of Winograd tiles."""
    rows, columns = _matrix(key)
    wide = machine.vector_bits >= 512
    tiles = _TILES_16 if machine.registers < 32 else _TILES_32_WIDE if wide else _TILES_32
    usual = choose_tile(machine, rows, columns)
    vectors = -(-columns // usual.lanes)
    found = [
        replace(best, tile=tile)
        for tile in tiles
        if tile[1] <= vectors and tile != (usual.rows, usual.vectors) and tile[0] <= rows
    ]
    if takes_winograd(key) and best.winograd in ("f2", "f4"):
        blocks = (0, *(usual.rows * count for count in (1, 2, 4)))
        found = found[:2] + [replace(best, block=block) for block in blocks]
    else:
        found.append(replace(best, fetch=False))
    return found


def _matrix(key: str) -> tuple[int, int]:
    """Rows and columns of the product of one group."""
    x, weights, stride, dilation, groups = shapes_of(key)
    sizes = [(x[axis + 1] - (weights[axis] - 1) * dilation[axis] - 1) // stride[axis] + 1 for axis in (0, 1)]
    return x[0] * sizes[0] * sizes[1], weights[3] // groups
