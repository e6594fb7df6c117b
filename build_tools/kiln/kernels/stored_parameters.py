"""Gives a kernel that reads a constant stored in few bits a parameter for each of its tensors.

These are levels and scales.

Families read these constants like others: `load` of tir/builder.py widens elements (tir/stored.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kiln.tir.builder import Kernel, Pack, Packing
from kiln.tir.fused import Fused


def with_stored_parameters(kernel: Kernel, buffers: list[Any], fused: Fused) -> tuple[Kernel, list[Any]]:
    """A kernel and its buffers, with a buffer for each stored tensor of a constant in fewer bits."""
    names = [param.name for param in kernel.func.params]
    positions: list[int] = []  # new position of each buffer
    buffers_found: list[Any] = []
    packs: dict[int, Pack] = {}
    labels: dict[int, str] = {}
    for buffer in buffers:
        positions.append(len(buffers_found))
        table = fused.tables.get(buffer)
        stored_parts = [] if table is None else table.parts()
        packed = len(positions) - 1 in kernel.packs
        names_stored_tensors = (
            len(stored_parts) > 0
            and not packed
            and _names_parts(kernel, names, len(buffers_found), stored_parts, buffer)
        )
        if table is not None and names_stored_tensors:
            packs |= {len(buffers_found) + number: pack for number, pack in enumerate(table.packs())}
            labels |= {len(buffers_found) + number: label for number, label in enumerate(table.labels())}
            buffers_found += [buffer] * len(stored_parts)
        else:
            buffers_found.append(buffer)
    if not packs:
        return kernel, buffers
    moved = {positions[index]: pack for index, pack in kernel.packs.items()} | packs
    labels |= {positions[index]: label for index, label in kernel.labels.items()}
    in_place = tuple(positions[index] for index in kernel.in_place)
    tables = [fused.tables[buffer] for buffer in buffers if buffer in fused.tables]
    stored = tuple((table.encoding, table.shape) for table in tables)
    packing = replace(kernel.packing or Packing(0), tables=stored)
    return replace(kernel, packs=moved, labels=labels, in_place=in_place, packing=packing), buffers_found


def _names_parts(
    kernel: Kernel, names: list[str], first: int, parts: Sequence[tuple[str, str, int]], buffer: Any
) -> bool:
    """Whether the parameters of `kernel` from `first` on are the stored tensors `parts` of `buffer`."""
    types = [str(param.dtype) for param in kernel.func.params[first : first + len(parts)]]
    return types == [dtype for _, dtype, _ in parts] and names[first] == buffer.name
