"""Calls of functions that Kiln composes of several steps, with 16-bit floats, integers or truth values.

PyTorch computes these functions of 16-bit floats in float32, and of integers in its default type. The steps
would round to 16 bits each, and ONNX has few of them for integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.replaced import Replacement


def _applies(_: Any, values: Sequence[Any]) -> bool:
    """Whether the tensors of a call are all of other types than float32, float64 and complex numbers."""
    import torch

    wide = (torch.float32, torch.float64)
    kinds = [value.dtype for value in values if isinstance(value, torch.Tensor)]
    return bool(kinds) and not any(kind in wide or kind.is_complex for kind in kinds)


def _rules(aten: Any) -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    functions = (
        aten.digamma.default,
        aten.erfinv.default,
        aten.hypot.default,
        aten.i0.default,
        aten.lgamma.default,
        aten.polygamma.default,
        aten.sinc.default,
        aten.special_erfcx.default,
        aten.special_zeta.default,
    )
    return {operator: _in_float32(operator) for operator in functions}


def _in_float32(operator: Any) -> Callable[..., Any]:
    """`operator` of float32 numbers, whose result has the type that it has without them."""
    import torch

    def called(*arguments: Any) -> Any:
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        kinds = [value.dtype for value in tensors if value.dtype.is_floating_point]
        result = torch.promote_types(kinds[0], kinds[-1]) if kinds else torch.get_default_dtype()
        wide = [value.float() if isinstance(value, torch.Tensor) else value for value in arguments]
        return operator(*wide).to(result)

    return called


WIDE_FUNCTIONS = Replacement(_applies, _rules)
