"""Remainders and rounded quotients as PyTorch computes them, by operators that the exporter converts exactly.

PyTorch's floor division of floats goes through the remainder: 1 // 0.1 is 9, as 0.1 is a bit more than a
tenth, where the exporter rounds the quotient 10 down. Its remainder is exact, where the exporter subtracts
the rounded quotient's product. The exporter divides integers as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.present import aten as own_operators
from kiln.frontend.torch.replaced import Replacement


def _applies(operator: Any, values: Sequence[Any]) -> bool:
    """Whether the exporter converts a call wrongly: of real numbers, no dynamic sizes among them.

    Of integers it converts the remainder and torch.floor_divide rightly.
    """
    import torch

    aten, sizes = own_operators(), (torch.SymInt, torch.SymFloat)
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if any(one.is_complex() for one in tensors) or any(isinstance(one, sizes) for one in values):
        return False
    rounds = operator in (aten.div.Scalar_mode, aten.div.Tensor_mode)
    return rounds or torch.result_type(*values[:2]).is_floating_point


def _rules(aten: Any) -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    return {
        aten.div.Scalar_mode: _divided,
        aten.div.Tensor_mode: _divided,
        aten.floor_divide.default: _floor,
        aten.floor_divide.Scalar: _floor,
        aten.remainder.Scalar: _remainder,
        aten.remainder.Scalar_Tensor: _remainder,
        aten.remainder.Tensor: _remainder,
    }


def _operands(x: Any, y: Any) -> tuple[Any, Any]:
    """Both operands as tensors of the type of the result, 16-bit floats as float32."""
    import torch

    kind = torch.result_type(x, y)
    wide = torch.float32 if kind in _narrow() else kind

    def tensor(operand: Any) -> Any:
        if isinstance(operand, torch.Tensor):
            return operand.to(kind).to(wide)
        return torch.scalar_tensor(operand, dtype=kind).to(wide)

    return tensor(x), tensor(y)


def _quotient_operands(x: Any, y: Any) -> tuple[Any, Any, Callable[[Any], Any]]:
    """Both operands of a division of floats, and the rounding of each of its steps.

    PyTorch rounds steps of 16-bit floats, but not where the divisor is one element, and not a number either.
    """
    import torch

    a, b = _operands(x, y)
    kind = torch.result_type(x, y)
    if kind not in _narrow():
        return a, b, lambda value: value
    if not isinstance(y, torch.Tensor):
        return a, torch.scalar_tensor(y, dtype=torch.float32), lambda value: value
    if all(isinstance(size, int) and size == 1 for size in y.shape):
        return a, b, lambda value: value
    return a, b, lambda value: value.to(kind).float()


def _narrow() -> tuple[Any, ...]:
    import torch

    return torch.float16, torch.bfloat16


def _remainder(x: Any, y: Any) -> Any:
    """torch.remainder of floats: C's fmod, then plus y where the signs differ."""
    import torch

    a, b = _operands(x, y)
    rest = torch.fmod(a, b)
    return torch.where(_differ(rest, b), rest + b, rest).to(torch.result_type(x, y))


def _differ(rest: Any, divisor: Any) -> Any:
    """Where a remainder is not 0 and has another sign than the divisor."""
    return (rest != 0).logical_and((divisor < 0).logical_xor(rest < 0))


def _divided(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    """torch.div with a rounding mode."""
    import torch

    kind = torch.result_type(x, y)
    if rounding_mode is None or kind is torch.bool:
        return NotImplemented
    if kind.is_floating_point:
        return _floor(x, y) if rounding_mode == "floor" else _trunc(x, y)
    a, b = _operands(x, y)
    quotient = torch.floor_divide(a, b)
    if rounding_mode == "floor" or not kind.is_signed:
        return quotient
    # Rounding down took one more from a quotient below 0 that is not whole.
    opposite = (a < 0).logical_xor(b < 0)
    return quotient + (torch.fmod(a, b) != 0).logical_and(opposite).to(kind)


def _trunc(x: Any, y: Any) -> Any:
    """The quotient of floats, rounded to their type, without its fraction."""
    import torch

    a, b, rounded = _quotient_operands(x, y)
    return torch.trunc(rounded(a / b)).to(torch.result_type(x, y))


def _floor(x: Any, y: Any) -> Any:
    """The quotient of floats rounded down, from x minus the remainder; each step rounds to their type."""
    import torch

    a, b, rounded = _quotient_operands(x, y)
    rest = torch.fmod(a, b)
    exact = rounded(rounded(a - rest) / b)
    exact = torch.where(_differ(rest, b), rounded(exact - 1), exact)
    lower = torch.floor(exact)
    lower = torch.where(rounded(exact - lower) > 0.5, rounded(lower + 1), lower)
    quotient = rounded(a / b)
    lower = torch.where(exact != 0, lower, quotient * 0)  # with the quotient's sign
    return torch.where(b == 0, quotient, lower).to(torch.result_type(x, y))


QUOTIENTS = Replacement(_applies, _rules)
