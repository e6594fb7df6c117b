"""Elementwise operators: one operand, two that are broadcast, several, and casts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .draw import Draw, Input, Maker, Node

FLOATS = ("float32", "float32", "float32", "float64", "float16")
NUMBERS = ("float32", "float32", "float64", "int32", "int64", "float16", "int8", "uint8")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def broadcast_pair(d: Draw, most_rank: int = 5) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that can be broadcast: either has fewer axes, or axes of one element."""
    full_shape = d.shape(0, most_rank)
    return part_of(d, full_shape), part_of(d, full_shape) if d.chance(0.8) else full_shape


def part_of(d: Draw, whole: Sequence[int]) -> tuple[int, ...]:
    """A shape that can be broadcast to `whole`."""
    kept = d.number(0, len(whole)) if d.chance(0.4) else len(whole)
    return tuple(1 if d.chance(0.25) else size for size in whole[len(whole) - kept :])


def unary(dtypes: Sequence[str], scale: float, d: Draw, **attributes: Any) -> Node:
    x = d.values(d.shape(0, 6), d.pick(dtypes), scale)
    return d.node(d.data(x), **d.some(**attributes))


def inside(least: float, most: float, d: Draw) -> Node:
    """An operand between two limits."""
    x = d.values(d.shape(0, 5), d.pick(FLOATS))
    return d.node(d.data(least + (most - least) * (np.tanh(x) * 0.49 + 0.5).astype(x.dtype)))


def with_attributes(d: Draw, **limits: tuple[float, float]) -> Node:
    """An operand of floats, and attributes that are numbers between limits."""
    x = d.values(d.shape(0, 5), d.pick(FLOATS[:4]))
    return d.node(d.data(x), **d.some(**{name: partial(d.real, *pair) for name, pair in limits.items()}))


def operands(d: Draw, a: Any, b: Any) -> tuple[Input, Input]:
    """At least one of two operands is data."""
    side = d.number(0, 3)
    return (d.constant(a) if side == 1 else d.data(a)), (d.constant(b) if side == 2 else d.data(b))


def binary(dtypes: Sequence[str], d: Draw, nonzero: bool = False, **attributes: Any) -> Node:
    dtype = d.pick(dtypes)
    first, second = broadcast_pair(d)
    a, b = d.values(first, dtype), d.values(second, dtype)
    if nonzero:
        b = np.where(np.abs(b) < 1, np.asarray(1, dtype), b)
    return d.node(*operands(d, a, b), **attributes)


def mod(d: Draw) -> Node:
    dtype = d.pick(NUMBERS)
    is_float = np.dtype(dtype).kind == "f"
    return binary((dtype,), d, True, fmod=1 if is_float or d.chance() else None)


def bit_shift(d: Draw) -> Node:
    dtype = d.pick(("uint8", "uint32", "uint64"))
    first, second = broadcast_pair(d)
    pair = operands(d, d.values(first, dtype), d.indices(second, 0, 7, dtype))
    return d.node(*pair, direction=d.pick(("LEFT", "RIGHT")))


def power(d: Draw) -> Node:
    first, second = broadcast_pair(d)
    a, b = d.pick(("float32", "float64", "int32", "int64")), d.pick(("float32", "float64", "int32", "int64"))
    if d.opset < 12:
        a = b = "float32"
    base = np.abs(d.values(first, "float32")) + 0.5
    top = d.values(second, "float32", 1.5)
    if d.chance():
        top = np.round(top)
    if np.dtype(a).kind == "i":
        base, top = np.round(base) + 1, np.abs(np.round(top))
    elif (top == np.round(top)).all() and d.chance():
        base = -base
    return d.node(*operands(d, base.astype(a), top.astype(b)))


def variadic(dtypes: Sequence[str], d: Draw) -> Node:
    full_shape, dtype = d.shape(0, 4), d.pick(dtypes)
    values = [d.values(part_of(d, full_shape), dtype) for _ in range(d.number(1, 4))]
    return d.node(d.data(values[0]), *(d.either(value, data=0.7) for value in values[1:]))


def where(d: Draw) -> Node:
    full_shape, dtype = d.shape(0, 5), d.pick((*NUMBERS, "bool"))
    condition = d.values(part_of(d, full_shape), "bool")
    pair = operands(d, d.values(part_of(d, full_shape), dtype), d.values(part_of(d, full_shape), dtype))
    return d.node(d.either(condition, data=0.8), *pair)


def clip(d: Draw) -> Node:
    if d.opset < 11:
        x = d.values(d.shape(0, 5))
        return d.node(d.data(x), **d.some(min=partial(d.real, -2, 0), max=partial(d.real, 0, 2)))
    dtype = d.pick(("float32", "float64", "int8", "uint8", "int64", "int32")) if d.opset > 11 else "float32"
    scale = 1 if np.dtype(dtype).kind == "f" else 20
    low, high = (np.asarray(scale * d.number(*pair), dtype) for pair in ((0, 1), (1, 3)))
    return d.node(
        d.data(d.values(d.shape(0, 5), dtype)),
        d.either(low, data=0.3) if d.chance(0.8) else None,
        d.either(high, data=0.3) if d.chance(0.8) else None,
    )


def cast(d: Draw) -> Node:
    kinds = {"float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
             "float16": 10, "float64": 11, "uint32": 12, "uint64": 13}  # fmt: skip
    source, target = d.pick(list(kinds)), d.pick(list(kinds))
    x = d.values(d.shape(0, 5), source, 40)
    if target.startswith("u"):
        x = np.abs(x.astype("float32") % 100).astype(source)
    elif target == "int8":
        x = (x.astype("float32") % 100).astype(source)
    if d.operator == "CastLike":
        like = d.values(d.shape(0, 2), target)
        return d.node(d.data(x), d.either(like))
    return d.node(d.data(x), to=kinds[target])


def prelu(d: Draw) -> Node:
    shape = d.shape(1, 5)
    return d.node(d.data(d.values(shape)), d.either(d.values(part_of(d, shape)), data=0.3))


def gelu(d: Draw) -> Node:
    return unary(FLOATS, 2, d, approximate=d.pick(("tanh", "none")))


def is_inf(d: Draw) -> Node:
    x = d.values(d.shape(0, 4), d.pick(("float32", "float64")))
    x = np.where(np.abs(x) > 2, np.copysign(np.inf, x), x).astype(x.dtype)
    return d.node(d.data(x), **d.some(detect_negative=d.number(0, 1), detect_positive=d.number(0, 1)))


def swish(d: Draw) -> Node:
    return with_attributes(d, alpha=(0.5, 2))


_PLAIN = {
    "Abs": NUMBERS, "Neg": ("float32", "float64", "int32", "int64", "int8", "float16"), "Sign": NUMBERS,
    "Relu": ("float32", "float64", "int32", "int8", "float16"), "Floor": FLOATS, "Ceil": FLOATS,
    "Round": FLOATS, "Exp": FLOATS, "Sigmoid": FLOATS, "Tanh": FLOATS, "Erf": ("float32", "float64"),
    "Sin": FLOATS, "Cos": FLOATS, "Tan": FLOATS[:4], "Atan": FLOATS[:4], "Sinh": FLOATS[:4],
    "Cosh": FLOATS[:4], "Asinh": FLOATS[:4], "Softplus": FLOATS[:4], "Softsign": FLOATS[:4], "Not": ("bool",),
    "Identity": (*NUMBERS, "bool"), "IsNaN": FLOATS, "BitwiseNot": INTEGERS, "Mish": FLOATS[:4],
    "HardSwish": FLOATS[:4],
}  # fmt: skip
_INSIDE = {"Sqrt": (0.01, 9), "Log": (0.01, 9), "Reciprocal": (0.1, 4), "Asin": (-1, 1), "Acos": (-1, 1),
           "Acosh": (1, 9), "Atanh": (-0.95, 0.95)}  # fmt: skip
_ATTRIBUTES = {
    "Elu": {"alpha": (0.2, 3)}, "Celu": {"alpha": (0.2, 3)}, "LeakyRelu": {"alpha": (-0.5, 2)},
    "Selu": {"alpha": (0.5, 2), "gamma": (0.5, 2)}, "HardSigmoid": {"alpha": (0.1, 1), "beta": (0, 1)},
    "ThresholdedRelu": {"alpha": (-1, 2)}, "Shrink": {"lambd": (0, 2), "bias": (-1, 1)},
}  # fmt: skip
_BINARY = {
    "Add": NUMBERS, "Sub": NUMBERS, "Mul": NUMBERS, "Equal": (*NUMBERS, "bool"), "Less": NUMBERS,
    "Greater": NUMBERS, "LessOrEqual": NUMBERS, "GreaterOrEqual": NUMBERS, "And": ("bool",),
    "Or": ("bool",), "Xor": ("bool",), "BitwiseAnd": INTEGERS, "BitwiseOr": INTEGERS, "BitwiseXor": INTEGERS,
}  # fmt: skip
_VARIADIC = {"Max": NUMBERS, "Min": NUMBERS, "Sum": FLOATS, "Mean": FLOATS}


def _with(limits: dict[str, tuple[float, float]]) -> Callable[[Draw], Node]:
    return lambda d: with_attributes(d, **limits)


MAKERS: dict[str, Maker] = {
    **{name: partial(unary, dtypes, 2.0) for name, dtypes in _PLAIN.items()},
    **{name: partial(inside, *limits) for name, limits in _INSIDE.items()},
    **{name: _with(limits) for name, limits in _ATTRIBUTES.items()},
    **{name: partial(binary, dtypes) for name, dtypes in _BINARY.items()},
    **{name: partial(variadic, dtypes) for name, dtypes in _VARIADIC.items()},
    "Div": partial(binary, NUMBERS, nonzero=True), "Mod": mod, "BitShift": bit_shift, "Pow": power,
    "Where": where, "Clip": clip, "Cast": cast, "CastLike": cast, "PRelu": prelu, "Gelu": gelu,
    "IsInf": is_inf, "Swish": swish,
}  # fmt: skip
