"""The packing of int8 weights for kernels/cpu/gemm_int8.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kiln.config.sizes import ceil_div
from kiln.kernels.cpu.gemm_tile import Loop, Tile
from kiln.tir.builder import Array, padded

GROUP = 4  # values of k in a group


@dataclass(frozen=True)
class IntegerPacking:
    """An int8 matmul by one method of gemm_int8.py, and how its weights are packed.

    `runs`: the reduction over x, innermost loop over contiguous bytes. `shift`: added to x: 128, -128 or 0.
    `head_lanes`: sums in the vector of bits to flip with which a panel begins; 0: panels have no head.
    `head_shift`: the shift that the head undoes. `arrangement`: "groups" as under `Packing` of gemm_int8.py,
    or "halves": of four columns the first two products of a group, then the other two.
    `wide`: weights of -128 occur, so that two products may not fit 16 bits.
    """

    method: str
    arm32: bool
    tile: Tile
    runs: tuple[Loop, ...]
    shift: int
    head_lanes: int
    head_shift: int
    arrangement: str
    wide: bool = False

    @property
    def run(self) -> int:
        """Contiguous bytes of x in the innermost loop of the reduction."""
        return self.runs[-1].extent

    @property
    def beyond(self) -> int:
        """Bytes after the last panel: none, as no load passes the end of a panel."""
        return 0

    @property
    def groups(self) -> int:
        """Groups of four values of k in the whole reduction."""
        groups_of_all = ceil_div(self.run, GROUP)
        for loop in self.runs[:-1]:
            groups_of_all *= loop.extent
        return groups_of_all

    @property
    def panel_bytes(self) -> int:
        """Bytes of one packed panel."""
        return self.head_bytes + GROUP * self.tile.columns * self.groups

    @property
    def head_bytes(self) -> int:
        """Bytes of a panel before its weights: bits to flip in a vector of x, one int32 sum per column."""
        return GROUP * (self.head_lanes + self.tile.columns) if self.head_lanes else 0

    def place_of_vector(self, number: int) -> tuple[int, int]:
        """The place of a tile's vector `number` of columns: its panel, and the bytes before it in a group.

        Panels are counted from the tile's first one.
        """
        panel, inside = divmod(number, self.tile.vectors)
        return panel, inside * GROUP * self.tile.lanes

    def pack(self, weights: Array) -> Array:
        """Pack weights [K, N] as [panel][head, then group][NR][4], flat, int8."""
        full = padded(weights, 1, self.tile.columns)
        columns = full.shape[1]
        runs = full.reshape(-1, self.run, columns)
        remainder = self.run % GROUP
        if remainder:
            last = np.zeros((runs.shape[0], GROUP, columns), "int8")
            last[:, GROUP - remainder :] = runs[:, self.run - remainder :]
            runs = np.concatenate([runs[:, : self.run - remainder], last], axis=1)
        grouped = runs.reshape(self.groups, GROUP, columns // self.tile.columns, self.tile.columns)
        panels = grouped.transpose(2, 0, 3, 1)
        if self.arrangement == "halves":
            pairs = panels.reshape(*panels.shape[:2], self.tile.columns // 4, 4, 2, 2)
            panels = pairs.transpose(0, 1, 2, 4, 3, 5)
        flat = panels.reshape(panels.shape[0], -1)
        if self.head_lanes:
            undo = (-self.head_shift * full.sum(axis=0, dtype="int32")).astype("<i4")
            head = undo.reshape(-1, self.tile.columns).view("int8")
            flip = np.full((head.shape[0], GROUP * self.head_lanes), -128, "int8")
            flat = np.concatenate([flip, head, flat], axis=1)
        return np.ascontiguousarray(flat).reshape(-1)
