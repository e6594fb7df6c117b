"""MediaPipe's custom operators of TFLite files, as operators like a user's own (kiln.operators).

LiteRT's interpreter knows none of them: mediapipe_reference.py has their references.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from kiln.config.sizes import ceil_div
from kiln.frontend.tflite import mediapipe_reference as reference
from kiln.frontend.tflite.angles import angle_of
from kiln.frontend.tflite.operands import const
from kiln.operators.declaration import OwnOperator, OwnTensor
from kiln.operators.registry import LoadedOperator

op = relax.op
_FILE = "MediaPipe's custom operators"
_PADDINGS = {1: "SAME", 2: "VALID"}
_LIMITS = {0: (-math.inf, math.inf), 1: (0.0, math.inf), 2: (-1.0, 1.0), 3: (0.0, 6.0)}


def _f32(value: Any) -> Any:
    return const(value, "float32")


def _sizes(x: Any) -> list[int]:
    """The shape of a Relax expression or an OwnTensor."""
    return [int(size) for size in (x.shape if isinstance(x, OwnTensor) else x.ty.shape)]


def _numbers(options: bytes, names: Sequence[str]) -> dict[str, int]:
    """The 32-bit numbers with which a struct of options begins. Raises ValueError for wrong ones."""
    if len(options) < 4 * len(names):
        raise ValueError(f"its options have {len(options)} bytes, allowed: {4 * len(names)} and more")
    values = dict(zip(names, np.frombuffer(options[: 4 * len(names)], "<i4").tolist(), strict=True))
    if values["padding"] not in _PADDINGS:
        raise ValueError(f"its padding is {values['padding']}, allowed: 1 (SAME), 2 (VALID)")
    for name, value in values.items():
        if name not in ("padding", "activation") and value < 1:
            raise ValueError(f"its option '{name}' is {value}, allowed: 1 and more")
    if values.get("activation", 0) not in _LIMITS:
        raise ValueError(
            f"its activation is {values['activation']}, allowed: NONE, RELU, RELU_N1_TO_1, RELU6"
        )
    return values


_TRANSPOSED = ("padding", "across", "down")
_POOL = ("padding", "across", "down", "columns", "rows", "activation")


def _transposed_result(x: OwnTensor, weights: OwnTensor, bias: OwnTensor, *, options: bytes) -> OwnTensor:
    values = _numbers(options, _TRANSPOSED)
    sizes = zip(_sizes(x)[1:3], _sizes(weights)[1:3], (values["down"], values["across"]), strict=True)
    result_sizes = [
        stride * (size - 1) + length
        - reference.transposed_padding(size, length, stride, values["padding"] == 1)
        for size, length, stride in sizes
    ]  # fmt: skip
    return OwnTensor((x.shape[0], *result_sizes, weights.shape[0]))


def _transposed(x: Any, weights: Any, bias: Any, *, options: bytes) -> Any:
    values = _numbers(options, _TRANSPOSED)
    strides = [values["down"], values["across"]]
    cut = [
        reference.transposed_padding(size, length, stride, values["padding"] == 1)
        for size, length, stride in zip(_sizes(x)[1:3], _sizes(weights)[1:3], strides, strict=True)
    ]
    full_sizes = op.nn.conv2d_transpose(
        op.permute_dims(x, [0, 3, 1, 2]), op.permute_dims(weights, [3, 0, 1, 2]), strides=strides,
        padding=[0, 0, 0, 0], data_layout="NCHW", kernel_layout="IOHW",
    )  # fmt: skip
    full_sizes = op.permute_dims(full_sizes, [0, 2, 3, 1])
    result = [
        stride * (size - 1) + length
        for size, length, stride in zip(_sizes(x)[1:3], _sizes(weights)[1:3], strides, strict=True)
    ]
    if any(cut):
        begin = [surplus // 2 for surplus in cut]
        end = [first + size - surplus for first, size, surplus in zip(begin, result, cut, strict=True)]
        full_sizes = op.strided_slice(full_sizes, [1, 2], begin, end)
    return op.add(full_sizes, bias)


def _pooled_sizes(x: Any, values: Mapping[str, int]) -> list[int]:
    pairs = zip(_sizes(x)[1:3], (values["rows"], values["columns"]), (values["down"], values["across"]),
                strict=True)  # fmt: skip
    return [
        ceil_div(size, stride) if values["padding"] == 1 else (size - length + stride) // stride
        for size, length, stride in pairs
    ]


def _pooled_result(x: OwnTensor, *, options: bytes) -> tuple[OwnTensor, OwnTensor]:
    result = OwnTensor((x.shape[0], *_pooled_sizes(x, _numbers(options, _POOL)), x.shape[3]))
    return result, result


def _pooled(x: Any, *, options: bytes) -> Any:
    values = _numbers(options, _POOL)
    rows, columns, down, across = (values[name] for name in ("rows", "columns", "down", "across"))
    batch, height, width, channels = _sizes(x)
    high, wide = _pooled_sizes(x, values)
    top = reference.window_padding(height, rows, down, high)
    left = reference.window_padding(width, columns, across, wide)
    below = max(0, (high - 1) * down + rows - height - top)
    right = max(0, (wide - 1) * across + columns - width - left)
    least = float(np.finfo(np.float32).min)
    data = op.nn.pad(x, [0, 0, top, below, left, right, 0, 0], pad_value=least)
    shape = relax.ShapeExpr([batch, high, wide, channels])
    best, position_of_best = (
        op.full(shape, _f32(least), "float32"),
        op.full(shape, _f32(0.1), "float32"),
    )
    for row in range(rows):
        for column in range(columns):
            end = [row + (high - 1) * down + 1, column + (wide - 1) * across + 1]
            samples = op.strided_slice(data, [1, 2], [row, column], end, [down, across])
            more = op.greater(samples, best)
            position_of_best = op.where(
                more, _f32(np.float32(row * columns + column + 0.1)), position_of_best
            )
            best = op.where(more, samples, best)
    low, upper = _LIMITS[values["activation"]]
    return [
        best if low == -math.inf else op.minimum(op.maximum(best, _f32(low)), _f32(upper)),
        position_of_best,
    ]


def _unpooled_result(x: OwnTensor, indices: OwnTensor, *, options: bytes) -> OwnTensor:
    values = _numbers(options, _POOL)
    return OwnTensor((x.shape[0], x.shape[1] * values["rows"], x.shape[2] * values["columns"], x.shape[3]))


def _unpooled(x: Any, indices: Any, *, options: bytes) -> Any:
    """Positions in a window are written from last to first, as later windows overwrite earlier ones."""
    values = _numbers(options, _POOL)
    rows, columns, down, across = (values[name] for name in ("rows", "columns", "down", "across"))
    batch, height, width, channels = _sizes(x)
    high, wide = height * rows, width * columns
    top = reference.window_padding(high, rows, down, height)
    left = reference.window_padding(wide, columns, across, width)
    index = op.astype(indices, "int32")
    result = _f32(np.zeros((batch, high, wide, channels)))

    def at_positions(value: Any, row: int, column: int) -> Any:
        """[N, H, W, C] as [N, high, wide, C]: elements at their places, zeros between them."""
        value = op.reshape(value, [batch, height, 1, width, 1, channels])
        value = op.nn.pad(value, [0, 0, 0, 0, 0, down - 1, 0, 0, 0, across - 1, 0, 0])
        value = op.reshape(value, [batch, height * down, width * across, channels])
        begin, widths = [], [0, 0]
        for begin_here, size, end_here in (
            (row - top, height * down, high),
            (column - left, width * across, wide),
        ):
            begin.append((max(0, -begin_here), min(size, end_here - begin_here)))
            widths += [max(0, begin_here), max(0, end_here - begin_here - size)]
        value = op.strided_slice(value, [1, 2], [low for low, _ in begin], [end for _, end in begin])
        return op.nn.pad(value, [*widths, 0, 0])

    for row in reversed(range(rows)):
        for column in reversed(range(columns)):
            is_chosen = op.astype(op.equal(index, const(row * columns + column, "int32")), "float32")
            is_written = op.greater(at_positions(is_chosen, row, column), _f32(0))
            result = op.where(is_written, at_positions(x, row, column), result)
    return result


def _points_result(x: OwnTensor, matrix: OwnTensor, *, dimensions: int, scale: float) -> OwnTensor:
    size = dimensions or _sizes(x)[-1]
    if size not in (2, 3) or _sizes(x)[-1] % size or math.prod(_sizes(matrix)) != 16:
        raise ValueError(
            f"points of {size} coordinates in {list(x.shape)} and a matrix of {list(matrix.shape)}, allowed: "
            "2 or 3 coordinates, and a matrix of 4 x 4"
        )
    return OwnTensor(x.shape)


def _points(x: Any, matrix: Any, *, dimensions: int, scale: float) -> Any:
    shape = _sizes(x)
    size = dimensions or shape[-1]
    count = math.prod(shape) // size
    rows = op.strided_slice(op.reshape(matrix, [4, 4]), [0], [0], [2])
    linear = op.permute_dims(op.strided_slice(rows, [1], [0], [2]))
    shift = op.multiply(op.reshape(op.strided_slice(rows, [1], [3], [4]), [1, 2]), _f32(scale))
    points = op.reshape(x, [count, size])
    moved = op.add(op.matmul(op.strided_slice(points, [1], [0], [2]), linear), shift)
    if size == 3:
        moved = op.concat([moved, op.strided_slice(points, [1], [2], [3])], 1)
    return op.reshape(moved, shape)


def _sampled_result(
    x: OwnTensor, matrix: OwnTensor, *, output_size: Sequence[int], output_height: int, output_width: int,
    mode: str,
) -> OwnTensor:  # fmt: skip
    if mode != "bilinear" or _sizes(x)[0] != 1:
        raise ValueError(f"{_sizes(x)[0]} images in mode '{mode}', allowed: 1 image, mode 'bilinear'")
    height, width = (output_height, output_width) if output_size == reference.NONE else output_size
    return OwnTensor((1, height, width, x.shape[3]))


def _sampled(
    x: Any, matrix: Any, *, output_size: Sequence[int], output_height: int, output_width: int, mode: str
) -> Any:
    height, width = (output_height, output_width) if output_size == reference.NONE else output_size
    _, high, wide, channels = _sizes(x)
    down, across = (grid.reshape(1, -1) for grid in np.meshgrid(range(height), range(width), indexing="ij"))
    rows = op.strided_slice(op.reshape(matrix, [4, 4]), [0], [0], [2])
    a, b, shift = (op.strided_slice(rows, [1], [column], [column + 1]) for column in (0, 1, 3))
    if output_size == reference.NONE:
        shift = op.subtract(op.add(shift, op.multiply(op.add(a, b), _f32(0.5))), _f32(0.5))
    sample_points = op.add(
        op.add(op.multiply(a, _f32(across)), op.multiply(b, _f32(down))), shift
    )  # [2, places]: x and y
    limits = _f32([[wide - 1], [high - 1]])
    within = op.logical_and(op.greater_equal(sample_points, _f32(0)), op.less_equal(sample_points, limits))
    inside = op.permute_dims(op.min(op.astype(within, "int8"), 0, keepdims=True))
    sample_points = op.minimum(op.maximum(sample_points, _f32(0)), limits)
    first = op.floor(sample_points)
    fractions = op.permute_dims(op.subtract(sample_points, first))  # [places, 2]
    x_part, y_part = (op.strided_slice(fractions, [1], [axis], [axis + 1]) for axis in range(2))
    corner_indices = op.astype(first, "int64")
    left, top = (
        op.reshape(op.strided_slice(corner_indices, [0], [axis], [axis + 1]), [height * width])
        for axis in range(2)
    )
    right = op.minimum(op.add(left, const(1, "int64")), const(wide - 1, "int64"))
    below = op.minimum(op.add(top, const(1, "int64")), const(high - 1, "int64"))
    flat = op.reshape(x, [high * wide, channels])

    def row(along: Any) -> Any:
        line = op.multiply(along, const(wide, "int64"))
        near, far = (op.take(flat, op.add(line, column), 0, mode="clip") for column in (left, right))
        return op.add(op.multiply(op.subtract(_f32(1), x_part), near), op.multiply(x_part, far))

    samples = op.add(op.multiply(y_part, row(below)), op.multiply(op.subtract(_f32(1), y_part), row(top)))
    samples = op.where(op.greater(inside, const(0, "int8")), samples, _f32(0))
    return op.reshape(samples, [1, height, width, channels])


def _matrix_result(x: OwnTensor, **options: Any) -> OwnTensor:
    newer = options["subset"] == reference.NONE
    chosen = options["subset_idxs"] if newer else options["subset"]
    count = math.prod(_sizes(x)) // 3
    indices = [*chosen, options["left_rotation_idx"], options["right_rotation_idx"]]
    positive = ("output_width", "output_height", "scale_x", "scale_y") if newer else ("landmarks_range",)
    wrong = [name for name in positive if not options[name] > 0]
    if not newer and (len(options["output_hw"]) != 2 or min(options["output_hw"]) < 2):
        raise ValueError(f"its output_hw is {list(options['output_hw'])}, allowed: two sizes of 2 and more")
    if not newer and len(options["input_hw"]) != 2:
        raise ValueError(f"its input_hw is {list(options['input_hw'])}, allowed: two sizes")
    if min(indices) < 0 or max(indices) >= count or wrong:
        raise ValueError(
            f"its {wrong[0]} is {options[wrong[0]]}, allowed: more than 0" if wrong else
            f"it reads points {sorted({min(indices), max(indices)})} of {count}"
        )  # fmt: skip
    return OwnTensor((1, 4, 4))


def _matrix(x: Any, **options: Any) -> Any:
    newer = options["subset"] == reference.NONE
    points = op.reshape(x, [math.prod(_sizes(x)) // 3, 3])
    ends = op.take(points, const([options["left_rotation_idx"], options["right_rotation_idx"]], "int64"), 0)
    distance = op.subtract(op.strided_slice(ends, [0], [1], [2]), op.strided_slice(ends, [0], [0], [1]))
    dx, dy = (op.strided_slice(distance, [1], [axis], [axis + 1]) for axis in range(2))  # [1, 1]
    if newer:
        angle = op.subtract(_f32(options["target_rotation_radians"]), angle_of(dy, dx))
    else:
        angle = op.negative(op.atan(op.divide(dy, dx)))
    cos, sin = op.cos(angle), op.sin(angle)

    def turned(vector: Iterable[Any], back: bool) -> tuple[Any, Any]:
        across, down = vector
        a, b = op.multiply(across, sin), op.multiply(down, sin)
        if back:
            return op.add(op.multiply(across, cos), b), op.subtract(op.multiply(down, cos), a)
        return op.subtract(op.multiply(across, cos), b), op.add(a, op.multiply(down, cos))

    chosen = op.take(points, const(list(options["subset_idxs"] if newer else options["subset"]), "int64"), 0)
    moved = turned((op.strided_slice(chosen, [1], [axis], [axis + 1]) for axis in range(2)), back=False)
    low, high = ([pick(value, 0, keepdims=True) for value in moved] for pick in (op.min, op.max))
    size = [op.subtract(b, a) for a, b in zip(low, high, strict=True)]
    middle = turned((op.multiply(op.add(a, b), _f32(0.5)) for a, b in zip(low, high, strict=True)), back=True)
    return _assembled(options, newer, (cos, sin), size, middle)


def _assembled(options: Mapping[str, Any], newer: bool, turn: Any, size: Any, middle: Any) -> Any:
    """The matrix from the cosine and sine of the angle, and the size and the middle of the crop."""
    cos, sin = turn
    if newer:
        sides = [float(options["output_width"]), float(options["output_height"])]
        factors = [options["scale_x"] / sides[0], options["scale_y"] / sides[1]]
        outer, half, shift = [1.0, 1.0], [side / 2 for side in sides], list(middle)
    else:
        reach = float(options["landmarks_range"])
        output_scale = [2.0 / (side - 1.0) for side in options["output_hw"][::-1]]
        outer = [(side - 1.0) / 2.0 for side in options["input_hw"][::-1]]
        factors = [options["bbox_size_multiplier"] / reach * scale for scale in output_scale]
        half = [1.0 / scale for scale in output_scale]
        shift = [op.multiply(value, _f32(2.0 / reach * outer[axis])) for axis, value in enumerate(middle)]
    a, b = (op.multiply(value, _f32(factors[axis])) for axis, value in enumerate(size))
    linear = [
        [op.multiply(cos, a), op.multiply(sin, b)],
        [op.negative(op.multiply(sin, a)), op.multiply(cos, b)],
    ]
    rows = []
    for axis, (first, second) in enumerate(linear):
        first, second = (op.multiply(value, _f32(outer[axis])) for value in (first, second))
        back = op.add(op.multiply(first, _f32(half[0])), op.multiply(second, _f32(half[1])))
        rows.append(op.concat([first, second, _f32([[0]]), op.subtract(shift[axis], back)], 1))
    return op.reshape(op.concat([*rows, _f32([[0, 0, 1, 0], [0, 0, 0, 1]])], 0), [1, 4, 4])


def _operator(name: str, result: Any, relax_body: Any, numpy: Any, **attributes: Any) -> LoadedOperator:
    declared = OwnOperator(name=name, result=result, relax=relax_body, reference=numpy, attributes=attributes)
    return LoadedOperator(declared, _FILE)


_MATRIX: dict[str, Any] = {
    **dict.fromkeys(("subset", "subset_idxs", "input_hw", "output_hw"), reference.NONE),
    "left_rotation_idx": int, "right_rotation_idx": int, "target_rotation_radians": 0.0, "output_height": 0,
    "output_width": 0, "scale_x": 0.0, "scale_y": 0.0, "dimensions": 3, "landmarks_range": 0,
    "bbox_size_multiplier": 0.0,
}  # fmt: skip
OPERATORS: Mapping[str, LoadedOperator] = {
    one.operator.name: one
    for one in (
        _operator("Convolution2DTransposeBias", _transposed_result, _transposed,
                  reference.convolution_transpose_bias, options=bytes),
        _operator("MaxPoolingWithArgmax2D", _pooled_result, _pooled, reference.max_pooling_with_argmax,
                  options=bytes),
        _operator("MaxUnpooling2D", _unpooled_result, _unpooled, reference.max_unpooling, options=bytes),
        _operator("TransformLandmarks", _points_result, _points, reference.transform_landmarks,
                  dimensions=0, scale=1.0),
        _operator("TransformTensorBilinear", _sampled_result, _sampled, reference.transform_tensor,
                  output_size=reference.NONE, output_height=0, output_width=0, mode="bilinear"),
        _operator("Landmarks2TransformMatrix", _matrix_result, _matrix, reference.landmarks_to_matrix,
                  **_MATRIX),
    )
}  # fmt: skip
