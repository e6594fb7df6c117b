"""Makes the sparse constants of a TFLite file dense.

A sparse tensor is stored level by level: first to last, the axes of the tensor and of its blocks in the order
that the file gives. A dense level has all its indices; a compressed one has for each index of the level
before a segment of indices. The stored values are the elements that the last level reaches, in order; all
other elements are zeros.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.errors import KilnError
from kiln.frontend.tflite.files import Kinds, indices, make_constant, packed, text_of, unpacked


def without_sparsity(path: Path, content: bytes) -> bytes:
    """The file `content` with all constants dense.

    Raises KilnError for a sparse tensor that is damaged, or whose elements are smaller than a byte.
    """
    schema, model = unpacked(path, content)
    kinds, changed = Kinds(schema, model), False
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            if tensor.sparsity is None:
                continue
            try:
                dense = _dense(tensor, model.buffers[tensor.buffer], kinds.dtype(tensor))
            except (IndexError, TypeError, ValueError) as error:
                name = text_of(tensor.name)
                raise KilnError(f"{path}: tensor '{name}' is sparse and cannot be read: {error}") from error
            make_constant(schema, model, tensor, dense)
            tensor.sparsity = None
            changed = True
    return packed(model) if changed else content


def _dense(tensor: Any, buffer: Any, dtype: np.dtype[Any] | None) -> Array:
    """All elements of a sparse tensor."""
    sparsity, shape = tensor.sparsity, indices(tensor.shape)
    if dtype is None or buffer.data is None:
        raise ValueError("its type or its values are unknown")
    order, levels = indices(sparsity.traversalOrder), sparsity.dimMetadata or []
    blocks = indices(sparsity.blockMap)
    if sorted(order) != list(range(len(shape) + len(blocks))) or len(levels) != len(order):
        raise ValueError(f"its levels are {order}, of {len(shape)} axes and {len(blocks)} blocks")
    tuple_positions = np.zeros(1, np.int64)  # of each index tuple so far, in the level
    index_of_axis: dict[int, Array] = {}  # by expanded axis, the index of each tuple
    for axis, level in zip(order, levels, strict=True):
        if int(level.format) == 0:
            size = int(level.denseSize)
            if not 0 < size * len(tuple_positions) <= math.prod(shape):
                raise ValueError(
                    f"it has {size * len(tuple_positions)} places for {math.prod(shape)} elements"
                )
            repeats, chosen = (
                np.full(len(tuple_positions), size),
                np.tile(np.arange(size), len(tuple_positions)),
            )
            following = np.repeat(tuple_positions, size) * size + chosen
        else:
            segments, all_chosen = _numbers(level.arraySegments), _numbers(level.arrayIndices)
            first, last = segments[tuple_positions], segments[tuple_positions + 1]
            repeats = last - first
            starts = np.cumsum(repeats) - repeats
            following = np.repeat(first - starts, repeats) + np.arange(int(repeats.sum()))
            chosen = all_chosen[following]
        index_of_axis = {axis: np.repeat(values, repeats) for axis, values in index_of_axis.items()}
        index_of_axis[axis], tuple_positions = chosen, following
    values = np.frombuffer(bytes(bytearray(buffer.data)), dtype)
    indices_of_original = []
    for axis in range(len(shape)):
        index = index_of_axis[axis]
        for number, blocked in enumerate(blocks):
            if blocked == axis:
                inner = len(shape) + number
                index = index * int(levels[order.index(inner)].denseSize) + index_of_axis[inner]
        indices_of_original.append(index)
    dense = np.zeros(shape, dtype)
    dense[tuple(indices_of_original)] = values[tuple_positions]
    return dense


def _numbers(vector: Any) -> Array:
    return np.asarray(vector.values if vector is not None else [], np.int64)
