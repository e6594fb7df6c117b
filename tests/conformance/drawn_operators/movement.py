"""Operators that move elements: shapes, parts, indices, joins, and generators of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from .draw import Draw, Maker, Node

TYPES = ("float32", "float32", "int64", "bool", "uint8", "float64", "float16", "int32")


def reshape(d: Draw) -> Node:
    shape = d.shape(0, 4, 1, 4)
    total = list(shape)
    if len(total) > 1 and d.chance():
        at = d.number(0, len(total) - 2)
        total[at : at + 2] = [total[at] * total[at + 1]]
    for _ in range(d.number(0, 2)):
        total.insert(d.number(0, len(total)), 1)
    if total and d.chance(0.7):
        total[d.number(0, len(total) - 1)] = -1
    for at, size in enumerate(shape[: len(total)]):
        if total[at] == size and d.chance(0.5):
            total[at] = 0
    return d.node(d.data(d.values(shape, d.pick(TYPES))), d.size_input(total, "int64"))


def transpose(d: Draw) -> Node:
    shape = d.shape(0, 6, 1, 4)
    order = [int(axis) for axis in d.rng.permutation(len(shape))]
    return d.node(d.data(d.values(shape, d.pick(TYPES))), **(d.some(perm=order) if order else {}))


def flatten(d: Draw) -> Node:
    shape = d.shape(0, 5)
    least = -len(shape) if d.opset >= 11 else 0
    return d.node(d.data(d.values(shape)), **d.some(axis=d.number(least, len(shape))))


def squeeze(d: Draw) -> Node:
    shape = [1 if d.chance(0.5) else d.size() for _ in range(d.number(0, 5))]
    ones = [at for at, size in enumerate(shape) if size == 1]
    axes = [at - (len(shape) if d.chance(0.4) else 0) for at in ones if d.chance(0.7)]
    x = d.data(d.values(shape, d.pick(TYPES)))
    if not axes:
        return d.node(x)
    if d.opset < 13:
        axes = axes if d.opset >= 11 else [axis % len(shape) for axis in axes]
        return d.node(x, axes=axes)
    return d.node(x, d.size_input(axes))


def unsqueeze(d: Draw) -> Node:
    shape = d.shape(0, 4)
    rank = len(shape) + d.number(1, 2)
    axes = [int(axis) for axis in d.rng.permutation(rank)[: rank - len(shape)]]
    x = d.data(d.values(shape, d.pick(TYPES)))
    if d.opset >= 11:
        axes = [axis - (rank if d.chance(0.4) else 0) for axis in axes]
    return d.node(x, axes=axes) if d.opset < 13 else d.node(x, d.size_input(axes))


def slice_(d: Draw) -> Node:
    shape = d.shape(1, 5, 1, 7)
    axes = d.axes(len(shape), 1)
    starts = [d.number(-8, 8) for _ in axes]
    ends = [d.pick((d.number(-8, 8), 2**31 - 1, -(2**31), 100)) for _ in axes]
    x = d.data(d.values(shape, d.pick(TYPES)))
    if d.opset < 10:
        return d.node(x, starts=starts, ends=ends, axes=[axis % len(shape) for axis in axes])
    steps = [d.pick((1, 1, 2, 3, -1, -2)) for _ in axes]
    # To ONNX Runtime the greatest end means the other one where a step is negative.
    ends = [100 if step < 0 and end > 100 else end for end, step in zip(ends, steps, strict=True)]
    kind = d.pick(("int64", "int32"))
    parts = [d.size_input(value, kind) for value in (starts, ends, axes, steps)]
    if d.chance(0.2):
        parts = parts[:3]
    elif d.chance(0.2) and len(axes) == len(shape):
        parts[2] = None
    return d.node(x, *parts)


def gather(d: Draw) -> Node:
    shape = d.shape(1, 4)
    axis = d.axis(len(shape)) if d.opset >= 11 else d.number(0, len(shape) - 1)
    size = shape[axis % len(shape)]
    least = -size if d.opset >= 11 else 0
    indices = d.indices(d.shape(0, 3), least, size - 1, d.pick(("int64", "int32")))
    x = d.values(shape, d.pick(TYPES))
    if d.chance(0.3):
        return d.node(
            d.constant(x), d.data(indices), **d.some(axis=axis) if axis % len(shape) == 0 else {"axis": axis}
        )
    return d.node(d.data(x), d.either(indices), axis=axis)


def gather_elements(d: Draw) -> Node:
    shape = d.shape(1, 4)
    axis = d.axis(len(shape))
    size = shape[axis % len(shape)]
    other = tuple(d.number(1, 4) if at == axis % len(shape) else length for at, length in enumerate(shape))
    indices = d.indices(other, -size, size - 1, d.pick(("int64", "int32")))
    return d.node(d.data(d.values(shape, d.pick(TYPES))), d.either(indices), axis=axis)


def _nd_indices(d: Draw, shape: tuple[int, ...], batch: int, unique: bool) -> Any:
    """Indices of the first axes after the batch; unique: no element twice."""
    depth = d.number(1, len(shape) - batch)
    sizes = shape[batch : batch + depth]
    if unique:
        count = min(d.number(1, 4), int(np.prod(sizes)))
        flat = d.order(int(np.prod(sizes)))[:count]
        return np.stack(np.unravel_index(flat, sizes), -1).astype("int64")
    lead = (*shape[:batch], *d.shape(0 if batch else 1, 2, 1, 3))
    parts = [d.indices(lead, -size, size - 1) for size in sizes]
    return np.stack(parts, -1).astype("int64")


def gather_nd(d: Draw) -> Node:
    shape = d.shape(1, 4)
    batch = d.number(0, len(shape) - 1) if d.opset >= 12 and d.chance() else 0
    indices = _nd_indices(d, shape, batch, False)
    return d.node(
        d.data(d.values(shape, d.pick(TYPES))), d.either(indices), **({"batch_dims": batch} if batch else {})
    )


def scatter_elements(d: Draw) -> Node:
    shape = d.shape(1, 4)
    axis = d.axis(len(shape))
    size = shape[axis % len(shape)]
    kinds: tuple[str, ...] = ("none",)
    if d.opset >= 16 and d.operator == "ScatterElements":
        kinds = ("none", "add", "mul") + (("max", "min") if d.opset >= 18 else ())
    reduction = d.pick(kinds)
    count = d.number(1, size) if reduction == "none" else d.number(1, 5)
    other = tuple(
        count if at == axis % len(shape) else max(1, length - d.number(0, 1))
        for at, length in enumerate(shape)
    )
    indices = d.indices(other, -size, size - 1)
    if reduction == "none":
        row = d.order(size)[:count].reshape(
            [-1 if at == axis % len(shape) else 1 for at in range(len(shape))]
        )
        indices = np.broadcast_to(row, other).astype("int64")
    dtype = d.pick(("float32", "float32", "int64", "int32", "float64"))
    x, updates = d.values(shape, dtype), d.values(other, dtype)
    return d.node(
        d.data(x), d.either(indices), d.either(updates, data=0.7), axis=axis,
        reduction=reduction if reduction != "none" else None,
    )  # fmt: skip


def scatter_nd(d: Draw) -> Node:
    shape = d.shape(1, 4)
    kinds: tuple[str, ...] = ("none",)
    if d.opset >= 16:
        kinds = ("none", "add", "mul") + (("max", "min") if d.opset >= 18 else ())
    reduction = d.pick(kinds)
    indices = _nd_indices(d, shape, 0, reduction == "none")
    dtype = d.pick(("float32", "float32", "int64", "int32", "float64", "bool"))
    if reduction != "none" and dtype == "bool":
        dtype = "float32"
    updates = d.values((*indices.shape[:-1], *shape[indices.shape[-1] :]), dtype)
    return d.node(
        d.data(d.values(shape, dtype)), d.either(indices), d.either(updates, data=0.7),
        reduction=reduction if reduction != "none" else None,
    )  # fmt: skip


def pad(d: Draw) -> Node:
    shape = d.shape(1, 5, 3, 5)
    mode = d.pick(("constant", "edge", "reflect") + (("wrap",) if d.opset >= 19 else ()))
    low = -1 if mode == "constant" or d.chance(0.2) else 0
    axes = d.axes(len(shape), 1) if d.opset >= 18 and d.chance() else None
    count = len(axes) if axes else len(shape)
    pads = [d.number(low, 2) for _ in range(2 * count)]
    if d.opset < 11:
        return d.node(d.data(d.values(shape)), pads=pads, **d.some(mode=mode, value=d.real(-2, 2)))
    dtype = d.pick(("float32", "float32", "int32", "float64", "int64"))
    value = (
        d.either(np.asarray(d.number(-5, 5), dtype), data=0.3) if d.chance() and mode == "constant" else None
    )
    operands = [d.size_input(pads), value]
    if axes:
        operands.append(d.size_input(axes))
    return d.node(d.data(d.values(shape, dtype)), *operands, mode=mode)


def tile(d: Draw) -> Node:
    shape = d.shape(1, 5, 1, 4)
    return d.node(d.data(d.values(shape, d.pick(TYPES))), d.size_input([d.number(1, 3) for _ in shape]))


def expand(d: Draw) -> Node:
    from .elementwise import part_of

    full_shape = d.shape(0, 5)
    x = d.values(part_of(d, full_shape), d.pick(TYPES))
    target = [1 if d.chance(0.2) else size for size in full_shape]
    return d.node(d.data(x), d.size_input(target, "int64"))


def concat(d: Draw) -> Node:
    shape = list(d.shape(1, 5))
    axis = d.axis(len(shape)) if d.opset >= 11 else d.number(0, len(shape) - 1)
    dtype, parts = d.pick(TYPES), []
    for _ in range(d.number(1, 4)):
        shape[axis] = d.size(1, 4)
        parts.append(d.values(shape, dtype))
    return d.node(d.data(parts[0]), *(d.either(part, data=0.7) for part in parts[1:]), axis=axis)


def split(d: Draw) -> Node:
    shape = list(d.shape(1, 4))
    axis = d.axis(len(shape)) if d.opset >= 11 else d.number(0, len(shape) - 1)
    parts = [d.number(1, 3) for _ in range(d.number(1, 4))]
    even = d.chance(0.4)
    if even:
        parts = [parts[0]] * len(parts)
    shape[axis] = sum(parts)
    if even and d.opset >= 18 and d.chance():
        shape[axis] = max(len(parts), shape[axis] - 1)  # the last part is smaller
    x = d.data(d.values(shape, d.pick(TYPES)))
    if even and d.opset >= 18:
        return d.node(x, outputs=len(parts), axis=axis, num_outputs=len(parts))
    if even and d.chance():
        return d.node(x, outputs=len(parts), axis=axis)
    if d.opset < 13:
        return d.node(x, outputs=len(parts), axis=axis, split=parts)
    return d.node(x, d.size_input(parts), outputs=len(parts), axis=axis)


def blocks(d: Draw) -> Node:
    block = d.number(1, 3)
    batch, depth, h, w = d.size(1, 3), d.number(1, 3), d.size(1, 4), d.size(1, 4)
    if d.operator == "DepthToSpace":
        shape = (batch, depth * block * block, h, w)
        mode = d.pick(("DCR", "CRD")) if d.opset >= 11 else None
        return d.node(d.data(d.values(shape)), blocksize=block, mode=mode)
    return d.node(d.data(d.values((batch, depth, h * block, w * block))), blocksize=block)


def reverse_sequence(d: Draw) -> Node:
    shape = d.shape(2, 4, 1, 5)
    batch = d.number(0, 1)
    lengths = d.indices((shape[batch],), 1, shape[1 - batch])
    return d.node(d.data(d.values(shape)), d.either(lengths), batch_axis=batch, time_axis=1 - batch)


def trilu(d: Draw) -> Node:
    shape = d.shape(2, 4)
    k = d.either(np.asarray(d.number(-4, 4)), data=0.4) if d.chance(0.7) else None
    return d.node(d.data(d.values(shape, d.pick(TYPES))), k, **d.some(upper=d.number(0, 1)))


def shape_(d: Draw) -> Node:
    shape = d.shape(0, 5)
    attributes = {}
    if d.opset >= 15 and d.operator == "Shape":
        attributes = d.some(start=d.number(-6, 6), end=d.number(-6, 6))
    return d.node(d.data(d.values(shape, d.pick(TYPES))), **attributes)


def center_crop_pad(d: Draw) -> Node:
    shape = d.shape(1, 4, 1, 7)
    axes = d.axes(len(shape), 1) if d.chance() else None
    target = [d.number(1, 8) for _ in (axes or shape)]
    return d.node(d.data(d.values(shape)), d.size_input(target), axes=axes)


def tensor_scatter(d: Draw) -> Node:
    batch, heads, length, width = d.size(1, 3), d.size(1, 3), d.number(4, 7), d.size(1, 4)
    count = d.number(1, 3)
    mode = d.pick(("linear", "circular"))
    where = d.indices((batch,), 0, length - count if mode == "linear" else length - 1)
    return d.node(
        d.data(d.values((batch, heads, length, width))), d.data(d.values((batch, heads, count, width))),
        d.either(where), axis=2, mode=mode,
    )  # fmt: skip


MAKERS: dict[str, Maker] = {
    "Reshape": reshape, "Transpose": transpose, "Flatten": flatten, "Squeeze": squeeze,
    "Unsqueeze": unsqueeze, "Slice": slice_, "Gather": gather, "GatherElements": gather_elements,
    "GatherND": gather_nd, "ScatterElements": scatter_elements, "Scatter": scatter_elements,
    "ScatterND": scatter_nd, "Pad": pad, "Tile": tile, "Expand": expand, "Concat": concat, "Split": split,
    "DepthToSpace": blocks, "SpaceToDepth": blocks, "ReverseSequence": reverse_sequence, "Trilu": trilu,

    "Shape": shape_, "Size": shape_, "CenterCropPad": center_crop_pad,
 "TensorScatter": tensor_scatter,
}  # fmt: skip
