"""Calls with float64 tensors whose numbers the export to ONNX would round to float32, by other operators.

Attributes of ONNX's operators are float32, and so are factors such as `alpha`, and constants such as pi,
that the exporter writes. What a tensor is multiplied by, or added to, keeps its digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.dynamic_numbers import elu, leaky_relu, softplus
from kiln.frontend.torch.replaced import Replacement

# Of torch.nn.SELU.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def is_rounded(number: Any) -> bool:
    """Whether a number is a float that float32 does not hold exactly."""
    import numpy as np

    if not isinstance(number, float) or not math.isfinite(number):
        return False
    with np.errstate(over="ignore"):
        return float(np.float32(number)) != number


def _applies(operator: Any, values: Sequence[Any]) -> bool:
    """Whether a call has a tensor of float64, and a number, or a constant of its own, that float32 rounds."""
    import torch

    wide = torch.float64
    if not any(
        value is wide or (isinstance(value, torch.Tensor) and value.dtype is wide) for value in values
    ):
        return False
    has_constant = operator in _of_constants(torch.ops.aten)
    return has_constant or any(is_rounded(value) for value in values)


def _of_constants(aten: Any) -> Mapping[Any, Callable[..., Any]]:
    """Operators that have constants of their own, among them defaults of their arguments."""
    return {
        # ONNX's Celu computes in float32, whatever alpha is.
        aten.celu.default: lambda x, alpha=1.0: elu(x, alpha, 1, 1 / alpha),
        aten.deg2rad.default: lambda x: x * (math.pi / 180),
        aten.rad2deg.default: lambda x: x * (180 / math.pi),
        aten.hardsigmoid.default: lambda x: (x + 3).clamp(0, 6) / 6,
        aten.hardswish.default: lambda x: x * (x + 3).clamp(0, 6) / 6,
        aten.leaky_relu.default: leaky_relu,
        aten.log10.default: lambda x: x.log() * (1 / math.log(10)),
        aten.log2.default: lambda x: x.log() * (1 / math.log(2)),
        aten.selu.default: lambda x: elu(x, _SELU_ALPHA, _SELU_SCALE),
        aten.sinc.default: _sinc,
    }


def _rules(aten: Any) -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    return {
        **_of_constants(aten),
        aten.add.Tensor: lambda x, y, alpha=1: NotImplemented if alpha == 1 else x + y * alpha,
        aten.sub.Tensor: lambda x, y, alpha=1: NotImplemented if alpha == 1 else x - y * alpha,
        aten.rsub.Scalar: lambda x, y, alpha=1: (
            NotImplemented if alpha == 1 else _full((), y, dtype=x.dtype) - x * alpha
        ),
        aten.rsub.Tensor: lambda x, y, alpha=1: NotImplemented if alpha == 1 else y - x * alpha,
        aten.addcmul.default: lambda x, a, b, value=1: x + a * b * value,
        aten.addcdiv.default: lambda x, a, b, value=1: x + a / b * value,
        aten.addmm.default: lambda x, a, b, beta=1, alpha=1: _sum(x, a @ b, beta, alpha),
        aten.addmv.default: lambda x, a, b, beta=1, alpha=1: _sum(x, a @ b, beta, alpha),
        aten.addbmm.default: lambda x, a, b, beta=1, alpha=1: _sum(x, (a @ b).sum(0), beta, alpha),
        aten.baddbmm.default: lambda x, a, b, beta=1, alpha=1: _sum(x, a @ b, beta, alpha),
        aten.addr.default: lambda x, a, b, beta=1, alpha=1: _sum(x, a[:, None] * b, beta, alpha),
        aten.elu.default: elu,
        aten.softplus.default: softplus,
        aten.hardtanh.default: lambda x, low=-1, high=1: x.clamp(low, high),
        aten.hardshrink.default: lambda x, edge=0.5: _where(x.abs() <= edge, 0.0, x),
        aten.softshrink.default: lambda x, edge=0.5: x - x.clamp(-edge, edge),
        aten.full.default: _full,
        aten.full_like.default: lambda x, value, dtype=None, **_: _full(
            x.shape, value, dtype=dtype or x.dtype
        ),
        aten.linspace.default: _linspace,
        aten.new_full.default: lambda x, size, value, dtype=None, **_: _full(
            size, value, dtype=dtype or x.dtype
        ),
        aten.masked_fill.Scalar: lambda x, mask, value: _where(mask, value, x),
        aten.hinge_embedding_loss.default: _hinge_embedding_loss,
        aten.fill.Scalar: lambda x, value: _full(x.shape, value, dtype=x.dtype),
    }


def _sum(x: Any, product: Any, beta: Any, alpha: Any) -> Any:
    return product * alpha if beta == 0 else x * beta + product * alpha


def _hinge_embedding_loss(x: Any, target: Any, margin: float = 1.0, reduction: int = 1) -> Any:
    far = _where(target == 1, 0.0, (_full((), margin, dtype=x.dtype) - x).clamp(min=0))
    losses = far + _where(target == -1, 0.0, x)
    return losses if reduction == 0 else losses.mean() if reduction == 1 else losses.sum()


def _where(mask: Any, value: float, x: Any) -> Any:
    """`value` where `mask` is true, else `x`."""
    import torch

    return torch.where(mask, torch.scalar_tensor(value, dtype=x.dtype), x)


def _full(size: Sequence[Any], value: Any, *, dtype: Any, **_: Any) -> Any:
    import torch

    return torch.scalar_tensor(value, dtype=dtype).expand(size)


def _linspace(start: float, end: float, steps: int, *, dtype: Any, **_: Any) -> Any:
    import torch

    ends = [torch.scalar_tensor(number, dtype=dtype) for number in (start, end)]
    return torch.linspace(*ends, steps, dtype=dtype)


def _sinc(x: Any) -> Any:
    import torch

    angle = x * math.pi
    safe = torch.where(x == 0, torch.ones_like(x), angle)
    return torch.where(x == 0, torch.ones_like(x), safe.sin() / safe)


def _has_float(_: Any, values: Sequence[Any]) -> bool:
    return any(isinstance(value, float) for value in values)


def _arange(start: float, end: float, step: float = 1, *, dtype: Any = None, **_: Any) -> Any:
    """Numbers whose count is that of float64, as in PyTorch; ONNX counts those of float32."""
    import torch

    if not all(isinstance(number, float | int) for number in (start, end, step)):
        return NotImplemented  # sizes that are dynamic
    places = torch.arange(math.ceil((end - start) / step), dtype=torch.int64).to(torch.float64)
    return (places * step + start).to(dtype or torch.get_default_dtype())


EXACT_NUMBERS = Replacement(_applies, _rules)
EXACT_COUNTS = Replacement(
    _has_float,
    lambda aten: {
        aten.arange.default: lambda end, **keywords: _arange(0, end, **keywords),
        aten.arange.start: _arange,
        aten.arange.start_step: _arange,
    },
)
