"""Operators quantized_decomposed that ONNX has no operator for, composed of PyTorch's arithmetic.

These are levels of rows ("tokens") and of blocks of weights, limits that are tensors, zero points that are
floats, and types of other than 8 and 16 bits. Each function rounds where PyTorch's operator does: those of
rows and blocks add the zero point before they round, the others after it. The rounding of quantisation-aware
training, fake_quantize, becomes two operators that ONNX has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.quantised import levels_library, rounds
from kiln.frontend.torch.replaced import Replacement


def _needed(target: Any, values: Sequence[Any]) -> bool:
    """Whether ONNX's operators lack the call: a float as zero point, limits of tensors, or another type."""
    import torch

    narrow = [torch.int8, torch.uint8, torch.int16, torch.uint16]
    if not rounds(target):  # ONNX dequantises int32, too, of which biases are
        narrow.append(torch.int32)
    tensors = [value for value in values[1:] if isinstance(value, torch.Tensor)]
    dtypes = [value for value in values if isinstance(value, torch.dtype)]
    of_float_zeros = len(tensors) > 1 and tensors[1].dtype.is_floating_point
    return of_float_zeros or len(tensors) > 2 or any(dtype not in narrow for dtype in dtypes[:1])


def _rules_where_needed(_: Any) -> Mapping[Any, Callable[..., Any]]:
    """By operator, a function of the same arguments, for some calls."""
    own = levels_library()
    return {
        own.quantize_per_tensor.default: quantize,
        own.quantize_per_tensor.tensor: quantize,
        own.quantize_per_tensor.tensor2: quantize,
        own.quantize_per_channel.default: quantize_per_channel,
        own.dequantize_per_tensor.tensor2: dequantize,
        own.dequantize_per_channel.default: dequantize_per_channel,
    }


def _rules(_: Any) -> Mapping[Any, Callable[..., Any]]:
    """By operator, a function of the same arguments, for all calls."""
    own = levels_library()
    return {
        own.choose_qparams_per_token.default: choose_per_row,
        own.choose_qparams_per_token_asymmetric.default: choose_per_row_asymmetric,
        own.quantize_per_token.default: quantize_per_row,
        own.dequantize_per_token.default: dequantize_per_row,
        own.quantize_per_channel_group.default: quantize_blocks,
        own.dequantize_per_channel_group.default: dequantize_blocks,
        own.convert_element_type.no_fuse: convert,
    }


def _rules_of_training(aten: Any) -> Mapping[Any, Callable[..., Any]]:
    """By operator, a function of the same arguments, for all calls."""
    return {
        aten.fake_quantize_per_tensor_affine.default: fake_quantize,
        aten.fake_quantize_per_tensor_affine.tensor_qparams: fake_quantize,
        aten.fake_quantize_per_channel_affine.default: fake_quantize_per_channel,
        levels_library().fake_quant_per_channel.default: fake_quantize_per_channel,
    }


def fake_quantize(x: Any, scale: Any, zero: Any, least: int, most: int) -> Any:
    """fake_quantize_per_tensor_affine: the numbers of the levels of `x`, in its type."""
    kind = _type_of_levels(least, most)
    limits = scale, zero, least, most, kind
    own = levels_library()
    if isinstance(scale, (int, float)):
        levels = own.quantize_per_tensor.default(x, *limits)
        return own.dequantize_per_tensor.default(levels, *limits).to(x.dtype)
    levels = own.quantize_per_tensor.tensor(x, *limits)
    return own.dequantize_per_tensor.tensor(levels, *limits).to(x.dtype)


def fake_quantize_per_channel(x: Any, scales: Any, zeros: Any, axis: int, least: int, most: int) -> Any:
    """fake_quantize_per_channel_affine: as `fake_quantize`, with scales of the places of an axis.

    Zero points that are floats are added before the value is rounded.
    """
    import torch

    if zeros.dtype.is_floating_point:
        scales, zeros = (_along(each, axis, x.dim()) for each in (scales, zeros))
        levels = torch.clamp(torch.round(x.float() * (1.0 / scales) + zeros), least, most)
        return ((levels - zeros) * scales).to(x.dtype)
    own = levels_library()
    given = scales, zeros, axis, least, most, _type_of_levels(least, most)
    levels = own.quantize_per_channel.default(x, *given)
    return own.dequantize_per_channel.default(levels, *given).to(x.dtype)


def _type_of_levels(least: int, most: int) -> Any:
    """The narrowest of PyTorch's types of integers that holds all levels."""
    import torch

    kinds = torch.uint8, torch.int8, torch.uint16, torch.int16
    limits = ((kind, torch.iinfo(kind)) for kind in kinds)
    return next((kind for kind, own in limits if own.min <= least and most <= own.max), torch.int32)


def quantize(x: Any, scale: Any, zero: Any, least: Any, most: Any, dtype: Any) -> Any:
    """quantize_per_tensor: round(x / scale) + zero, limited to numbers or tensors, as `dtype`."""
    import torch

    return torch.clamp(torch.round(x.float() * (1.0 / scale)) + zero, least, most).to(dtype)


def quantize_per_channel(
    x: Any, scales: Any, zeros: Any, axis: int, least: int, most: int, dtype: Any
) -> Any:
    """quantize_per_channel: as `quantize`, with scales and zero points of the places of an axis."""
    scales, zeros = (_along(each, axis, x.dim()) for each in (scales, zeros))
    return quantize(x, scales, zeros, least, most, dtype)


def dequantize(
    x: Any, scale: Any, zero: Any, least: Any, most: Any, dtype: Any, *, out_dtype: Any = None
) -> Any:
    """dequantize_per_tensor: (x - zero) * scale; the limits change nothing."""
    import torch

    return (x.to(torch.float32) - zero).to(out_dtype or torch.float32) * scale


def dequantize_per_channel(
    x: Any, scales: Any, zeros: Any, axis: int, least: int, most: int, dtype: Any, *, out_dtype: Any = None
) -> Any:
    """dequantize_per_channel: (x - zero) * scale, with scales and zero points of the places of an axis."""
    import torch

    levels = x.to(torch.float32)
    if zeros is not None:
        levels = levels - _along(zeros, axis, x.dim())
    return (levels * _along(scales, axis, x.dim())).to(out_dtype or torch.float32)


def _along(numbers: Any, axis: int, rank: int) -> Any:
    """A vector in a shape that broadcasts along an axis of `rank` axes."""
    return numbers.reshape([-1 if place == axis % rank else 1 for place in range(rank)])


def choose_per_row(x: Any, dtype: Any) -> tuple[Any, Any]:
    """choose_qparams_per_token: scales of rows whose greatest magnitude is level 127, and zeros."""
    scales = x.float().abs().amax(dim=-1, keepdim=True).clamp(min=1e-5).div(127)
    return scales, scales * 0


def choose_per_row_asymmetric(x: Any, dtype: Any) -> tuple[Any, Any]:
    """choose_qparams_per_token_asymmetric: scales and zero points of rows, for levels -128 to 127.

    The zero point follows from that end of the range whose level, as computed, is nearer to its own.
    """
    import torch

    least = x.float().amin(dim=-1, keepdim=True).clamp(max=0)
    most = x.float().amax(dim=-1, keepdim=True).clamp(min=0)
    scale = ((most - least) / 255.0).clamp(min=torch.finfo(torch.float32).eps)
    low, high = least / scale, most / scale
    point = torch.where((-128 + low) + (127 + high) > 0, -128 - low, 127 - high)
    return scale, torch.clamp(point, -128, 127).round()


def quantize_per_row(x: Any, scales: Any, zeros: Any, least: int, most: int, dtype: Any) -> Any:
    """quantize_per_token: round(x / scale + zero), limited, with a scale and a zero point for each row."""
    import torch

    scales = scales.to(torch.float32)
    return (x.float() * (1.0 / scales) + zeros.to(torch.float32)).round().clamp(least, most).to(dtype)


def dequantize_per_row(
    x: Any, scales: Any, zeros: Any, least: int, most: int, dtype: Any, output_dtype: Any = None
) -> Any:
    """dequantize_per_token: (x - zero) * scale, with a scale and a zero point for each row."""
    import torch

    levels = x.to(torch.float32) - zeros.to(torch.float32)
    return (levels * scales.to(torch.float32)).to(output_dtype or torch.float32)


def quantize_blocks(
    x: Any, scales: Any, zeros: Any, least: int, most: int, dtype: Any, group_size: int = 128
) -> Any:
    """quantize_per_channel_group of a matrix: blocks of `group_size` along its rows have their own scale."""
    blocks = _blocks(x, scales, group_size)
    scales, zeros = scales.reshape(-1, 1), zeros.reshape(-1, 1)
    levels = (blocks * (1.0 / scales) + zeros).round().clamp(least, most)
    return levels.to(dtype).reshape(x.shape)


def dequantize_blocks(
    x: Any,
    scales: Any,
    zeros: Any,
    least: int,
    most: int,
    dtype: Any,
    group_size: int = 128,
    output_dtype: Any = None,
) -> Any:
    """dequantize_per_channel_group of a matrix: as `quantize_blocks` has made it."""
    import torch

    levels = _blocks(x, scales, group_size).to(torch.float32)
    if zeros is not None:
        levels = levels - zeros.reshape(-1, 1).to(torch.float32)
    numbers = (levels * scales.reshape(-1, 1)).reshape(x.shape)
    return numbers.to(output_dtype or torch.float32)


def _blocks(x: Any, scales: Any, group_size: int) -> Any:
    """The blocks of a matrix, one a row; a matrix narrower than a block is one block wide."""
    size = x.shape[-1] if group_size > x.shape[-1] and scales.shape[-1] == 1 else group_size
    return x.reshape(-1, size)


def convert(x: Any, dtype: Any) -> Any:
    """convert_element_type: a cast."""
    return x.to(dtype)


FAKE_QUANTISED = Replacement(lambda *_: True, _rules_of_training)
QUANTISED_ARITHMETIC = Replacement(_needed, _rules_where_needed), Replacement(lambda *_: True, _rules)
