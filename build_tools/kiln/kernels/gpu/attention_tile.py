"""Sizes of the blocks of an attention kernel for a GPU, within the limits of shared memory and registers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from kiln.config.sizes import ceil_div
from kiln.kernels.gpu.attention_nests import TF32
from kiln.kernels.gpu.block_tile import SHARED_BYTES

ROWS = 16  # queries of a warp
LANES = 32  # threads of a warp
# Registers of a thread for scores, results and queries; parts of the depth of the queries that stay in them.
_REGISTERS, _HELD = 144, 8
_F32 = "float32"
# By the type in which operands are multiplied: bytes of an element in shared memory, the depth of an
# instruction, and keys of a warp in a step, the most first: of float32, which has no tensor cores, fewer, for
# less code.
_BYTES = {_F32: 4, TF32: 4, "float16": 2, "bfloat16": 2}
_DEPTH = {_F32: 8, TF32: 8, "float16": 16, "bfloat16": 16}
_KEYS = {_F32: (32, 16, 8), TF32: (64, 32, 16, 8), "float16": (64, 32, 16), "bfloat16": (64, 32, 16)}


@dataclass(frozen=True)
class AttentionTile:
    """Warps of a block, and widths of keys and values, padded to multiples of 16.

    `warps`: of 16 queries each; `parts`: how many warps divide the keys of the same queries. `keys`: those of
    one warp in a step.
    """

    warps: int
    parts: int
    keys: int
    depth: int
    columns: int
    factor: str

    @property
    def rows(self) -> int:
        """Queries of a block."""
        return ROWS * self.warps

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return LANES * self.warps * self.parts

    @property
    def keys_of_block(self) -> int:
        """Keys of a step of the block."""
        return self.keys * self.parts

    @property
    def added(self) -> int:
        """Numbers in shared memory by which results of parts are added: results, maxima and sums."""
        return 0 if self.parts == 1 else self.threads * (self.columns // 2 + 4)

    @property
    def steps(self) -> int:
        """Parts of the depth that one instruction multiplies."""
        return self.depth // _DEPTH[self.factor]

    @property
    def held(self) -> int:
        """How many of these parts of the queries stay in registers."""
        if self.factor == _F32:  # a part is 16 registers
            return 0
        return max(0, min(self.steps, _HELD, (_REGISTERS - self.keys // 2 - self.columns // 2) // 4))

    @property
    def pitches(self) -> tuple[int, int]:
        """Elements between rows in shared memory, of queries and keys, and of values: the banks differ."""
        gap = 16 // _BYTES[self.factor]
        return self.depth + gap, self.columns + gap

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of an operand in shared memory."""
        return _BYTES[self.factor]

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        first, second = self.pitches
        rows = (self.rows + self.keys_of_block) * first + self.keys_of_block * second
        return max(rows * _BYTES[self.factor], 4 * self.added)  # results are added after all products


def tile_of(
    factor: str, queries: int, keys: int, heads: int, widths: Sequence[int], most: int
) -> AttentionTile:
    """The tile for the greatest sizes; `heads`: products of all other axes; `most`: multiprocessors.

    Blocks have as many queries as leave each multiprocessor a block, and as many keys as registers hold.
    """
    depth, columns = (ceil_div(width, 16) * 16 for width in widths)
    step = _DEPTH[factor]
    for warps in (4, 2, 1):
        if warps > 1 and (ceil_div(queries, ROWS * warps) * heads < most or queries <= ROWS * warps // 2):
            continue
        for parts, count in itertools.product(_divisors(4 // warps), _KEYS[factor]):
            tile = AttentionTile(warps, parts, count, depth, columns, factor)
            fits = tile.shared_bytes <= SHARED_BYTES and count // 2 + columns // 2 < _REGISTERS
            needed = tile.keys_of_block == step or tile.keys_of_block // 2 < keys
            if fits and needed and count % step == 0:
                return tile
    raise ValueError(f"{factor} attention with heads of {widths} does not fit into shared memory")


def _divisors(number: int) -> list[int]:
    """The powers of two up to a power of two, the greatest first."""
    return [number >> shift for shift in range(number.bit_length())]
