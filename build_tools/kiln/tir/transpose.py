"""Transposing square blocks in vector registers, for kernels that pack an operand at run time; sums of lanes.

A block of L x L elements takes L loads, L log2 L shuffles of two vectors and L stores: at step s, for s = 1,
2, 4, …, the blocks of size s off the diagonal are swapped. Element by element it would take L * L loads and L
* L stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.extents import Extent
from kiln.tir.builder import int64, load, registers, store
from kiln.tir.vector_expr import ramp


def transpose_block(
    source: Any,
    start: Expr,
    source_step: Extent,
    target: Any,
    target_start: Expr,
    target_step: int,
    lanes: int,
) -> None:
    """Write target[at + j * target_step + i] = source[start + i * source_step + j] for i, j < lanes."""
    every_lane = ramp(int64(0), lanes)
    for j, row in enumerate(transposed_rows(source, start, source_step, lanes)):
        store(target, [ramp(target_start + int64(j * target_step), lanes)], load(row, [every_lane]))


def transposed_rows(source: Any, start: Expr, source_step: Extent, lanes: int) -> list[Any]:
    """Registers of `lanes` elements: element i of register j is source[start + i * source_step + j]."""
    every_lane = ramp(int64(0), lanes)

    def in_register(value: Expr) -> Any:
        """Store `value` in a register: an expression would be copied to every use."""
        register = registers([lanes], str(source.dtype))
        store(register, [every_lane], value)
        return register

    rows = [
        in_register(load(source, [ramp(start + int64(i) * int64(source_step), lanes)])) for i in range(lanes)
    ]
    step = 1
    while step < lanes:
        low = [lane if not lane & step else lanes + lane - step for lane in range(lanes)]
        high = [lane + step if not lane & step else lanes + lane for lane in range(lanes)]
        for i in range(lanes):
            if not i & step:
                pair = [load(rows[i], [every_lane]), load(rows[i + step], [every_lane])]
                rows[i], rows[i + step] = in_register(_shuffle(pair, low)), in_register(_shuffle(pair, high))
        step *= 2
    return rows


def sums_of_lanes(vectors: Sequence[Any], lanes: int) -> list[Any]:
    """Registers of `lanes` elements that hold, one after the other, the sum over the lanes of each vector.

    `vectors`: registers of `lanes` elements, which is a power of two. Lanes after the last sum are undefined.
    """
    every_lane = ramp(int64(0), lanes)
    results = []
    for first in range(0, len(vectors), lanes):
        held = list(vectors[first : first + lanes])
        step = 1
        while step < lanes:
            pairs = [
                (load(one, [every_lane]), load(other, [every_lane]))
                for one, other in zip(held[::2], [*held[1::2], held[-1]], strict=False)
            ]
            low = [lane if not lane & step else lanes + lane - step for lane in range(lanes)]
            high = [lane + step if not lane & step else lanes + lane for lane in range(lanes)]
            held = []
            for pair in pairs:
                register = registers([lanes], str(vectors[0].dtype))
                store(register, [every_lane], _shuffle(list(pair), low) + _shuffle(list(pair), high))
                held.append(register)
            step *= 2
        results += held
    return results


def _shuffle(vectors: list[Expr], picks: list[int]) -> Expr:
    """A vector of the lanes `picks` of the concatenated `vectors`."""
    return tirx.Shuffle(vectors, [tirx.IntImm("int32", pick) for pick in picks])
