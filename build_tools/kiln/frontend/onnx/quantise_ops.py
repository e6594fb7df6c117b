"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear in all their forms.

Per tensor and per axis they become relax.quantize and relax.dequantize, which later passes make integer
(kiln.graph.integer). With blocks, with a scale that is computed by the model or with element types that these
operators lack, they become plain arithmetic. ONNX: y = saturate(round_half_even(x / scale) + zero_point),
x = (y - zero_point) * scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from tvm import relax

from kiln.arrays import Array
from kiln.config.sizes import ceil_div
from kiln.extents import Extent
from kiln.frontend.onnx.body import Body, Expansion
from kiln.frontend.onnx.quantised_constants import (
    axis_of,
    levels_of_constant,
    negated_levels,
    number_of,
    signs_of_scale,
    without_zero_scales,
)

op = relax.op
_MIDDLE = 1 << 15  # of the range of uint16
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")
_NARROW = ("int8", "uint8", "int16", "uint16")


def check_scale(body: Body, name: str, of_weights: bool = False) -> None:
    """Raise ValueError for a constant scale that is infinite or NaN, and for one that is zero.

    of_weights: the scale may be zero, which quantisers write for a channel of zeros: so are its weights.
    """
    value = body.constant(name)
    if value is None:
        return
    numbers = value.reshape(-1)
    wrong = [float(n) for n in numbers if not np.isfinite(n) or (n == 0 and not of_weights)]
    if not wrong:
        return
    way = ", but for weights that are constants" if wrong[0] == 0 else ""
    if np.isinf(wrong[0]):
        way = (
            ": every element of this tensor would be NaN. A quantiser that saw infinite values, such as "
            "those of a mask, writes it: leave the node that makes them in float, as ./kiln quantise does"
        )
    raise ValueError(f"its scale '{name}' contains {wrong[0]:g}, allowed: finite and not 0{way}")


def check_zero_point(body: Body, name: str, data: str) -> None:
    """Raise ValueError for a zero point of another type than its data, and for one of int32 other than 0."""
    dtype, data_dtype = body.dtype(name), body.dtype(data)
    if dtype != data_dtype:
        raise ValueError(
            f"its zero point '{name}' is of type {dtype}, allowed: {data_dtype}, the type of '{data}'"
        )


def broadcast_along(body: Body, name: str, data: str, axis: int, noun: str) -> str:
    """A scale or zero point in a shape that broadcasts against `data`; one value, or one per index of `axis`.

    Raises ValueError for another number of values.
    """
    shape, sizes = body.shape(name), body.shape(data)
    if all(size == 1 for size in shape):
        return body.reshape(name, []) if shape else name
    if len(shape) != 1 or not body.symbols.equal(shape[0], sizes[axis]):
        raise ValueError(
            f"its {noun} '{name}' has the shape {_shape_text(shape)}, allowed: one value, or one for each of "
            f"the {sizes[axis]} indices of axis {axis}"
        )
    return body.reshape(name, [1] * axis + [shape[0]] + [1] * (len(sizes) - axis - 1))


def _shape_text(shape: list[Extent]) -> str:
    return f"({', '.join(str(size) for size in shape)})"


def _repeated_blocks(body: Body, name: str, data: str, axis: int, block: int, noun: str) -> str:
    """A scale or zero point of blocks along `axis`, repeated to the shape of `data`."""
    shape, sizes = body.shape(name), body.shape(data)
    length = sizes[axis]
    fits = len(shape) == len(sizes) and isinstance(length, int) and shape[axis] == ceil_div(length, block)
    repeats = fits and all(
        body.symbols.equal(a, b)
        for number, (a, b) in enumerate(zip(shape, sizes, strict=True))
        if number != axis
    )
    if not repeats:
        raise ValueError(
            f"its {noun} '{name}' has the shape {_shape_text(shape)}, allowed: one value for each block of "
            f"{block} along axis {axis} of {_shape_text(sizes)}"
        )
    repeated = body.bind(op.repeat(body.tensor(name), block, axis))
    if body.shape(repeated)[axis] != length:
        return body.bind(op.strided_slice(body.tensor(repeated), [axis], [0], [length]))
    return repeated


def broadcast_parameters(body: Body, data: str, scale: str, zero: str) -> tuple[str, str, int, bool]:
    """Scale and zero point that broadcast against `data`, the axis, and whether they vary along it alone.

    An omitted zero point stays the empty name.
    """
    axis, block = axis_of(body, data), int(body.attribute("block_size", 0))
    if zero and not _same_shape(body, scale, zero):
        raise ValueError(
            f"its scale has the shape {_shape_text(body.shape(scale))} and its zero point "
            f"{_shape_text(body.shape(zero))}, allowed: the same shape"
        )
    if block and body.rank(scale) > 0 and body.rank(scale) == body.rank(data):
        scale = _repeated_blocks(body, scale, data, axis, block, "scale")
        return (
            scale,
            _repeated_blocks(body, zero, data, axis, block, "zero point") if zero else "",
            axis,
            False,
        )
    scale = broadcast_along(body, scale, data, axis, "scale")
    return scale, broadcast_along(body, zero, data, axis, "zero point") if zero else "", axis, True


def _same_shape(body: Body, scale: str, zero: str) -> bool:
    are_scalars = [all(size == 1 for size in body.shape(name)) for name in (scale, zero)]
    shapes = (body.shape(scale), body.shape(zero))
    return all(are_scalars) or (
        len(shapes[0]) == len(shapes[1])
        and all(body.symbols.equal(a, b) for a, b in zip(*shapes, strict=True))
    )


def _constant_parameter(body: Body, name: str, dtype: str) -> Any:
    """A constant scale or zero point for relax.quantize, a scalar or vector; None if it is not constant."""
    value: Array | None = body.constant(name)
    if value is None:
        return None
    flat = value.reshape(-1) if value.size > 1 else value.reshape(())
    return relax.const(np.ascontiguousarray(flat.astype(dtype)).reshape(flat.shape), dtype)


def _moved(body: Body, name: str, dtype: str) -> str:
    """Levels of uint16 less 2^15 as int16, which kernels multiply; or of int16 plus 2^15 as uint16."""
    by = -_MIDDLE if dtype == "int16" else _MIDDLE
    known: Array | None = body.constant(name)
    if known is not None:
        return body.const((known.astype("int32") + by).astype(dtype))
    wide = body.bind_tensor(op.astype(body.tensor(name), "int32"))
    return body.bind(op.astype(body.bind_tensor(op.add(wide, relax.const(by, "int32"))), dtype))


def _moves(body: Body, scale: str, zero: str) -> bool:
    """Whether a scale and a zero point of uint16 are constants, so that levels may be moved to int16."""
    return body.constant(scale) is not None and bool(zero) and body.constant(zero) is not None


def dequantize(body: Body, data: str, scale: str, zero: str) -> str:
    """(data - zero) * scale in the scale's type; attributes `axis` and `block_size` of the node apply."""
    dtype = body.dtype(data)
    if dtype not in _INTEGERS:
        raise ValueError(f"its input '{data}' is of type {dtype}, allowed: {', '.join(_INTEGERS)}")
    check_scale(body, scale, of_weights=body.constant(data) is not None)
    if zero:
        check_zero_point(body, zero, data)
    number = number_of(body, data, scale, zero)
    if number is not None:
        return body.const(number)
    data, scale = without_zero_scales(body, data, scale, zero)
    out, signed = body.dtype(scale), signs_of_scale(body, scale)
    if signed is not None:
        scale, signs = signed
        zeros: Array | None = body.constant(zero) if zero else np.zeros(())
        without_zero = zeros is not None and not zeros.any()
        levels = negated_levels(body, data, signs, axis_of(body, data)) if without_zero else None
        if levels is not None:
            return dequantize(body, levels, scale, zero)
        factors, _, _, _ = broadcast_parameters(body, data, body.const(signs), "")
        return body.op("Mul", dequantize(body, data, scale, zero), body.cast(factors, out))
    if dtype == "uint16" and not zero:
        zero = body.const(np.zeros([int(size) for size in body.shape(scale)], dtype))
    if dtype == "uint16" and _moves(body, scale, zero):
        return dequantize(body, _moved(body, data, "int16"), scale, _moved(body, zero, "int16"))
    wide, point, axis, single = broadcast_parameters(body, data, scale, zero)
    scales = _constant_parameter(body, scale, "float32") if single else None
    points = _constant_parameter(body, zero, dtype) if zero else relax.const(np.zeros((), dtype), dtype)
    if scales is not None and points is not None and dtype != "uint16":
        if scales.ty.ndim and not points.ty.ndim:
            points = relax.const(np.full(int(scales.ty.shape[0]), points.value.numpy()), dtype)
        result = body.bind(op.dequantize(body.tensor(data), scales, points, axis, "float32"))
        return body.cast(result, out)
    integers = op.astype(body.tensor(data), "int32")
    if point:
        integers = op.subtract(integers, op.astype(body.tensor(point), "int32"))
    real = op.multiply(op.astype(integers, "float32"), op.astype(body.tensor(wide), "float32"))
    return body.cast(body.bind(real), out)


def quantize(body: Body, data: str, scale: str, zero: str, dtype: str) -> str:
    """saturate(round(data / scale) + zero) as `dtype`; attributes `axis` and `block_size` apply."""
    if dtype not in _NARROW:
        raise ValueError(f"its result is of type {dtype}, allowed: {', '.join(_NARROW)}")
    check_scale(body, scale, of_weights=body.constant(data) is not None)
    signed = signs_of_scale(body, scale)
    if signed is not None:
        scale, signs = signed
        factors, _, _, _ = broadcast_parameters(body, data, body.const(signs), "")
        data = body.op("Mul", body.cast(data, "float32"), body.cast(factors, "float32"))
    if dtype == "uint16" and _moves(body, scale, zero):
        return _moved(body, quantize(body, data, scale, _moved(body, zero, "int16"), "int16"), dtype)
    wide, point, axis, single = broadcast_parameters(body, data, scale, zero)
    limits = np.iinfo(dtype)
    known = levels_of_constant(body, data, scale, zero, limits.min, limits.max)
    if known is not None:
        return body.const(known, dtype)
    real = body.cast(data, "float32")
    scales = _constant_parameter(body, scale, "float32") if single else None
    points = _constant_parameter(body, zero, dtype) if zero else relax.const(np.zeros((), dtype), dtype)
    if scales is not None and points is not None:
        if scales.ty.ndim and not points.ty.ndim:
            points = relax.const(np.full(int(scales.ty.shape[0]), points.value.numpy()), dtype)
        return body.bind(op.quantize(body.tensor(real), scales, points, axis, dtype))
    levels = op.round(op.divide(body.tensor(real), op.astype(body.tensor(wide), "float32")))
    if point:
        levels = op.add(levels, op.astype(body.tensor(point), "float32"))
    return body.bind(op.astype(op.clip(levels, float(limits.min), float(limits.max)), dtype))


def quantize_linear(body: Body) -> list[str]:
    """QuantizeLinear."""
    data, scale, zero = (body.input(index) for index in range(3))
    output_dtype = int(body.attribute("output_dtype", 0))
    dtype = body.dtype(zero) if zero else "uint8"
    if output_dtype:
        named = str(np.dtype(helper.tensor_dtype_to_np_dtype(output_dtype)))
        if zero and named != dtype:
            raise ValueError(f"its attribute 'output_dtype' is {named} and its zero point of type {dtype}")
        dtype = named
    body.accept_attributes("saturate")  # applies to 8-bit floating point only
    body.only("precision", 0, 1)  # float32 arithmetic
    return [quantize(body, data, scale, zero, dtype)]


def dequantize_linear(body: Body) -> list[str]:
    """DequantizeLinear."""
    result = dequantize(body, body.input(0), body.input(1), body.input(2))
    output_dtype = int(body.attribute("output_dtype", 0))
    return [
        body.cast(result, str(np.dtype(helper.tensor_dtype_to_np_dtype(output_dtype))))
        if output_dtype
        else result
    ]


def dynamic_quantize(body: Body, data: str) -> tuple[str, str, str]:
    """uint8 data, scale and zero point of DynamicQuantizeLinear; a tensor of zeros has the scale 1."""
    x = body.tensor(data)
    zero, levels = relax.const(np.float32(0)), relax.const(np.float32(255))
    least = body.bind(op.minimum(op.min(x), zero))
    most = body.bind(op.maximum(op.max(x), zero))
    width = body.bind(op.subtract(body.tensor(most), body.tensor(least)))
    ratio = op.divide(body.tensor(width), levels)
    scale = body.bind(op.where(op.equal(body.tensor(width), zero), relax.const(np.float32(1)), ratio))
    point = op.round(op.clip(op.divide(op.negative(body.tensor(least)), body.tensor(scale)), 0, 255))
    zero_point = body.bind(op.astype(point, "uint8"))
    quantised = op.quantize(x, body.tensor(scale), body.tensor(zero_point), 0, "uint8")
    return body.bind(quantised), scale, zero_point


def dynamic_quantize_linear(body: Body) -> list[str]:
    """DynamicQuantizeLinear."""
    return list(dynamic_quantize(body, body.input(0)))


ONNX: dict[str, Expansion] = {
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "QuantizeLinear": quantize_linear,
}
MICROSOFT: dict[str, Expansion] = {
    "DequantizeLinear": dequantize_linear,
    "QuantizeLinear": quantize_linear,
}
