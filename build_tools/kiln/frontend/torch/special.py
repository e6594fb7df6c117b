"""Functions of numbers that PyTorch's exporter to ONNX lacks, or computes by differences that cancel.

lgamma, digamma, erfinv, erfcx, i0, hypot, copysign, atan2 with zeros and infinities, and rrelu, which outside
training is a leaky ReLU.

Each function is traced by the exporter. Errors are a few units of the last place of float32, of the
result or of 1 where that is greater.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.onnx_steps import like
from kiln.frontend.torch.present import aten as own_operators

_FLOAT64 = 11  # of ONNX's element types

# C. Lanczos' series with gamma = 5, as in Numerical Recipes (gammln).
_LANCZOS: tuple[float, ...] = (
    76.18009172947146,
    -86.50532032941677,
    24.01409824083091,
    -1.231739572450155,
    0.1208650973866179e-2,
    -0.5395239384953e-5,
)
# Lanczos' series with gamma = 7 and nine terms, whose error is below 1e-15 (P. Godfrey's factors).
_LANCZOS_64: tuple[float, ...] = (
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)
# M. Giles, Approximating the erfinv function: the centre, and the tails.
_CENTRE: tuple[float, ...] = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_TAILS: tuple[float, ...] = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


def special() -> Mapping[Any, Callable[..., Any]]:
    """The operators of this module, for torch.onnx.export's `custom_translation_table`."""
    import torch

    aten = own_operators()
    return {
        aten.lgamma.default: lgamma,
        aten.digamma.default: digamma,
        aten.erfinv.default: erfinv,
        aten.special_erfcx.default: erfcx,
        torch.ops.prims.erfcx.default: erfcx,
        torch.ops.prims.bessel_i0.default: i0,
        aten.rrelu_with_noise_functional.default: rrelu,
        aten.hypot.default: hypot,
        aten.copysign.Tensor: copysign,
        aten.atan2.default: atan2,
    }


# Abramowitz and Stegun, 9.8.1 and 9.8.2: in (x / 3.75)^2, and in 3.75 / x.
_BESSEL: tuple[float, ...] = (0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0)
_BESSEL_TAIL: tuple[float, ...] = (
    0.00392377,
    -0.01647633,
    0.02635537,
    -0.02057706,
    0.00916281,
    -0.00157565,
    0.00225319,
    0.01328592,
    0.39894228,
)
# Factors of the asymptotic series of digamma in 1 / x^2: Bernoulli's numbers B(2n), divided by -2n.
_DIGAMMA: tuple[float, ...] = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760, -1 / 12)
_FRACTION = 24  # levels of the continued fraction of erfcx, from 2 on


def lgamma(self: Any) -> Any:
    """aten::lgamma: the logarithm of the absolute value of the gamma function."""
    from onnxscript import opset18 as op

    reflected = op.Less(self, like(0.5, self))
    x = op.Where(reflected, op.Sub(like(1, self), self), self)
    wide = self.dtype == _FLOAT64
    series: Any = like(0.99999999999980993 if wide else 1.000000000190015, self)
    for term, factor in enumerate(_LANCZOS_64 if wide else _LANCZOS, 1):
        series = op.Add(series, op.Div(like(factor, self), op.Add(x, like(term, self))))
    high = op.Add(x, like(7.5 if wide else 5.5, self))
    main = op.Sub(op.Mul(op.Add(x, like(0.5, self)), op.Log(high)), high)
    logarithm = op.Add(main, op.Log(op.Div(op.Mul(like(math.sqrt(2 * math.pi), self), series), x)))
    rest = op.Sub(self, op.Round(self))
    sine = op.Abs(op.Sin(op.Mul(rest, like(math.pi, self))))
    mirrored = op.Sub(op.Log(op.Div(like(math.pi, self), sine)), logarithm)
    return op.Where(op.IsInf(self), op.Abs(self), op.Where(reflected, mirrored, logarithm))


def digamma(self: Any) -> Any:
    """aten::digamma: the derivative of lgamma, by its asymptotic series 6 above the number, 10 in float64."""
    from onnxscript import opset18 as op

    one = like(1, self)
    reflected = op.Less(self, like(0, self))
    x = op.Where(reflected, op.Sub(one, self), self)
    above, terms = (10, 7) if self.dtype == _FLOAT64 else (6, 3)
    sums: Any = op.Div(one, x)
    for term in range(1, above):
        sums = op.Add(sums, op.Div(one, op.Add(x, like(term, self))))
    high = op.Add(x, like(above, self))
    square = op.Div(one, op.Mul(high, high))
    tail = _polynomial(square, (*reversed(_DIGAMMA[:terms]), 0), self)
    logarithm = op.Sub(op.Add(op.Sub(op.Log(high), op.Div(like(0.5, self), high)), tail), sums)
    rest = op.Sub(self, op.Round(self))
    slope = op.Div(like(math.pi, self), op.Tan(op.Mul(rest, like(math.pi, self))))
    below = op.Where(op.Equal(rest, like(0, self)), like(math.nan, self), op.Sub(logarithm, slope))
    return op.Where(reflected, below, logarithm)


def erfinv(self: Any) -> Any:
    """aten::erfinv: the inverse of the error function."""
    from onnxscript import opset18 as op

    one = like(1, self)
    w = op.Neg(op.Log(op.Mul(op.Sub(one, self), op.Add(one, self))))
    centre = _polynomial(op.Sub(w, like(2.5, w)), _CENTRE, self)
    tails = _polynomial(op.Sub(op.Sqrt(op.Max(w, like(0, w))), like(3, w)), _TAILS, self)
    factor = op.Where(op.Less(w, like(5, w)), centre, tails)
    end = op.Equal(op.Abs(self), one)
    return op.Mul(self, op.Where(end, like(math.inf, self), factor))


def erfcx(self: Any) -> Any:
    """aten::special_erfcx: exp(x^2) (1 - erf(x)), by a continued fraction from 2 on."""
    from onnxscript import opset18 as op

    two = like(2, self)
    small = op.Min(self, two)
    near = op.Mul(op.Exp(op.Mul(small, small)), op.Sub(like(1, self), op.Erf(small)))
    far: Any = op.Max(self, two)
    fraction: Any = far
    for level in range(_FRACTION, 0, -1):
        fraction = op.Add(far, op.Div(like(level / 2, self), fraction))
    return op.Where(op.Less(self, two), near, op.Div(like(1 / math.sqrt(math.pi), self), fraction))


def i0(self: Any) -> Any:
    """aten::i0: the modified Bessel function of order 0."""
    from onnxscript import opset18 as op

    size, edge = op.Abs(self), like(3.75, self)
    part = op.Div(op.Min(size, edge), edge)
    near = _polynomial(op.Mul(part, part), _BESSEL, self)
    far = op.Max(size, edge)
    tail = _polynomial(op.Div(edge, far), _BESSEL_TAIL, self)
    return op.Where(op.Less(size, edge), near, op.Mul(op.Div(op.Exp(far), op.Sqrt(far)), tail))


def rrelu(
    self: Any,
    noise: Any,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> tuple[Any, Any]:
    """aten::rrelu_with_noise: a leaky ReLU with the mean slope. Raises ValueError in training."""
    from onnxscript import opset18 as op

    if training:
        raise ValueError("rrelu in training draws random slopes; call eval() of the module")
    return op.LeakyRelu(self, alpha=(lower + upper) / 2), noise


def hypot(self: Any, other: Any) -> Any:
    """aten::hypot: the root of the sum of two squares, which does not overflow before its result.

    It is infinite where one number is, else NaN where one is.
    """
    from onnxscript import opset18 as op

    a, b = op.Abs(self), op.Abs(other)
    most, least = op.Max(a, b), op.Min(a, b)
    ratio = op.Div(least, op.Where(op.Equal(most, like(0, self)), like(1, self), most))
    root = op.Mul(most, op.Sqrt(op.Add(op.Mul(ratio, ratio), like(1, self))))
    total = op.Add(a, b)
    infinite = op.Or(op.IsInf(a), op.IsInf(b))
    return op.Where(infinite, like(math.inf, self), op.Where(op.IsNaN(total), total, root))


def copysign(self: Any, other: Any) -> Any:
    """aten::copysign: the magnitude of one number with the sign of another, also of its zero."""
    from onnxscript import opset18 as op

    size = op.Abs(self)
    return op.Where(_has_minus(other), op.Neg(size), size)


def _has_minus(x: Any) -> Any:
    """Whether numbers have the sign of negative ones, also zeros."""
    from onnxscript import opset18 as op

    zero = like(0, x)
    return op.Less(op.Where(op.Equal(x, zero), op.Div(like(1, x), x), x), zero)


def atan2(self: Any, other: Any) -> Any:
    """aten::atan2: the angle from -pi to pi of (other, self); zeros have signs, too."""
    from onnxscript import opset18 as op

    y, x = op.Abs(self), op.Abs(other)
    most, least = op.Max(y, x), op.Min(y, x)
    ratio = op.Div(least, op.Where(op.Equal(most, like(0, self)), like(1, self), most))
    ratio = op.Where(op.Equal(least, like(math.inf, self)), like(1, self), ratio)
    angle = op.Atan(ratio)
    angle = op.Where(op.Greater(y, x), op.Sub(like(math.pi / 2, self), angle), angle)
    angle = op.Where(_has_minus(other), op.Sub(like(math.pi, self), angle), angle)
    angle = op.Where(_has_minus(self), op.Neg(angle), angle)
    return op.Where(op.Or(op.IsNaN(self), op.IsNaN(other)), like(math.nan, self), angle)


def _polynomial(x: Any, factors: Sequence[float], of: Any) -> Any:
    """The polynomial of x with `factors`, the factor of the highest power first; `of`: an input of its type.

    The exporter does not know the types of all results, and float64 would have factors of float32.
    """
    from onnxscript import opset18 as op

    polynomial: Any = like(factors[0], of)
    for factor in factors[1:]:
        polynomial = op.Add(op.Mul(polynomial, x), like(factor, of))
    return polynomial
