"""A graph that is being drawn, and steps that may follow a tensor: elementwise, and moves of elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from .draw import Draw, Input, Step

Shape = tuple[int, ...]
MOST_ELEMENTS = 3000


@dataclass
class Chain:
    """A graph that is being drawn. shapes: of its tensors of float32, by name."""

    d: Draw
    inputs: list[Input] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)

    def extend(self, link: Callable[[Any, str, Shape], object], x: str) -> None:
        """Add the steps of `link` to tensor `x`; none where the link does not apply to its shape."""
        before = len(self.steps), len(self.inputs)
        try:
            link(self, x, self.shapes[x])
        except ValueError:
            if before != (len(self.steps), len(self.inputs)):
                raise

    def given(self, item: Input) -> str:
        """The name of a new input or constant of the graph."""
        self.inputs.append(item)
        return f"x{len(self.inputs) - 1}"

    def data(self, shape: Shape) -> str:
        name = self.given(self.d.data(self.d.values(shape, "float32", 1.0)))
        self.shapes[name] = shape
        return name

    def const(self, value: Any, dtype: str | None = None) -> str:
        return self.given(self.d.constant(value, dtype))

    def weights(self, shape: Shape) -> str:
        """A constant of floats around 1 or of either sign."""
        scale = 1 / max(1.0, prod(shape[1:]) ** 0.5)
        return self.const(self.d.values(shape, "float32", scale))

    def step(self, operator: str, *inputs: str, shape: Shape | None = None, **attributes: Any) -> str:
        """Append a node of one result; with a shape, the result is a tensor that later steps may read."""
        name = f"t{len(self.steps)}"
        self.steps.append(Step(operator, list(inputs), [name], attributes))
        if shape is not None:
            self.shapes[name] = shape
        return name


Link = Callable[[Chain, str, Shape], Any]  # appends steps that read a tensor of a shape


def need(condition: bool) -> None:
    if not condition:
        raise ValueError("this step does not take the tensor")


def unary(c: Chain, x: str, shape: Shape) -> None:
    name = c.d.pick(
        ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "HardSwish", "Erf", "Softplus", "Floor", "LeakyRelu", "Sin",
         "Elu", "Softsign", "Mish")
    )  # fmt: skip
    c.step(name, x, shape=shape)


def roots(c: Chain, x: str, shape: Shape) -> None:
    c.step(c.d.pick(("Sqrt", "Log", "Reciprocal")), c.step("Softplus", x), shape=shape)


def clip(c: Chain, x: str, shape: Shape) -> None:
    low = c.const(np.float32(c.d.real(-1, 0))) if c.d.chance(0.7) else ""
    high = [c.const(np.float32(c.d.real(0, 6)))] if c.d.chance(0.7) else []
    c.step("Clip", x, low, *high, shape=shape)


def with_constant(c: Chain, x: str, shape: Shape) -> None:
    """An operand of any part of the shape, on either side."""
    rank = c.d.number(0, len(shape))
    constant_shape = tuple(1 if c.d.chance(0.6) else size for size in shape[len(shape) - rank :])
    if c.d.chance(0.15):
        constant_shape = (1,) * c.d.number(1, 2) + (1,) * (len(shape) - len(constant_shape)) + constant_shape
    value = np.abs(c.d.values(constant_shape, "float32", 1.0)) + np.float32(0.5)
    name = c.d.pick(("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"))
    result_shape = np.broadcast_shapes(shape, constant_shape)
    if name == "PRelu":
        need(len(constant_shape) <= len(shape))
        c.step(name, x, c.const(value), shape=shape)
        return
    pair = [x, c.const(value)]
    if c.d.chance(0.4) and name != "Div":
        pair.reverse()
    c.step(name, *pair, shape=tuple(result_shape))


def with_other(c: Chain, x: str, shape: Shape) -> None:
    """Two tensors that can be broadcast, the same one too."""
    fit = []
    for name, other_shape in c.shapes.items():
        try:
            result_shape = np.broadcast_shapes(shape, other_shape)
        except ValueError:
            continue
        if prod(result_shape) <= MOST_ELEMENTS:
            fit.append((name, tuple(result_shape)))
    other_shape, result_shape = c.d.pick(fit)
    pair = [x, other_shape] if c.d.chance() else [other_shape, x]
    kind = c.d.pick(("Add", "Sub", "Mul", "Max", "Where"))
    if kind == "Where":
        c.step("Where", c.step("Greater", *pair), *pair, shape=result_shape)
    else:
        c.step(kind, *pair, shape=result_shape)


def activations(c: Chain, x: str, shape: Shape) -> None:
    """Activations that frameworks write as several operators: x * sigmoid(x), and GELU by erf."""
    if c.d.chance():
        c.step("Mul", x, c.step("Sigmoid", x), shape=shape)
        return
    inner = c.step("Erf", c.step("Div", x, c.const(np.float32(2**0.5))))
    inner = c.step("Add", inner, c.const(np.float32(1)))
    c.step("Mul", c.step("Mul", x, inner), c.const(np.float32(0.5)), shape=shape)


def transpose(c: Chain, x: str, shape: Shape) -> None:
    need(len(shape) > 1)
    order = [int(axis) for axis in c.d.rng.permutation(len(shape))]
    c.step("Transpose", x, perm=order, shape=tuple(shape[axis] for axis in order))


def reshape(c: Chain, x: str, shape: Shape) -> None:
    """Two axes become one, or an axis of a fixed size becomes two."""
    need(len(shape) > 0)
    at = c.d.number(0, len(shape) - 1)
    if c.d.chance() and at + 1 < len(shape):
        target = [*shape[:at], -1, *shape[at + 2 :]]
        wanted = [0] * at + [-1, *shape[at + 2 :]]
        result_shape = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
    else:
        factor = next((k for k in (2, 3, 5) if shape[at] % k == 0), 1)
        wanted = [0] * at + [shape[at] // factor, factor, *shape[at + 1 :]]
        target, result_shape = wanted, (*shape[:at], shape[at] // factor, factor, *shape[at + 1 :])
    need(len(result_shape) <= 6)
    c.step("Reshape", x, c.const(wanted if c.d.chance(0.7) else target, "int64"), shape=result_shape)


def ones(c: Chain, x: str, shape: Shape) -> None:
    """Unsqueeze, or Squeeze of an axis of one element."""
    single = [axis for axis, size in enumerate(shape) if size == 1]
    if single and c.d.chance():
        axis = c.d.pick(single)
        c.step("Squeeze", x, c.const([axis - len(shape)], "int64"), shape=shape[:axis] + shape[axis + 1 :])
        return
    need(len(shape) < 5)
    axis = c.d.number(0, len(shape))
    c.step("Unsqueeze", x, c.const([axis], "int64"), shape=(*shape[:axis], 1, *shape[axis:]))


def slice_(c: Chain, x: str, shape: Shape) -> None:
    need(len(shape) > 0)
    axis, step = c.d.axis(len(shape)), c.d.pick((1, 1, 2, -1, -2))
    size = shape[axis]
    first = c.d.number(0, 2)
    if step > 0:
        start, end = first, c.d.pick((2**31 - 1, -1 if size - 1 > first else 2**31 - 1))
    else:
        start, end = -1 - first, -(2**31)
    places = len(range(size)[slice(start, end if abs(end) < 2**30 else None, step)])
    need(places > 0)
    parts = [c.const([number], "int64") for number in (start, end, axis, step)]
    result_shape = list(shape)
    result_shape[axis] = places
    c.step("Slice", x, *parts, shape=tuple(result_shape))


def split(c: Chain, x: str, shape: Shape) -> None:
    """Two or three parts; later steps may read each."""
    need(len(shape) > 0)
    axis = c.d.axis(len(shape))
    count = c.d.pick((2, 3))
    need(shape[axis] >= count)
    sizes = [1] * (count - 1)
    sizes.insert(c.d.number(0, count - 1), shape[axis] - count + 1)
    names = [f"t{len(c.steps)}_{number}" for number in range(count)]
    lengths = c.const(sizes, "int64")
    c.steps.append(Step("Split", [x, lengths], names, {"axis": axis}))
    for name, size in zip(names, sizes, strict=True):
        result_shape = list(shape)
        result_shape[axis] = size
        c.shapes[name] = tuple(result_shape)


def concat(c: Chain, x: str, shape: Shape) -> None:
    """Tensors that differ in one axis at most."""
    need(len(shape) > 0)
    axis = c.d.axis(len(shape))

    def rest(one: Shape) -> Shape:
        return tuple(size for at, size in enumerate(one) if at != axis % len(one))

    fit = [
        name for name, other in c.shapes.items() if len(other) == len(shape) and rest(other) == rest(shape)
    ]
    names = [x, *(c.d.pick(fit) for _ in range(c.d.number(1, 2)))]
    order = [names[int(at)] for at in c.d.rng.permutation(len(names))]
    result_shape = list(shape)
    result_shape[axis] = sum(c.shapes[name][axis] for name in order)
    need(prod(result_shape) <= MOST_ELEMENTS)
    c.step("Concat", *order, axis=axis, shape=tuple(result_shape))


def pad(c: Chain, x: str, shape: Shape) -> None:
    need(len(shape) > 0)
    mode = c.d.pick(("constant", "constant", "edge", "reflect"))
    most = 2 if mode != "reflect" else min(2, min(shape) - 1)
    low = -1 if mode == "constant" and min(shape) > 3 else 0
    pads = [c.d.number(low, max(0, most)) if c.d.chance(0.6) else 0 for _ in range(2 * len(shape))]
    rank = len(shape)
    result_shape = tuple(size + pads[at] + pads[at + rank] for at, size in enumerate(shape))
    need(min(result_shape) > 0 and prod(result_shape) <= MOST_ELEMENTS)
    value = [c.const(np.float32(c.d.real(-1, 1)))] if mode == "constant" and c.d.chance() else []
    c.step("Pad", x, c.const(pads, "int64"), *value, mode=mode, shape=result_shape)


def gather(c: Chain, x: str, shape: Shape) -> None:
    need(len(shape) > 0)
    axis = c.d.axis(len(shape))
    least = min(shape[axis], 2)
    picked = c.d.pick(((), (1,), (3,), (2, 2)))
    indices = c.d.rng.integers(-least, least, picked)
    at = axis % len(shape)
    result_shape = (*shape[:at], *picked, *shape[at + 1 :])
    need(len(result_shape) <= 5)
    c.step("Gather", x, c.const(indices, "int64"), axis=axis, shape=result_shape)


def expand(c: Chain, x: str, shape: Shape) -> None:
    wanted = [c.d.number(1, 3) if size == 1 else 1 for size in shape]
    if c.d.chance(0.3):
        wanted = [c.d.number(1, 3), *wanted]
    result_shape = tuple(np.broadcast_shapes(shape, tuple(wanted)))
    need(len(wanted) > 0 and prod(result_shape) <= MOST_ELEMENTS and len(result_shape) <= 5)
    if c.d.chance() and len(wanted) == len(shape):
        c.step("Tile", x, c.const(wanted, "int64"), shape=result_shape)
    else:
        c.step("Expand", x, c.const(wanted, "int64"), shape=result_shape)


LINKS: dict[Link, int] = {
    unary: 3,
    roots: 1,
    clip: 1,
    with_constant: 4,
    with_other: 3,
    activations: 1,
    transpose: 3,
    reshape: 2,
    ones: 1,
    slice_: 2,
    split: 1,
    concat: 2,
    pad: 2,
    gather: 1,
    expand: 1,
}
