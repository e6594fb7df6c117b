"""Converters of ONNX operators that read or write elements at positions that other tensors give.

Converters have the interface of kiln.frontend.onnx.ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper
from tvm import DataType, relax, te, tirx

from kiln.frontend.onnx.integer_resize import clipped, wide_type
from kiln.frontend.onnx.node import Node, shape_expr
from kiln.frontend.rows_written import rows_written

op = relax.op
_MOST_ROWS = 32  # of a determinant, whose elimination is unrolled


def bit_cast(node: Node) -> Any:
    """BitCast between types of the same number of bits."""
    dtype = str(helper.tensor_dtype_to_np_dtype(int(node.attributes["to"])))
    x = node.tensor(0)
    source_dtype = str(x.ty.dtype)
    if "bool" in (dtype, source_dtype):
        return op.astype(x, dtype)
    if DataType(dtype).bits != DataType(source_dtype).bits:
        raise ValueError(f"a cast from {source_dtype} to {dtype}, allowed: types of the same number of bits")

    def compute(data: Any) -> Any:
        return te.compute(
            data.shape, lambda *indices: tirx.reinterpret(dtype, data(*indices)), name="bit_cast"
        )

    return node.builder.emit_te(compute, x, primfunc_name_hint="bit_cast")


def tensor_scatter(node: Node) -> Any:
    """TensorScatter: `update` replaces elements of a cache, for each batch from its `write_indices` on."""
    shape, attributes = node.shape(0), node.attributes
    axis, mode = int(attributes.get("axis", -2)) % len(shape), attributes.get("mode", b"linear")
    circular = (mode.decode() if isinstance(mode, bytes) else str(mode)) == "circular"
    size, count = shape[axis], node.shape(1)[axis]
    emit = node.builder.emit
    write_indices = node.tensor(2) if node.has(2) else op.zeros(shape_expr([shape[0]]), "int64")
    starts = emit(op.astype(write_indices, "int64"))
    if all(isinstance(extent, int) for extent in (*shape, *node.shape(1))):
        offsets = relax.const(np.arange(count), "int64")
        begin = emit(op.reshape(starts, [shape[0]] + [1] * axis))
        positions = emit(op.add(begin, offsets))
        if circular:
            positions = emit(op.floor_mod(positions, relax.const(size, "int64")))
        rows = rows_written(emit, node.tensor(0), node.tensor(1), {axis: positions}, (shape, node.shape(1)))
        if rows is not None:
            return rows

    def compute(cache: Any, update: Any, begin: Any) -> Any:
        def element(*indices: Any) -> Any:
            offset = indices[axis].astype("int64") - begin(indices[0])
            if circular:
                offset = tirx.floormod(offset, size)
            inside = tirx.all(offset >= 0, offset < count)
            position = tirx.max(tirx.min(offset, tirx.const(count - 1, "int64")), tirx.const(0, "int64"))
            # Not a selection: TVM drops the clamps where the condition implies them, and then both are read.
            return tirx.if_then_else(
                inside, update(*indices[:axis], position, *indices[axis + 1 :]), cache(*indices)
            )

        return te.compute(cache.shape, element, name="tensor_scatter")

    return node.builder.emit_te(
        compute, node.tensor(0), node.tensor(1), starts, primfunc_name_hint="tensor_scatter"
    )


def det(node: Node) -> Any:
    """Det: by Gaussian elimination with the greatest element of a column as pivot."""
    *outer, rows, columns = node.shape(0)
    if not isinstance(rows, int) or rows != columns or rows > _MOST_ROWS:
        raise ValueError(f"a matrix of {rows} x {columns}, allowed: square, with at most {_MOST_ROWS} rows")
    emit, dtype = node.builder.emit, str(node.tensor(0).ty.dtype)
    count = node.symbols.product(outer)
    matrices = emit(op.reshape(node.tensor(0), shape_expr([count, rows, rows])))
    product, zero, unit = relax.const(1.0, dtype), relax.const(0.0, dtype), relax.const(1.0, dtype)
    for size in range(rows, 0, -1):
        column = emit(op.strided_slice(matrices, [2], [0], [1]))
        pivot_row = emit(op.argmax(emit(op.abs(column)), 1, keepdims=True))  # [count, 1, 1]
        pivot_rows = emit(op.broadcast_to(pivot_row, shape_expr([count, 1, size])))
        pivots = emit(op.gather_elements(matrices, pivot_rows, 1))
        pivot = emit(op.strided_slice(pivots, [2], [0], [1]))
        swapped = emit(op.where(op.equal(pivot_row, relax.const(0, "int64")), pivot, op.negative(pivot)))
        product = emit(op.multiply(product, swapped))
        if size == 1:
            break
        first = emit(op.strided_slice(matrices, [1], [0], [1]))
        number = relax.const(np.arange(size).reshape(1, size, 1), "int64")
        matrices = emit(op.where(emit(op.equal(number, pivot_row)), first, matrices))
        rows_below = emit(op.strided_slice(matrices, [1], [1], [size]))
        divisor = emit(op.where(op.equal(pivot, zero), unit, pivot))
        factor = emit(op.divide(emit(op.strided_slice(rows_below, [2], [0], [1])), divisor))
        reduced = emit(op.subtract(rows_below, op.multiply(factor, pivots)))
        matrices = emit(op.strided_slice(reduced, [2], [1], [size]))
    return op.reshape(product, shape_expr(outer))


def max_unpool(node: Node) -> Any:
    """MaxUnpool: elements at the flat positions that a MaxPool returned, zeros elsewhere."""
    emit, attributes, (batch, channels, *image) = node.builder.emit, node.attributes, node.shape(0)
    rank = len(image)
    kernel = [int(size) for size in attributes["kernel_shape"]]
    strides = [int(size) for size in attributes.get("strides") or [1] * rank]
    pads = [int(size) for size in attributes.get("pads") or [0] * 2 * rank]
    sizes = [(size - 1) * strides[i] + kernel[i] - pads[i] - pads[rank + i] for i, size in enumerate(image)]
    shape = [batch, channels, *sizes]
    dtype, total = str(node.tensor(0).ty.dtype), node.symbols.product(shape)
    empty = emit(op.zeros(shape_expr([total]), dtype))
    flat = [
        emit(op.reshape(node.tensor(index), shape_expr([node.symbols.product(node.shape(0))])))
        for index in (1, 0)
    ]
    result = emit(op.reshape(emit(op.scatter_elements(empty, flat[0], flat[1], 0)), shape_expr(shape)))
    if not node.has(2):
        return result
    output_shape = node.known_elements(2)
    after = [node.symbols.simplify(b - a) for a, b in zip(shape, output_shape, strict=True)]
    if not all(isinstance(size, int) and size >= 0 for size in after):
        raise ValueError(f"its output_shape is {output_shape}, allowed: fixed, and at least {shape}")
    return op.nn.pad(result, [amount for size in after for amount in (0, size)])


def deform_conv(node: Node) -> Any:
    """DeformConv of images: bilinear samples at offsets, then a product for each group."""
    (batch, channels, height, width), (out, _, *kernel) = node.shape(0), node.shape(1)
    attributes, emit = node.attributes, node.builder.emit
    if len(kernel) != 2:
        raise ValueError(f"a kernel of {len(kernel)} axes, allowed: 2")
    strides, dilations = (list(attributes.get(key) or [1, 1]) for key in ("strides", "dilations"))
    pads = list(attributes.get("pads") or [0, 0, 0, 0])
    groups, shared = int(attributes.get("group", 1)), int(attributes.get("offset_group", 1))
    rows, columns = node.shape(2)[2:]
    channels_per_offset = channels // shared  # channels that share an offset
    dtype = str(node.tensor(0).ty.dtype)
    inputs = [node.tensor(0), node.tensor(2), *([node.tensor(4)] if node.has(4) else [])]

    def compute(data: Any, offset: Any, *mask: Any) -> Any:
        def number(value: Any) -> Any:
            return tirx.Cast(dtype, value)

        def element(n: Any, c: Any, ky: Any, kx: Any, row: Any, column: Any) -> Any:
            tap = (tirx.floordiv(c, channels_per_offset) * kernel[0] + ky) * kernel[1] + kx
            y = number(row * strides[0] - pads[0] + ky * dilations[0]) + offset(n, tap * 2, row, column)
            x = number(column * strides[1] - pads[1] + kx * dilations[1]) + offset(
                n, tap * 2 + 1, row, column
            )
            top, left = tirx.floor(y), tirx.floor(x)
            total: Any = tirx.const(0, dtype)
            for down in (0, 1):
                for across in (0, 1):
                    at_y, at_x = top + tirx.const(down, dtype), left + tirx.const(across, dtype)
                    inside = tirx.all(
                        at_y >= tirx.const(0, dtype), at_y < number(height),
                        at_x >= tirx.const(0, dtype), at_x < number(width),
                    )  # fmt: skip
                    weight = (tirx.const(1, dtype) - tirx.abs(y - at_y)) * (
                        tirx.const(1, dtype) - tirx.abs(x - at_x)
                    )
                    i, j = (
                        tirx.max(tirx.min(tirx.Cast("int64", coordinate), size - 1), tirx.const(0, "int64"))
                        for coordinate, size in ((at_y, height), (at_x, width))
                    )
                    total = total + tirx.Select(inside, data(n, c, i, j) * weight, tirx.const(0, dtype))
            return total * mask[0](n, tap, row, column) if mask else total

        return te.compute([batch, channels, *kernel, rows, columns], element, name="deformed")

    sampled = node.builder.emit_te(compute, *inputs, primfunc_name_hint="deformed")
    depth = channels // groups * kernel[0] * kernel[1]
    sampled = emit(op.reshape(sampled, shape_expr([batch, groups, depth, rows * columns])))
    weights = emit(op.reshape(node.tensor(1), shape_expr([1, groups, out // groups, depth])))
    result = emit(op.reshape(emit(op.matmul(weights, sampled)), shape_expr([batch, out, rows, columns])))
    if not node.has(3):
        return result
    return op.add(result, op.reshape(node.tensor(3), shape_expr([1, out, 1, 1])))


def grid_sample(node: Node) -> Any:
    """GridSample where image or grid is not float32, computed in the wider type; TVM returns the grid's type.

    Images and grids of float32 are left to TVM.
    """
    x, grid = node.tensor(0), node.tensor(1)
    types = [str(tensor.ty.dtype) for tensor in (x, grid)]
    if types == ["float32", "float32"]:
        return None
    emit, axes = node.builder.emit, len(node.shape(0))
    mode = node.text("mode", "bilinear")
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    if axes not in (4, 5) or (axes == 5 and mode == "bicubic"):
        raise ValueError(f"mode {mode} of {axes} axes, allowed: 4 axes, or 5 without cubic")
    is_float = types[0].startswith("float")
    image_type = types[0] if is_float else wide_type(types[0])
    inner = "float64" if "float64" in (image_type, types[1]) else "float32"
    x, grid = (
        tensor if dtype == inner else emit(op.astype(tensor, inner))
        for tensor, dtype in zip((x, grid), types, strict=True)
    )
    result = op.image.grid_sample(
        x,
        emit(op.permute_dims(grid, [0, axes - 1, *range(1, axes - 1)])),
        method=mode,
        layout="NCHW" if axes == 4 else "NCDHW",
        padding_mode=node.text("padding_mode", "zeros"),
        align_corners=bool(node.attributes.get("align_corners", 0)),
    )
    if types[0] == inner:
        return result
    if mode == "bicubic" and not is_float and types[0] != "bool":
        result = clipped(emit(result), types[0])  # it may be beyond the elements around
    return op.astype(emit(result), types[0])


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "BitCast": bit_cast,
    "DeformConv": deform_conv,
    "Det": det,
    "GridSample": grid_sample,
    "MaxUnpool": max_unpool,
    "TensorScatter": tensor_scatter,
}
