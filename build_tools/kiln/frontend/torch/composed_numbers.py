"""Functions of numbers that PyTorch's exporter to ONNX lacks: fmax, fmin, frexp, gcd, polygamma, zeta, …

Each function has the arguments of the operator of its name, and computes it by other operators of PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from kiln.frontend.torch.present import aten as own_operators

# Euclid's algorithm takes the most steps for neighbours in Fibonacci's sequence: by bytes of the integers.
_EUCLID: Mapping[int, int] = {1: 12, 2: 24, 4: 47, 8: 93}
# Of zeta's Euler-Maclaurin sum: the terms before the integral, and the Bernoulli numbers B(2), B(4), … after.
_TERMS = 9
_BERNOULLI: tuple[float, ...] = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def numbers() -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    aten = own_operators()
    return {
        aten.fmax.default: fmax,
        aten.fmin.default: fmin,
        aten.frexp.Tensor: frexp,
        aten.gcd.default: gcd,
        aten.polygamma.default: polygamma,
        aten.special_zeta.default: zeta,
        aten.special_zeta.self_scalar: lambda s, q: zeta(q.new_full((), s), q),
        aten.special_zeta.other_scalar: lambda s, q: zeta(s, s.new_full((), q)),
    }


def fmax(self: Any, other: Any) -> Any:
    """aten::fmax: the greater of two numbers; the other one where one is NaN."""
    import torch

    return _numbers_first(torch.maximum, self, other)


def fmin(self: Any, other: Any) -> Any:
    """aten::fmin: the lesser of two numbers; the other one where one is NaN."""
    import torch

    return _numbers_first(torch.minimum, self, other)


def _numbers_first(choose: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    import torch

    kind = torch.result_type(a, b)
    a, b = a.to(kind), b.to(kind)
    if not kind.is_floating_point:
        return choose(a, b)
    return torch.where(a.isnan(), b, torch.where(b.isnan(), a, choose(a, b)))


def frexp(self: Any) -> tuple[Any, Any]:
    """aten::frexp: a fraction of size 0.5 to 1, and the power of two (int32) that it is multiplied by.

    Products with powers of two are exact. Zeros, infinities and NaN are their own fraction, with the power 0.
    """
    import torch

    top = {torch.float16: 8, torch.float64: 512}.get(self.dtype, 64)
    shifts = [top >> place for place in range(top.bit_length())]
    size, power = self.abs(), torch.zeros_like(self, dtype=torch.int32)
    for shift in shifts:
        is_great = size >= 2.0**shift
        size = torch.where(is_great, size * 2.0**-shift, size)
        power = torch.where(is_great, power + shift, power)
    for shift in (top, top, *shifts):  # numbers below the normal ones reach further
        is_small = size < 2.0 ** (1 - shift)
        size = torch.where(is_small, size * 2.0**shift, size)
        power = torch.where(is_small, power - shift, power)
    whole = (self == 0) | self.isinf() | self.isnan()
    fraction = torch.where(self < 0, -size, size) * 0.5
    return torch.where(whole, self, fraction), torch.where(whole, torch.zeros_like(power), power + 1)


def gcd(self: Any, other: Any) -> Any:
    """aten::gcd: the greatest common divisor of two integers, by Euclid's algorithm."""
    import torch

    kind = torch.result_type(self, other)
    a, b = torch.broadcast_tensors(self.to(kind).abs(), other.to(kind).abs())
    for _ in range(_EUCLID[kind.itemsize]):
        a, b = torch.where(b == 0, a, b), torch.fmod(a, b.clamp(min=1))  # by 1: 0, as it was
    return a


def polygamma(n: int, self: Any) -> Any:
    """aten::polygamma: derivative number `n` of digamma; numbers below 1/2 by their reflection at 1/2."""
    import torch

    if n == 0:
        return torch.digamma(self)
    self = self if self.is_floating_point() else self.to(torch.get_default_dtype())
    reflected = self < 0.5
    x = torch.where(reflected, 1 - self, self)
    value = (-1) ** (n + 1) * math.factorial(n) * _zeta_of_integer(n + 1, x)
    # The derivative number n of pi cot(pi x), as a polynomial of the cotangent: cot' = -(1 + cot^2).
    factors = [0.0, 1.0]
    for _ in range(n):
        slopes = [place * factor for place, factor in enumerate(factors)][1:]
        factors = [-(a + b) for a, b in zip([*slopes, 0.0, 0.0], [0.0, 0.0, *slopes], strict=True)]
    part = (self - self.floor()) * math.pi
    cotangent = torch.cos(part) / torch.sin(part)
    sums = torch.zeros_like(self)
    for factor in reversed(factors):
        sums = sums * cotangent + factor
    mirrored = (-1) ** n * value - math.pi ** (n + 1) * sums
    is_pole = reflected & (self == self.floor())
    ends = torch.full_like(self, math.inf if n % 2 else -math.inf)
    return torch.where(is_pole, ends, torch.where(reflected, mirrored, value))


def _zeta_of_integer(s: int, q: Any) -> Any:
    import torch

    return zeta(torch.full_like(q, float(s)), q)


def zeta(self: Any, other: Any) -> Any:
    """aten::special_zeta: the sum of (other + k)^-self for k = 0, 1, …, with other > 0.

    1 gives infinity, a lesser exponent NaN. Where `other` is not positive: infinity for integers, else NaN.
    """
    import torch

    kind = torch.result_type(self, other)
    kind = kind if kind.is_floating_point else torch.get_default_dtype()
    s, q = torch.broadcast_tensors(self.to(kind), other.to(kind))
    safe = torch.where((s > 1) & (q > 0), s, torch.full_like(s, 2.0))
    start = torch.where(q > 0, q, torch.ones_like(q))
    sums = torch.zeros_like(start)
    for place in range(_TERMS):
        sums = sums + torch.pow(start + place, -safe)
    end = start + _TERMS
    term = torch.pow(end, -safe)
    sums = sums + term * end / (safe - 1) + term / 2
    factor = safe / end * term
    for place, number in enumerate(_BERNOULLI, 1):
        sums = sums + factor * (number / math.factorial(2 * place))
        factor = factor * ((safe + (2 * place - 1)) / end) * ((safe + 2 * place) / end)
    endless = (s == 1) | ((s > 1) & (q <= 0) & (q == q.floor()))
    unknown = (s < 1) | (q <= 0)
    sums = torch.where(unknown, torch.full_like(sums, math.nan), sums)
    return torch.where(endless, torch.full_like(sums, math.inf), sums)
