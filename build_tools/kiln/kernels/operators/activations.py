"""The activation functions of recurrent layers, as ONNX defines them."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr

from kiln.tir.vector_expr import f32, select


def _bounded(x: Expr, low: float, high: float) -> Expr:
    return tirx.max(tirx.min(x, f32(high)), f32(low))


# By name in lower case: a function of x, alpha and beta.
FUNCTIONS: dict[str, Callable[[Expr, float, float], Expr]] = {
    "affine": lambda x, a, b: x * f32(a) + f32(b),
    "elu": lambda x, a, _: select(x < f32(0.0), f32(a) * (tirx.exp(x) - f32(1.0)), x),
    "hardsigmoid": lambda x, a, b: _bounded(x * f32(a) + f32(b), 0.0, 1.0),
    "leakyrelu": lambda x, a, _: select(x < f32(0.0), x * f32(a), x),
    "relu": lambda x, _a, _b: tirx.max(x, f32(0.0)),
    "scaledtanh": lambda x, a, b: f32(a) * tirx.tanh(x * f32(b)),
    "sigmoid": lambda x, _a, _b: tirx.sigmoid(x),
    # log(1 + e^x), without overflow
    "softplus": lambda x, _a, _b: (
        tirx.max(x, f32(0.0)) + tirx.log(f32(1.0) + tirx.exp(f32(0.0) - tirx.abs(x)))
    ),
    "softsign": lambda x, _a, _b: x / (f32(1.0) + tirx.abs(x)),
    "tanh": lambda x, _a, _b: tirx.tanh(x),
    "thresholdedrelu": lambda x, a, _: select(x > f32(a), x, f32(0.0)),
}


def activation(function: tuple[str, float, float], x: Expr) -> Expr:
    """The value at `x`, a float32, of `function`: its name, alpha and beta."""
    name, alpha, beta = function
    return FUNCTIONS[name](x, alpha, beta)


def clipped(x: Expr, bound: float | None) -> Expr:
    """`x` in [-bound, bound]; None: as it is."""
    return x if bound is None else _bounded(x, -bound, bound)
