"""The activation functions of recurrent layers, as ONNX defines them."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr

from kiln.tir.vector_expr import select


def _like(x: Expr, value: float) -> Expr:
    """A constant of the type of `x`."""
    return tirx.FloatImm(str(x.ty.dtype), value)


def _bounded(x: Expr, low: float, high: float) -> Expr:
    return tirx.max(tirx.min(x, _like(x, high)), _like(x, low))


# By name in lower case: a function of x, alpha and beta.
FUNCTIONS: dict[str, Callable[[Expr, float, float], Expr]] = {
    "affine": lambda x, a, b: x * _like(x, a) + _like(x, b),
    "elu": lambda x, a, _: select(x < _like(x, 0.0), _like(x, a) * (tirx.exp(x) - _like(x, 1.0)), x),
    "hardsigmoid": lambda x, a, b: _bounded(x * _like(x, a) + _like(x, b), 0.0, 1.0),
    "leakyrelu": lambda x, a, _: select(x < _like(x, 0.0), x * _like(x, a), x),
    "relu": lambda x, _a, _b: tirx.max(x, _like(x, 0.0)),
    "scaledtanh": lambda x, a, b: _like(x, a) * tirx.tanh(x * _like(x, b)),
    "sigmoid": lambda x, _a, _b: tirx.sigmoid(x),
    # log(1 + e^x), without overflow
    "softplus": lambda x, _a, _b: (
        tirx.max(x, _like(x, 0.0)) + tirx.log(_like(x, 1.0) + tirx.exp(_like(x, 0.0) - tirx.abs(x)))
    ),
    "softsign": lambda x, _a, _b: x / (_like(x, 1.0) + tirx.abs(x)),
    "tanh": lambda x, _a, _b: tirx.tanh(x),
    "thresholdedrelu": lambda x, a, _: select(x > _like(x, a), x, _like(x, 0.0)),
}


def activation(function: tuple[str, float, float], x: Expr) -> Expr:
    """The value at `x`, of float32 or float64, of `function`: its name, alpha and beta."""
    name, alpha, beta = function
    return FUNCTIONS[name](x, alpha, beta)


def clipped(x: Expr, bound: float | None) -> Expr:
    """`x` in [-bound, bound]; None: as it is."""
    return x if bound is None else _bounded(x, -bound, bound)
