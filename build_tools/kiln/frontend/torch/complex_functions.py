"""Arithmetic and functions of complex numbers, on their real and imaginary parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kiln.frontend.torch.complex_moves import axis, joined, made, of_type, pair
from kiln.frontend.torch.present import aten as own_operators


def functions() -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    import torch

    aten = own_operators()
    made_here = (_arithmetic(aten), _curves(torch, aten), _sums(torch, aten), _products(torch, aten))
    return {operator: rule for rules in made_here for operator, rule in rules.items()}


def parts(x: Any) -> tuple[Any, Any]:
    """The real and the imaginary part of a tensor or a number; None as that of a real one."""
    if isinstance(x, complex):
        return x.real, x.imag
    if not hasattr(x, "is_complex") or not x.is_complex():
        return x, None
    pairs = pair(x)
    return pairs[..., 0], pairs[..., 1]


def _added(x: Any, y: Any, alpha: Any = 1) -> Any:
    if isinstance(alpha, complex):
        y, alpha = _multiplied(y, alpha), 1
    (a, b), (c, d) = parts(x), parts(y)
    imaginary = b if d is None else _scaled(d, alpha) if b is None else b + _scaled(d, alpha)
    return joined(a + _scaled(c, alpha), imaginary)


def _size(x: Any) -> Any:
    a, b = parts(x)
    return (a * a + b * b).sqrt()


def _scaled(x: Any, factor: Any) -> Any:
    return x if factor == 1 else x * factor


def _is_number(x: Any, number: Any) -> Any:
    """Where the elements of `x` are `number`, real or complex."""
    pairs, value = pair(x), complex(number)
    return (pairs[..., 0] == value.real) & (pairs[..., 1] == value.imag)


def _multiplied(x: Any, y: Any) -> Any:
    (a, b), (c, d) = parts(x), parts(y)
    if b is None or d is None:
        return joined(a * c, a * d if b is None else b * c)
    return joined(a * c - b * d, a * d + b * c)


def _reciprocal(x: Any) -> Any:
    a, b = parts(x)
    size = a * a + b * b
    return joined(a / size, -b / size)


def _divided(x: Any, y: Any) -> Any:
    c, d = parts(y)
    if d is None:
        a, b = parts(x)
        return joined(a / c, b / c)
    return _multiplied(x, _reciprocal(y) if hasattr(y, "is_complex") else 1 / y)


def _arithmetic(aten: Any) -> Mapping[Any, Callable[..., Any]]:
    def conjugate(x: Any) -> Any:
        a, b = parts(x)
        return joined(a, -b)

    return {
        aten.add.Tensor: _added,
        aten.add.Scalar: _added,
        aten.sub.Tensor: lambda x, y, alpha=1: _added(x, y, -alpha),
        aten.sub.Scalar: lambda x, y, alpha=1: _added(x, y, -alpha),
        aten.rsub.Tensor: lambda x, y, alpha=1: _added(y, x, -alpha),
        aten.rsub.Scalar: lambda x, y, alpha=1: _added(y, x, -alpha),
        aten.mul.Tensor: _multiplied,
        aten.mul.Scalar: _multiplied,
        aten.div.Tensor: _divided,
        aten.div.Scalar: _divided,
        aten.neg.default: lambda x: made(-pair(x)),
        aten.reciprocal.default: _reciprocal,
        aten._conj.default: conjugate,
        aten.conj_physical.default: conjugate,
        aten.resolve_conj.default: lambda x: x,
        aten.resolve_neg.default: lambda x: x,
        aten._to_copy.default: lambda x, dtype=None, **_: of_type(x, dtype),
        aten.to.dtype: lambda x, dtype, *_: of_type(x, dtype),
    }


def _root(torch: Any, x: Any) -> Any:
    """The root with a real part that is not negative; differences that would cancel are not taken."""
    a, b = parts(x)
    greater = torch.sqrt(((a * a + b * b).sqrt() + a.abs()) / 2)
    less = torch.where(greater > 0, b.abs() / (2 * greater), 0.0)
    real, imaginary = torch.where(a >= 0, greater, less), torch.where(a >= 0, less, greater)
    return joined(real, torch.where(b < 0, -imaginary, imaginary))


def _curves(torch: Any, aten: Any) -> Mapping[Any, Callable[..., Any]]:
    def exponential(x: Any) -> Any:
        a, b = parts(x)
        return joined(a.exp() * b.cos(), a.exp() * b.sin())

    def logarithm(x: Any) -> Any:
        a, b = parts(x)
        return joined((a * a + b * b).sqrt().log(), torch.atan2(b, a))

    def sine(x: Any) -> Any:
        a, b = parts(x)
        return joined(a.sin() * b.cosh(), a.cos() * b.sinh())

    def cosine(x: Any) -> Any:
        a, b = parts(x)
        return joined(a.cos() * b.cosh(), -(a.sin() * b.sinh()))

    def tangent(x: Any) -> Any:  # of the hyperbola
        a, b = parts(x)
        t, u = a.tanh(), b.tan()
        return _divided(joined(t, u), joined(torch.ones_like(t), t * u))

    def sign(x: Any) -> Any:
        a, b = parts(x)
        size = (a * a + b * b).sqrt()
        scale = torch.where(size > 0, 1 / size, 0.0)
        return joined(a * scale, b * scale)

    def power(x: Any, exponent: Any) -> Any:
        if not isinstance(exponent, complex) and exponent == int(exponent) and 1 <= exponent <= 8:
            result = x
            for _ in range(int(exponent) - 1):
                result = _multiplied(result, x)
            return result
        return exponential(_multiplied(logarithm(x), exponent))

    return {
        aten.exp.default: exponential,
        aten.log.default: logarithm,
        aten.sin.default: sine,
        aten.cos.default: cosine,
        aten.tanh.default: tangent,
        aten.sgn.default: sign,
        aten.sqrt.default: lambda x: _root(torch, x),
        aten.rsqrt.default: lambda x: _reciprocal(_root(torch, x)),
        aten.sigmoid.default: lambda x: _reciprocal(_added(exponential(made(-pair(x))), 1)),
        aten.pow.Tensor_Scalar: power,
        aten.square.default: lambda x: _multiplied(x, x),
        aten.abs.default: lambda x: _size(x),
        aten.angle.default: lambda x: torch.atan2(*reversed(parts(x))),
    }


def _sums(torch: Any, aten: Any) -> Mapping[Any, Callable[..., Any]]:
    def reduced(how: Any) -> Callable[..., Any]:
        def over(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
            x = of_type(x, dtype)
            given = [dim] if isinstance(dim, int) else dim
            dims = given or range(x.dim())
            axes = [one % x.dim() for one in dims if x.dim()]
            return made(how(pair(x), axes, keepdim=keepdim)) if axes else x

        return over

    def norm(x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        return torch.linalg.vector_norm(_size(of_type(x, dtype)), order, dim, keepdim)

    return {
        aten.sum.default: reduced(torch.sum),
        aten.sum.dim_IntList: reduced(torch.sum),
        aten.mean.default: reduced(torch.mean),
        aten.mean.dim: reduced(torch.mean),
        aten.eq.Tensor: lambda x, y: (pair(x) == pair(y)).all(-1),
        aten.ne.Tensor: lambda x, y: (pair(x) != pair(y)).any(-1),
        aten.eq.Scalar: lambda x, y: _is_number(x, y),
        aten.ne.Scalar: lambda x, y: ~_is_number(x, y),
        aten.cumsum.default: lambda x, dim, dtype=None: made(pair(of_type(x, dtype)).cumsum(axis(dim))),
        aten.linalg_vector_norm.default: norm,
    }


def _products(torch: Any, aten: Any) -> Mapping[Any, Callable[..., Any]]:
    def product(how: Callable[..., Any], x: Any, y: Any) -> Any:
        (a, b), (c, d) = parts(x), parts(y)
        return joined(how(a, c) - how(b, d), how(a, d) + how(b, c))

    def contracted(equation: str, operands: Any, path: Any = None) -> Any:
        if len(operands) == 1:
            return joined(*(torch.einsum(equation, part) for part in parts(operands[0])))
        if len(operands) == 2:
            return product(lambda x, y: torch.einsum(equation, x, y), *operands)
        return NotImplemented

    def added(x: Any, y: Any, z: Any, beta: Any = 1, alpha: Any = 1) -> Any:
        return _added(x if beta == 1 else _multiplied(x, beta), product(torch.matmul, y, z), alpha)

    def linear(x: Any, weight: Any, bias: Any = None) -> Any:
        result = product(torch.nn.functional.linear, x, weight)
        return result if bias is None else _added(result, bias)

    return {
        aten.mm.default: lambda x, y: product(torch.matmul, x, y),
        aten.bmm.default: lambda x, y: product(torch.matmul, x, y),
        aten.mv.default: lambda x, y: product(torch.matmul, x, y),
        aten.dot.default: lambda x, y: product(torch.matmul, x, y),
        aten.matmul.default: lambda x, y: product(torch.matmul, x, y),
        aten.addmm.default: added,
        aten.linear.default: linear,
        aten.einsum.default: contracted,
    }
