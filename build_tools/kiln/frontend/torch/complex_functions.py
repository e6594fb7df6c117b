"""Arithmetic and functions of complex numbers, on their real and imaginary parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from kiln.frontend.torch.complex_moves import axis, joined, made, of_type, pair
from kiln.frontend.torch.present import aten as own_operators


def functions() -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    import torch

    aten = own_operators()
    made_here = (_arithmetic(aten), _sums(torch, aten), _spreads(torch, aten), _products(torch, aten))
    return {operator: rule for rules in made_here for operator, rule in rules.items()}


def parts(x: Any) -> tuple[Any, Any]:
    """The real and the imaginary part of a tensor or a number; the imaginary part of a real one is None."""
    if isinstance(x, complex):
        return x.real, x.imag
    if not hasattr(x, "is_complex") or not x.is_complex():
        return x, None
    pairs = pair(x)
    return pairs[..., 0], pairs[..., 1]


def added(x: Any, y: Any, alpha: Any = 1) -> Any:
    if isinstance(alpha, complex):
        y, alpha = multiplied(y, alpha), 1
    (a, b), (c, d) = parts(x), parts(y)
    imaginary = b if d is None else scaled(d, alpha) if b is None else b + scaled(d, alpha)
    return joined(a + scaled(c, alpha), imaginary)


def size_of(x: Any) -> Any:
    """The absolute value, whose square float32 need not hold."""
    a, b = parts(x)
    return a.hypot(b)


def scaled(x: Any, factor: Any) -> Any:
    return x if factor == 1 else x * factor


def is_number(x: Any, number: Any) -> Any:
    """Where the elements of `x` are `number`, real or complex."""
    pairs, value = pair(x), complex(number)
    return (pairs[..., 0] == value.real) & (pairs[..., 1] == value.imag)


def multiplied(x: Any, y: Any) -> Any:
    (a, b), (c, d) = parts(x), parts(y)
    if b is None or d is None:
        return joined(a * c, a * d if b is None else b * c)
    return joined(a * c - b * d, a * d + b * c)


def reciprocal(x: Any) -> Any:
    """1 / `x`, by numbers of a size near 1, whose squares float32 holds."""
    a, b = parts(x)
    most = a.abs().maximum(b.abs())
    a, b = a / most, b / most
    size = a * a + b * b
    return joined(a / size / most, -b / size / most)


def divided(x: Any, y: Any) -> Any:
    c, d = parts(y)
    if d is None:
        a, b = parts(x)
        return joined(a / c, b / c)
    return multiplied(x, reciprocal(y) if hasattr(y, "is_complex") else 1 / y)


def _arithmetic(aten: Any) -> Mapping[Any, Callable[..., Any]]:
    def conjugate(x: Any) -> Any:
        a, b = parts(x)
        return joined(a, -b)

    return {
        aten.add.Tensor: added,
        aten.add.Scalar: added,
        aten.sub.Tensor: lambda x, y, alpha=1: added(x, y, -alpha),
        aten.sub.Scalar: lambda x, y, alpha=1: added(x, y, -alpha),
        aten.rsub.Tensor: lambda x, y, alpha=1: added(y, x, -alpha),
        aten.rsub.Scalar: lambda x, y, alpha=1: added(y, x, -alpha),
        aten.mul.Tensor: multiplied,
        aten.mul.Scalar: multiplied,
        aten.div.Tensor: divided,
        aten.div.Scalar: divided,
        aten.neg.default: lambda x: made(-pair(x)),
        aten.reciprocal.default: reciprocal,
        aten._conj.default: conjugate,
        aten._conj_physical.default: conjugate,
        aten.conj_physical.default: conjugate,
        aten.resolve_conj.default: lambda x: x,
        aten.resolve_neg.default: lambda x: x,
        aten._to_copy.default: lambda x, dtype=None, **_: of_type(x, dtype),
        aten.to.dtype: lambda x, dtype, *_: of_type(x, dtype),
    }


def _polar(torch: ModuleType, pairs: Any) -> tuple[Any, Any]:
    """The sizes and the angles of pairs."""
    return size_of(made(pairs)), torch.atan2(pairs[..., 1], pairs[..., 0])


def _of_polar(torch: ModuleType, size: Any, angle: Any) -> Any:
    return joined(size * torch.cos(angle), size * torch.sin(angle))


def _sums(torch: ModuleType, aten: Any) -> Mapping[Any, Callable[..., Any]]:
    def reduced(how: Any) -> Callable[..., Any]:
        def over(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
            x = of_type(x, dtype)
            given = [dim] if isinstance(dim, int) else dim
            dims = given or range(x.dim())
            axes = [one % x.dim() for one in dims if x.dim()]
            return made(how(pair(x), axes, keepdim=keepdim)) if axes else x

        return over

    def norm(x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        return torch.linalg.vector_norm(size_of(of_type(x, dtype)), order, dim, keepdim)

    return {
        aten.sum.default: reduced(torch.sum),
        aten.sum.dim_IntList: reduced(torch.sum),
        aten.mean.default: reduced(torch.mean),
        aten.mean.dim: reduced(torch.mean),
        aten.eq.Tensor: lambda x, y: (pair(x) == pair(y)).all(-1),
        aten.ne.Tensor: lambda x, y: (pair(x) != pair(y)).any(-1),
        aten.eq.Scalar: lambda x, y: is_number(x, y),
        aten.ne.Scalar: lambda x, y: ~is_number(x, y),
        aten.cumsum.default: lambda x, dim, dtype=None: made(pair(of_type(x, dtype)).cumsum(axis(dim))),
        aten.linalg_vector_norm.default: norm,
    }


def _spreads(torch: ModuleType, aten: Any) -> Mapping[Any, Callable[..., Any]]:
    """Variances, and products along an axis."""

    def variance(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        given = {"dim": dim, "correction": 1 if correction is None else correction, "keepdim": keepdim}
        return sum(part.var(**given) for part in parts(x))

    def variance_and_mean(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        mean = x.mean(dim, keepdim)
        return variance(x, dim, correction=correction, keepdim=keepdim), mean

    def product_along(x: Any, dim: int, keepdim: bool = False, dtype: Any = None) -> Any:
        """In as many steps as the size has bits; of a dynamic size by sizes and angles."""
        pairs = pair(of_type(x, dtype)).movedim(axis(dim), 0) if x.dim() else pair(x).unsqueeze(0)
        if not isinstance(pairs.shape[0], int):
            sizes, angles = _polar(torch, pairs)
            result = _of_polar(torch, sizes.prod(0), angles.sum(0))
        else:
            while pairs.shape[0] > 1:
                half = pairs.shape[0] // 2
                both = pair(multiplied(made(pairs[:half]), made(pairs[half : 2 * half])))
                pairs = torch.cat([both, pairs[2 * half :]])
            result = made(pairs[0])
        return made(pair(result).unsqueeze(axis(dim))) if keepdim and x.dim() else result

    def products_so_far(x: Any, dim: int, dtype: Any = None) -> Any:
        pairs = pair(of_type(x, dtype))
        if not x.dim():
            return made(pairs)
        pairs = pairs.movedim(axis(dim), 0)
        size, shift = pairs.shape[0], 1
        if not isinstance(size, int):
            sizes, angles = _polar(torch, pairs)
            return made(pair(_of_polar(torch, sizes.cumprod(0), angles.cumsum(0))).movedim(0, axis(dim)))
        while shift < size:
            later = pair(multiplied(made(pairs[shift:]), made(pairs[: size - shift])))
            pairs, shift = torch.cat([pairs[:shift], later]), 2 * shift
        return made(pairs.movedim(0, axis(dim)))

    return {
        aten.var.correction: variance,
        aten.std.correction: lambda *given, **options: variance(*given, **options).sqrt(),
        aten.var_mean.correction: variance_and_mean,
        aten.prod.default: lambda x, dtype=None: product_along(of_type(x, dtype).reshape(-1), 0),
        aten.prod.dim_int: product_along,
        aten.cumprod.default: products_so_far,
    }


def _products(torch: ModuleType, aten: Any) -> Mapping[Any, Callable[..., Any]]:
    def product(how: Callable[..., Any], x: Any, y: Any) -> Any:
        (a, b), (c, d) = parts(x), parts(y)
        return joined(how(a, c) - how(b, d), how(a, d) + how(b, c))

    def contracted(equation: str, operands: Any, path: Any = None) -> Any:
        if len(operands) == 1:
            return joined(*(torch.einsum(equation, part) for part in parts(operands[0])))
        if len(operands) == 2:
            return product(lambda x, y: torch.einsum(equation, x, y), *operands)
        return NotImplemented

    def product_added(x: Any, y: Any, z: Any, beta: Any = 1, alpha: Any = 1) -> Any:
        return added(x if beta == 1 else multiplied(x, beta), product(torch.matmul, y, z), alpha)

    def linear(x: Any, weight: Any, bias: Any = None) -> Any:
        result = product(torch.nn.functional.linear, x, weight)
        return result if bias is None else added(result, bias)

    return {
        aten.mm.default: lambda x, y: product(torch.matmul, x, y),
        aten.bmm.default: lambda x, y: product(torch.matmul, x, y),
        aten.mv.default: lambda x, y: product(torch.matmul, x, y),
        aten.dot.default: lambda x, y: product(torch.matmul, x, y),
        aten.matmul.default: lambda x, y: product(torch.matmul, x, y),
        aten.addmm.default: product_added,
        aten.linear.default: linear,
        aten.einsum.default: contracted,
    }
