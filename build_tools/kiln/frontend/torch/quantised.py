"""Quantised PyTorch models: the operators quantized_decomposed, which PT2E quantisation writes, and _int_mm.

Levels are of 8 or 16 bits. They have limits of their own, such as 0 to 127 of uint8, which PyTorch's exporter
to ONNX leaves out, or refuses. Here the value is limited before it is quantised, which gives the same levels.
Scales may be numbers, tensors of one element, and those that choose_qparams computes from the data. Each
translation is traced by the exporter.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kiln.frontend.torch.onnx_steps import ints
from kiln.frontend.torch.present import Namespace, aten

if TYPE_CHECKING:
    from torch.export import ExportedProgram

LIBRARY = "quantized_decomposed"
# PyTorch's own module, and torchao, to which it moves.
_MODULES = ("torch.ao.quantization.fx._decomposed", "torchao.quantization.pt2e.quantize_pt2e")
# Names with which operators begin that round their operand to levels.
_ROUNDING = (
    f"{LIBRARY}.quantize_",
    f"{LIBRARY}.fake_quant",
    "torchao.quantize_affine",
    "aten.fake_quantize_",
)
# Of ONNX's element types.
_FLOAT, _UINT8, _INT8, _UINT16, _INT16, _INT32, _INT64, _DOUBLE = 1, 2, 3, 4, 5, 6, 7, 11
# By type of integers, the least and the greatest.
_LIMITS = {_UINT8: (0, 255), _INT8: (-128, 127), _UINT16: (0, 65535), _INT16: (-32768, 32767)}


def load_operators() -> bool:
    """Make the operators known to PyTorch; False if no module that has them is installed."""
    for module in _MODULES:
        try:
            importlib.import_module(module)
            return True
        except Exception:  # torchao next to another PyTorch may fail in any way
            continue
    return False


def levels_library() -> Namespace:
    """The operators of the library; all are absent where no package that has them is installed."""
    import torch

    load_operators()
    return Namespace(getattr(torch.ops, LIBRARY))


def has_levels(program: ExportedProgram) -> bool:
    """Whether an ExportedProgram rounds values to levels."""
    # A product of integers multiplies levels, whatever operators have rounded to them.
    return any("_int_mm" in str(node.target) or rounds(node.target) for node in program.graph.nodes)


def rounds(target: Any) -> bool:
    """Whether an operator rounds its operand to levels: one of PT2E, of torchao or of training."""
    return str(target).startswith(_ROUNDING)


def quantised() -> Mapping[Any, Callable[..., Any]]:
    """The operators of this module, for torch.onnx.export's `custom_translation_table`."""
    own = levels_library()
    return {
        aten()._int_mm.default: integer_product,
        own.quantize_per_tensor.default: quantize,
        own.quantize_per_tensor.tensor: quantize,
        own.quantize_per_channel.default: quantize_per_channel,
        own.dequantize_per_tensor.default: dequantize,
        own.dequantize_per_tensor.tensor: dequantize,
        own.dequantize_per_channel.default: dequantize_per_channel,
        own.choose_qparams.tensor: choose_parameters,
        own.choose_qparams_symmetric.tensor: choose_symmetric_parameters,
    }


def integer_product(self: Any, mat2: Any) -> Any:
    """aten::_int_mm: the product of two matrices of int8, in int32; torchao writes it for dynamic scales."""
    from onnxscript import opset18 as op

    return op.MatMulInteger(self, mat2)


def quantize(x: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: int) -> Any:
    """quantize_per_tensor: levels of `x`, from `quant_min` to `quant_max`, as integers of `dtype`."""
    return _quantised(x, _float(scale), _integer(zero_point), (quant_min, quant_max), dtype, axis=None)


def quantize_per_channel(
    x: Any, scales: Any, zero_points: Any, axis: int, quant_min: int, quant_max: int, dtype: int
) -> Any:
    """quantize_per_channel: as `quantize`, with a scale and a zero point for each place of an axis."""
    return _quantised(x, _float(scales), _integer(zero_points), (quant_min, quant_max), dtype, axis=axis)


def _quantised(x: Any, scale: Any, zero: Any, limits: tuple[int, int], dtype: int, axis: int | None) -> Any:
    from onnxscript import opset18 as op

    if limits != _LIMITS[dtype]:
        over = [axis % len(x.shape)] if axis is not None else []
        others = [place for place in range(len(x.shape)) if over and place not in over]
        ends = []
        for limit in limits:
            levels = op.Sub(op.Cast(op.Constant(value_int=limit), to=_FLOAT), op.Cast(zero, to=_FLOAT))
            end = op.Mul(levels, scale)
            ends.append(op.Unsqueeze(end, ints(*others)) if others else end)
        x = op.Min(op.Max(x, ends[0]), ends[1])
    return op.QuantizeLinear(x, scale, op.Cast(zero, to=dtype), **({} if axis is None else {"axis": axis}))


def dequantize(
    x: Any,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    dtype: int,
    out_dtype: int | None = None,
) -> Any:
    """dequantize_per_tensor: the numbers of levels; `quant_min` and `quant_max` change none."""
    return _numbers(x, scale, zero_point, None, dtype, out_dtype)


def dequantize_per_channel(
    x: Any,
    scales: Any,
    zero_points: Any,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: int,
    out_dtype: int | None = None,
) -> Any:
    """dequantize_per_channel: as `dequantize`, with a scale and a zero point for each place of an axis."""
    return _numbers(x, scales, zero_points, axis, dtype, out_dtype)


def _numbers(x: Any, scale: Any, zero: Any, axis: int | None, dtype: int, out_dtype: int | None) -> Any:
    from onnxscript import opset18 as op

    point = (
        [] if zero is None or (isinstance(zero, int) and zero == 0) else [op.Cast(_integer(zero), to=dtype)]
    )
    dequantised = op.DequantizeLinear(x, _float(scale), *point, **({} if axis is None else {"axis": axis}))
    return dequantised if out_dtype in (None, -1, _FLOAT) else op.Cast(dequantised, to=out_dtype)


def choose_parameters(x: Any, quant_min: int, quant_max: int, eps: float, dtype: int) -> tuple[Any, Any]:
    """choose_qparams: a scale and a zero point whose `quant_min` to `quant_max` hold all of `x`, and 0."""
    from onnxscript import opset18 as op

    least, most = _extremes(x)
    scale = op.Max(op.Div(op.Sub(most, least), _number(quant_max - quant_min)), _number(eps))
    point = op.Sub(_number(quant_min), op.Round(op.Div(least, scale)))
    point = op.Min(op.Max(point, _number(quant_min)), _number(quant_max))
    return op.Cast(scale, to=_DOUBLE), op.Cast(point, to=_INT64)


def choose_symmetric_parameters(
    x: Any, quant_min: int, quant_max: int, eps: float, dtype: int
) -> tuple[Any, Any]:
    """choose_qparams_symmetric: as `choose_parameters`, with 0 in the middle of the levels."""
    from onnxscript import opset18 as op

    least, most = _extremes(x)
    greatest = op.Max(op.Neg(least), most)
    scale = op.Max(op.Div(greatest, _number((quant_max - quant_min) / 2)), _number(eps))
    middle = (quant_max + quant_min + 1) // 2 if dtype == _UINT8 else 0
    return op.Cast(scale, to=_DOUBLE), op.Constant(value_int=middle)


def _extremes(x: Any) -> tuple[Any, Any]:
    """The least and the greatest element of `x`, and of 0."""
    from onnxscript import opset18 as op

    numbers = op.Cast(x, to=_FLOAT)
    return op.Min(op.ReduceMin(numbers, keepdims=0), _number(0)), op.Max(
        op.ReduceMax(numbers, keepdims=0), _number(0)
    )


def _number(value: float) -> Any:
    from onnxscript import opset18 as op

    return op.Constant(value_float=float(value))


def _float(value: Any) -> Any:
    """A scale as a float32 tensor; a tensor of one element has no axis."""
    from onnxscript import opset18 as op

    if isinstance(value, (int, float)):
        return _number(value)
    return op.Cast(_without_axes(value), to=_FLOAT)


def _integer(value: Any) -> Any:
    from onnxscript import opset18 as op

    return op.Constant(value_int=value) if isinstance(value, int) else _without_axes(value)


def _without_axes(value: Any) -> Any:
    """A tensor of one element without its axes, so that it does not belong to an axis of the data."""
    from onnxscript import opset18 as op

    single = value.shape is not None and len(value.shape) > 0 and all(size == 1 for size in value.shape)
    return op.Squeeze(value) if single else value
