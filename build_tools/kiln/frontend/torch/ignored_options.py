"""Operators of which PyTorch's exporter to ONNX ignores an option, without an error.

Each function is traced by the exporter, and leaves the operator to it where the option has its default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.exact_numbers import is_rounded
from kiln.frontend.torch.onnx_steps import ints, like
from kiln.frontend.torch.present import aten as own_operators

_FLOAT32, _FLOAT64 = 1, 11  # of ONNX's element types


def ignored_options() -> Mapping[Any, Callable[..., Any]]:
    """The operators of this module, for torch.onnx.export's `custom_translation_table`."""
    aten = own_operators()
    return {
        aten.avg_pool2d.default: avg_pool(2),
        aten.avg_pool3d.default: avg_pool(3),
        aten._native_batch_norm_legit_no_training.default: batch_norm,
        aten._native_batch_norm_legit_functional.default: batch_norm_functional,
        aten.elu.default: elu,
        aten.scalar_tensor.default: scalar_tensor,
        aten.linalg_vector_norm.default: vector_norm,
    }


def avg_pool(axes: int) -> Callable[..., Any]:
    """aten::avg_pool2d or avg_pool3d, with a number by which sums are divided: `divisor_override`.

    What is made raises ValueError for that number with `ceil_mode` along a dynamic axis.
    """

    def pooled(
        self: Any,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        import onnx_ir
        from onnxscript import opset18 as op
        from onnxscript.function_libs.torch_lib.ops import nn

        own = nn.aten_avg_pool2d if axes == 2 else nn.aten_avg_pool3d
        if divisor_override is None:
            return own(self, kernel_size, stride, padding, ceil_mode, count_include_pad)
        kernel, steps, pads = (
            list(values) * (axes // len(values)) for values in (kernel_size, stride or kernel_size, padding)
        )
        x = self
        if ceil_mode:
            after = _zeros_after(list(self.shape)[-axes:], kernel, steps, pads)
            others, kept = [0] * (len(self.shape) - axes), list(self.shape)[:-axes]
            x = op.Pad(self, ints(*others, *pads, *others, *after))
            sizes = zip(list(self.shape)[-axes:], pads, after, strict=True)
            x.shape, x.dtype = onnx_ir.Shape([*kept, *map(sum, sizes)]), self.dtype
            pads = [0] * axes
        means = own(x, kernel, steps, pads, False, True)
        return op.Mul(means, like(math.prod(kernel) / divisor_override, self))

    return pooled


def _zeros_after(
    sizes: Sequence[Any], kernel: Sequence[int], steps: Sequence[int], pads: Sequence[int]
) -> list[int]:
    """The zeros after each axis for all windows of `ceil_mode`, the last of which begins before them.

    Raises ValueError for a dynamic size.
    """
    after = []
    for size, width, step, pad in zip(sizes, kernel, steps, pads, strict=True):
        if not isinstance(size, int):
            raise ValueError(
                "avg_pool with divisor_override, ceil_mode=True and a dynamic size; use ceil_mode=False"
            )
        windows = -(-(size + 2 * pad - width) // step) + 1
        if (windows - 1) * step >= size + pad:
            windows -= 1
        after.append(max(pad, (windows - 1) * step + width - size - pad))
    return after


def scalar_tensor(
    s: Any, dtype: int = -1, layout: str = "", device: str = "", pin_memory: bool | None = None
) -> Any:
    """aten::scalar_tensor: a number in float64, which the exporter rounds to float32 first."""
    import numpy as np
    import onnx_ir
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.core import aten_scalar_tensor

    if dtype == _FLOAT64 and isinstance(s, (int, float)):
        return op.Constant(value=onnx_ir.tensor(np.array(s, np.float64)))
    return aten_scalar_tensor(s, dtype, layout, device, bool(pin_memory))


def vector_norm(
    self: Any, order: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: int = -1
) -> Any:
    """aten::linalg_vector_norm, whose exporter drops `keepdim` without `dim`; a number has one norm.

    Orders of float64 keep their digits.
    """
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.linalg import aten_linalg_vector_norm

    rank = len(self.shape)
    if rank == 0 and order and dtype == -1:
        return op.Abs(self)  # not the root of its power, which rounds and may overflow
    if rank == 0:
        return aten_linalg_vector_norm(self, order, None, False, dtype)
    if self.dtype == _FLOAT64 and is_rounded(1 / order if order else 0.0):
        reduced = ints(*(range(rank) if dim is None else dim))
        sums = op.ReduceSum(op.Pow(op.Abs(self), like(order, self)), reduced, keepdims=int(keepdim))
        return op.Pow(sums, like(1 / order, self))
    axes = list(range(rank)) if dim is None and keepdim else dim
    return aten_linalg_vector_norm(self, order, axes, keepdim, dtype)


def batch_norm(
    self: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> tuple[Any, Any, Any]:
    """aten::_native_batch_norm_legit_no_training; the statistics that training alone has are empty."""
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.core import aten_native_batch_norm

    made = aten_native_batch_norm(self, weight, bias, running_mean, running_var, False, momentum, eps)[0]
    empty = op.Expand(like(0, self), ints(0))
    return made, empty, empty


def batch_norm_functional(
    self: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, Any, Any, Any, Any]:
    """aten::_native_batch_norm_legit_functional; the exporter takes `training` for False.

    In training it normalises by the statistics of `self` [n, channels, ...], in float32 or float64. Results:
    the normalised values, the mean and the reciprocal of the deviation, and the new running statistics.
    """
    from onnxscript import opset18 as op

    if not training:
        made = batch_norm(self, weight, bias, running_mean, running_var, momentum, eps)
        return *made, running_mean, running_var
    rank = len(self.shape)
    x = self if self.dtype == _FLOAT64 else op.Cast(self, to=_FLOAT32)
    axes = ints(*(axis for axis in range(rank) if axis != 1))
    mean = op.ReduceMean(x, axes)
    centred = op.Sub(x, mean)
    variance = op.ReduceMean(op.Mul(centred, centred), axes)
    scale = op.Reciprocal(op.Sqrt(op.Add(variance, like(eps, x))))
    made = op.Mul(centred, scale)
    across = ints(-1, *[1] * (rank - 2))
    if weight is not None:
        made = op.Mul(made, op.Reshape(op.CastLike(weight, x), across))
    if bias is not None:
        made = op.Add(made, op.Reshape(op.CastLike(bias, x), across))
    count = op.CastLike(op.Div(op.Size(x), op.Size(mean)), x)
    unbiased = op.Div(op.Mul(variance, count), op.Sub(count, like(1, x)))

    def moved(old: Any, new: Any) -> Any:
        kept = op.Mul(op.CastLike(old, x), like(1 - momentum, x))
        return op.CastLike(op.Add(kept, op.Mul(op.Reshape(new, ints(-1)), like(momentum, x))), old)

    statistics = [op.CastLike(op.Reshape(one, ints(-1)), self) for one in (mean, scale)]
    running = moved(running_mean, mean), moved(running_var, unbiased)
    return op.CastLike(made, self), *statistics, *running


def elu(self: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """aten::elu: scale * x above 0, else scale * alpha * (exp(input_scale * x) - 1), also that of celu."""
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops.nn import aten_elu

    if input_scale == 1:
        return aten_elu(self, alpha, scale, input_scale)
    zero = like(0, self)
    below = op.Elu(op.Mul(op.Min(self, zero), like(input_scale, self)), alpha=float(alpha))
    return op.Mul(op.Add(op.Max(self, zero), below), like(scale, self))
