"""The packing of int8 weights for kernels/cpu/gemm_dot.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.gemm_tile import Loop, Tile
from kiln.tir.builder import Array, padded

QUAD = 4  # values of k in a 32-bit word of x
BLOCK = 16  # values of k in a vector of x
_GREATEST_OFFSET = 255  # of a lane of a gathered vector
BYTE_BIAS = 128  # is added to the weights of method `bytes`


@dataclass(frozen=True)
class Slot:
    """Two values of k that one step of a run multiplies: `first` and `second`, offsets in the run.

    An offset of -1: no value; its weight is zero. `word`: offset of the four bytes of x that hold them,
    at their places 0 and 2 or 1 and 3; -1: they are loaded byte by byte.
    """

    first: int
    second: int
    word: int = -1


def slots_of(run: int, wide: bool = False) -> tuple[int, list[Slot]]:
    """The number of whole quads of a run of `run` values, and the slots of the values after them.

    `wide`: of values of 16 bits, two of which are a word.
    """
    quads, rest = divmod(run, QUAD)
    offset = quads * QUAD
    if wide:
        pairs = [Slot(k, k + 1 if k + 1 < run else -1) for k in range(offset, run, 2)]
        return quads, pairs
    if rest == 3 and quads:
        return quads, [Slot(-1, offset + 1, run - QUAD), Slot(offset, offset + 2, run - QUAD)]
    if rest == 3:
        return quads, [Slot(0, 1), Slot(2, -1)]
    return quads, [Slot(offset, offset + 1 if rest == 2 else -1)] if rest else []


def blocks_of(offsets: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The values of a short reduction, by vectors of x, each with as many as one instruction can gather."""
    blocks: list[tuple[int, ...]] = []
    for offset in offsets:
        if blocks and len(blocks[-1]) < BLOCK and 0 <= offset - blocks[-1][0] <= _GREATEST_OFFSET:
            blocks[-1] += (offset,)
        else:
            blocks.append((offset,))
    return blocks


@dataclass(frozen=True)
class DotPacking:
    """An int8 matmul by `method` (see gemm_dot.py), and how its weights are packed.

    `runs`: the reduction over x, innermost loop contiguous. `signed`: whether x is int8. `shared`: whether
    two columns share the words of their weights. `offsets`: in x, of the values of a short reduction; empty
    for others, which `runs` describes. `wide`: whether x is int16. `rolled`: whether the loop over the blocks
    of a run stays a loop.
    """

    method: str
    tile: Tile
    runs: tuple[Loop, ...]
    signed: bool
    shared: bool
    arrangement: str
    offsets: tuple[int, ...] = ()
    head_lanes: int = 0
    wide: bool = False
    rolled: bool = False

    @property
    def block(self) -> int:
        """Values of k in a vector of x."""
        return BLOCK // 2 if self.wide else BLOCK

    @property
    def run(self) -> int:
        """Contiguous values of x in the innermost loop of the reduction; all those of a short reduction."""
        return len(self.offsets) or self.runs[-1].extent

    @property
    def run_bytes(self) -> int:
        """Packed bytes of one run of one panel."""
        if self.method != "smlad":
            return self.run * self.tile.columns
        quads, rest = slots_of(self.run, self.wide)
        return (2 * quads + len(rest)) * 2 * self.tile.columns

    @property
    def panel_bytes(self) -> int:
        """Bytes of one packed panel."""
        if self.offsets:  # the last vector of weights is read in full
            beyond = BLOCK - len(blocks_of(self.offsets)[-1]) if self.method == "vmladava" else 0
            return ceil_div(self.run_bytes + beyond, 4) * 4
        return self.run_bytes * int(np.prod([loop.extent for loop in self.runs[:-1]], dtype=np.int64))

    @property
    def beyond(self) -> int:
        """Bytes after the last panel, so that the last vector of every run can be loaded in full."""
        return 0 if self.method != "vmladava" or self.offsets else -self.run % self.block

    @property
    def limit(self) -> int:
        """Greatest number of products whose sum always fits 24 bits."""
        return 508 if self.signed else 256

    def pack(self, weights: Array) -> Array:
        """Pack weights [K, N] as described under `Packing`, flat, int8."""
        full = padded(weights, 1, self.tile.columns)
        panels = full.reshape(-1, self.run, full.shape[1] // self.tile.columns, self.tile.columns)
        panels = panels.transpose(2, 0, 1, 3)  # panel, run, k, column
        if self.method == "bytes":
            return np.ascontiguousarray(panels.view("uint8") + np.uint8(BYTE_BIAS)).view("int8").reshape(-1)
        if self.method != "smlad" and self.offsets:
            pieces = [panels.swapaxes(2, 3)]
        elif self.method != "smlad":
            cuts = range(0, self.run, self.block)
            pieces = [panels[:, :, cut : cut + self.block].swapaxes(2, 3) for cut in cuts]
        else:
            pieces = self._words(panels)
        flat = np.concatenate([piece.reshape(*piece.shape[:2], -1) for piece in pieces], axis=2)
        flat = flat.reshape(flat.shape[0], -1)
        flat = np.pad(flat, [(0, 0), (0, self.panel_bytes - flat.shape[1])])
        return np.ascontiguousarray(flat).reshape(-1)

    def _words(self, panels: Array) -> list[Array]:
        """The packed groups of every run: a quad, or a slot of the rest; [panel, run, pair, slot, 4] each."""
        quads, rest = slots_of(self.run, self.wide)
        groups = [
            [Slot(offset, offset + 1), Slot(offset + 2, offset + 3)]
            if self.wide
            else [Slot(offset, offset + 2), Slot(offset + 1, offset + 3)]
            for offset in range(0, quads * QUAD, QUAD)
        ] + ([rest] if rest else [])  # fmt: skip
        beyond = np.zeros_like(panels[:, :, :1])
        values = np.concatenate([panels, beyond], axis=2)  # k = -1 has zero weights
        result = []
        for group in groups:
            chosen = values[:, :, [[slot.first, slot.second] for slot in group]]  # …, slot, half, column
            pairs = chosen.reshape(*chosen.shape[:4], -1, 2).transpose(0, 1, 4, 2, 3, 5)
            if self.shared:
                low, high = pairs[..., 0], pairs[..., 1]
                pairs = np.stack([low, high - (low < 0).astype("int8")], axis=-1)
            result.append(pairs)
        return result
