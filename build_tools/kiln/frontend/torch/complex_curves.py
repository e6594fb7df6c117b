"""Functions of one complex number, and powers, on their real and imaginary parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from kiln.frontend.torch.complex_functions import (
    added,
    divided,
    is_number,
    multiplied,
    parts,
    reciprocal,
    size_of,
)
from kiln.frontend.torch.complex_moves import joined, made, pair
from kiln.frontend.torch.present import aten as own_operators


def curves() -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    import torch

    aten = own_operators()
    return {**_curves(torch, aten), **_inverse(torch, aten), **_powers(torch, aten)}


def _root(torch: ModuleType, x: Any) -> Any:
    """The root with a real part that is not negative; differences that would cancel are not taken."""
    a, b = parts(x)
    greater = torch.sqrt(size_of(x) / 2 + a.abs() / 2)
    less = torch.where(greater > 0, b.abs() / (2 * greater), 0.0)
    real, imaginary = torch.where(a >= 0, greater, less), torch.where(a >= 0, less, greater)
    return joined(real, torch.where(b < 0, -imaginary, imaginary))


def _exponential(x: Any) -> Any:
    a, b = parts(x)
    return joined(a.exp() * b.cos(), a.exp() * b.sin())


def _logarithm(torch: ModuleType, x: Any) -> Any:
    a, b = parts(x)
    return joined(size_of(x).log(), torch.atan2(b, a))


def _turned(x: Any) -> Any:
    """i times `x`."""
    a, b = parts(x)
    return joined(-b, a)


def _turned_back(x: Any) -> Any:
    """-i times `x`."""
    a, b = parts(x)
    return joined(b, -a)


def _curves(torch: ModuleType, aten: Any) -> Mapping[Any, Callable[..., Any]]:
    def sine(x: Any) -> Any:
        a, b = parts(x)
        return joined(a.sin() * b.cosh(), a.cos() * b.sinh())

    def cosine(x: Any) -> Any:
        a, b = parts(x)
        return joined(a.cos() * b.cosh(), -(a.sin() * b.sinh()))

    def tangent(x: Any) -> Any:  # of the hyperbola
        a, b = parts(x)
        t, u = a.tanh(), b.tan()
        return divided(joined(t, u), joined(torch.ones_like(t), t * u))

    def sign(x: Any) -> Any:
        size = size_of(x)
        return joined(*(torch.where(size == 0, 0.0, part / size) for part in parts(x)))

    return {
        aten.exp.default: _exponential,
        aten.exp2.default: lambda x: _exponential(multiplied(x, math.log(2))),
        aten.expm1.default: lambda x: added(_exponential(x), -1),
        aten.sin.default: sine,
        aten.cos.default: cosine,
        aten.tan.default: lambda x: _turned_back(tangent(_turned(x))),
        aten.sinh.default: lambda x: _turned_back(sine(_turned(x))),
        aten.cosh.default: lambda x: cosine(_turned(x)),
        aten.tanh.default: tangent,
        aten.sgn.default: sign,
        aten.sign.default: sign,
        aten.sigmoid.default: lambda x: reciprocal(added(_exponential(made(-pair(x))), 1)),
        aten.abs.default: size_of,
        aten.angle.default: lambda x: torch.atan2(*reversed(parts(x))),
        aten.isnan.default: lambda x: pair(x).isnan().any(-1),
        aten.isinf.default: lambda x: pair(x).isinf().any(-1),
        aten.isfinite.default: lambda x: pair(x).isfinite().all(-1),
    }


def _inverse(torch: ModuleType, aten: Any) -> Mapping[Any, Callable[..., Any]]:
    """Logarithms, and inverses of the circle's and the hyperbola's functions, by roots and logarithms."""

    def logarithm(x: Any) -> Any:
        return _logarithm(torch, x)

    def inverse_sinh(x: Any) -> Any:
        # The sum of two numbers of one sign: the function is odd.
        below = parts(x)[0] < 0
        turned = made(torch.where(below.unsqueeze(-1), -pair(x), pair(x)))
        result = logarithm(added(turned, _root(torch, added(multiplied(turned, turned), 1))))
        return made(torch.where(below.unsqueeze(-1), -pair(result), pair(result)))

    def inverse_cosh(x: Any) -> Any:
        roots = multiplied(_root(torch, added(x, 1)), _root(torch, added(x, -1)))
        return logarithm(added(x, roots))

    def inverse_tanh(x: Any) -> Any:
        ratio = added(logarithm(added(x, 1)), logarithm(added(made(-pair(x)), 1)), -1)
        return multiplied(ratio, 0.5)

    def inverse_sine(x: Any) -> Any:
        return _turned_back(inverse_sinh(_turned(x)))

    return {
        aten.log.default: logarithm,
        aten.log2.default: lambda x: multiplied(logarithm(x), 1 / math.log(2)),
        aten.log10.default: lambda x: multiplied(logarithm(x), 1 / math.log(10)),
        aten.log1p.default: lambda x: logarithm(added(x, 1)),
        aten.asinh.default: inverse_sinh,
        aten.acosh.default: inverse_cosh,
        aten.atanh.default: inverse_tanh,
        aten.asin.default: inverse_sine,
        aten.acos.default: lambda x: added(made(-pair(inverse_sine(x))), math.pi / 2),
        aten.atan.default: lambda x: _turned_back(inverse_tanh(_turned(x))),
    }


def _powers(torch: ModuleType, aten: Any) -> Mapping[Any, Callable[..., Any]]:
    def of_exponent(x: Any, exponent: Any) -> Any:
        """exp(exponent log(x)); of 0 it is 0, infinite or NaN, as the exponent's real part is."""
        if not isinstance(x, torch.Tensor):
            x = joined(torch.full((), complex(x).real), complex(x).imag)
        is_zero = is_number(x, 0)
        safe = made(torch.where(is_zero.unsqueeze(-1), torch.ones_like(pair(x)), pair(x)))
        power = pair(_exponential(multiplied(_logarithm(torch, safe), exponent)))
        real = parts(exponent)[0] if isinstance(exponent, torch.Tensor) else complex(exponent).real
        real = torch.zeros_like(power[..., 0]) + real
        rest = torch.where(real > 0, 0.0, math.nan)
        at_zero = torch.stack([torch.where(real < 0, math.inf, rest), rest], -1)
        return made(torch.where(is_zero.unsqueeze(-1), at_zero, power))

    def power(x: Any, exponent: Any) -> Any:
        if exponent == 0:
            return made(torch.stack([torch.ones_like(parts(x)[0]), torch.zeros_like(parts(x)[0])], -1))
        is_real = not isinstance(exponent, complex) or not exponent.imag
        number = complex(exponent).real if is_real else 0.5
        if number == int(number) and 1 <= abs(number) <= 8:
            result = x
            for _ in range(abs(int(number)) - 1):
                result = multiplied(result, x)
            return result if number > 0 else reciprocal(result)
        return of_exponent(x, exponent)

    return {
        aten.sqrt.default: lambda x: _root(torch, x),
        aten.rsqrt.default: lambda x: reciprocal(_root(torch, x)),
        aten.square.default: lambda x: multiplied(x, x),
        aten.pow.Tensor_Scalar: power,
        aten.pow.Tensor_Tensor: of_exponent,
        aten.pow.Scalar: of_exponent,
    }
