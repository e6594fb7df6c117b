"""Calls with integers or truth values of operators that ONNX has of floats alone, by other operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.replaced import Replacement


def _applies(_: Any, values: Sequence[Any]) -> bool:
    """Whether the first argument of a call is a tensor of integers or of truth values."""
    import torch

    first = values[0]
    return isinstance(first, torch.Tensor) and not (first.dtype.is_floating_point or first.is_complex())


def _rules(aten: Any) -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    import torch

    whole = (aten.ceil.default, aten.floor.default, aten.trunc.default, aten.round.default)
    never = (aten.isnan.default, aten.isinf.default, aten.isposinf.default, aten.isneginf.default)
    rules: dict[Any, Callable[..., Any]] = {
        **{operator: lambda x, **_: x.clone() for operator in (*whole, aten.round.decimals)},
        **{operator: lambda x: torch.zeros_like(x, dtype=torch.bool) for operator in never},
    }
    return rules | {
        aten.isfinite.default: lambda x: torch.ones_like(x, dtype=torch.bool),
        aten.angle.default: lambda x: (x < 0).to(torch.get_default_dtype()) * math.pi,
        aten.nansum.default: torch.sum,
        aten.nanmedian.default: torch.median,
        aten.nanmedian.dim: torch.median,
        aten.add.Tensor: _sum_of_bools,
        aten.mul.Tensor: _product_of_bools,
    }


def _sum_of_bools(x: Any, y: Any, alpha: Any = 1) -> Any:
    """The sum of truth values, which is true where one is."""
    if not _are_bools(x, y) or not alpha:
        return NotImplemented
    return x.logical_or(y)


def _product_of_bools(x: Any, y: Any) -> Any:
    """The product of truth values, which is true where both are."""
    return x.logical_and(y) if _are_bools(x, y) else NotImplemented


def _are_bools(*operands: Any) -> bool:
    import torch

    return all(isinstance(one, torch.Tensor) and one.dtype == torch.bool for one in operands)


INTEGERS = Replacement(_applies, _rules)
