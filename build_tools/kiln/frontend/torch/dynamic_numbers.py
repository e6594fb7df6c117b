"""Calls whose numbers, such as a factor or a shift, are dynamic sizes, by other operators.

PyTorch's exporter stores these numbers as attributes: it fails, or, for adaptive pools, takes the numbers of
the example that the program was exported with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.replaced import Replacement

# In names of operators whose numbers are computed from the sizes of their first argument.
_OF_SIZES = "adaptive_avg_pool", "fftshift"


def _applies(operator: Any, values: Sequence[Any]) -> bool:
    """Whether a call has a dynamic number: one among its arguments, or a size of its first one."""
    import torch

    return any(isinstance(value, (torch.SymInt, torch.SymFloat)) for value in values) or (
        any(name in str(operator) for name in _OF_SIZES)
        and not all(isinstance(size, int) for size in values[0].shape)
    )


def _rules(aten: Any) -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    return {
        aten.addcmul.default: lambda x, a, b, value=1: x + a * b * value,
        aten.addcdiv.default: lambda x, a, b, value=1: x + a / b * value,
        aten.addmm.default: lambda x, a, b, beta=1, alpha=1: _sum(x, a.matmul(b), beta, alpha),
        aten.addmv.default: lambda x, a, b, beta=1, alpha=1: _sum(x, a.matmul(b), beta, alpha),
        aten.addbmm.default: lambda x, a, b, beta=1, alpha=1: _sum(x, a.matmul(b).sum(0), beta, alpha),
        aten.leaky_relu.default: leaky_relu,
        aten.elu.default: elu,
        aten.celu.default: lambda x, alpha=1.0: elu(x, alpha, 1, 1 / alpha),
        aten.softplus.default: softplus,
        aten.hardtanh.default: lambda x, low=-1, high=1: x.clamp(low, high),
        aten.scatter.value: _scatter_value,
        aten.roll.default: _roll,
        aten.fft_fftshift.default: lambda x, dim=None: _centred(x, dim, 0),
        aten.fft_ifftshift.default: lambda x, dim=None: _centred(x, dim, 1),
        aten.adaptive_avg_pool1d.default: _adaptive_avg_pool,
        aten.adaptive_avg_pool2d.default: _adaptive_avg_pool,
        aten._adaptive_avg_pool2d.default: _adaptive_avg_pool,
        aten.adaptive_avg_pool3d.default: _adaptive_avg_pool,
        aten._adaptive_avg_pool3d.default: _adaptive_avg_pool,
    }


def _sum(x: Any, product: Any, beta: Any, alpha: Any) -> Any:
    return x * beta + product * alpha


def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    """aten::leaky_relu by comparison and product."""
    import torch

    return torch.where(x > 0, x, x * negative_slope)


def elu(x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    """aten::elu by its formula."""
    import torch

    return torch.where(x > 0, x * scale, (x * input_scale).expm1() * alpha * scale)


def softplus(x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    """aten::softplus by its formula."""
    import torch

    scaled = x * beta
    return torch.where(scaled > threshold, x, scaled.exp().log1p() / beta)


def _scatter_value(x: Any, dim: int, index: Any, value: Any) -> Any:
    return x.scatter(dim, index, x.new_zeros(()).add(value).to(x.dtype).expand(index.shape))


def _roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    import torch

    if not dims:
        return _roll(x.reshape(-1), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        x = x.index_select(dim, torch.remainder(torch.arange(size, device=x.device) - shift, size))
    return x


def _centred(x: Any, dim: Any, more: int) -> Any:
    """aten::fft_fftshift, which moves the first element of each axis in `dim` to its middle.

    `more`: 0, or 1 for the inverse. Without `dim`, all axes are moved.
    """
    dims = range(x.dim()) if dim is None else dim if isinstance(dim, Sequence) else [dim]
    return _roll(x, [(x.shape[axis] + more) // 2 for axis in dims], list(dims)) if dims else x


def _adaptive_avg_pool(x: Any, output_size: Any) -> Any:
    """The means of equal parts of the last axes, by products with a matrix along each of them.

    Part i of m of an axis of n elements goes from floor(i n / m) to ceil((i + 1) n / m). Elements are finite.
    """
    import torch

    for place, parts in enumerate(output_size):
        axis = place - len(output_size)
        size = x.shape[axis]
        if parts is size:
            continue
        if isinstance(parts, int) and parts == 1:
            x = x.mean(axis, keepdim=True)
            continue
        part = torch.arange(parts, device=x.device).unsqueeze(1)
        begin, end = part * size // parts, ((part + 1) * size + parts - 1) // parts
        position = torch.arange(size, device=x.device)
        inside = (position >= begin) & (position < end)
        x = x.movedim(axis, -1) @ (inside.to(x.dtype) / (end - begin)).to(x.dtype).transpose(0, 1)
        x = x.movedim(-1, axis)
    return x


DYNAMIC_NUMBERS = Replacement(_applies, _rules)
