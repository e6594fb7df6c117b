"""Products in fused functions, for whoever hands them to a library: which parameter is what.

`read_product` takes a PrimFunc with op info (opinfo/attach.py) whose operators are one convolution or matrix
product and what libraries can do on its result: a bias, a residual, an activation. It follows the operands of
each operator, so that the order of the additions, or of an addition's operands, makes no difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.tirx import PrimFunc

from kiln.opinfo.attach import OpInfo, of, tensors

# Activations without parameters of their own, and the limits of those that only clip.
ACTIVATIONS: Mapping[str, tuple[float, float] | None] = {
    "nn.relu": (0.0, float("inf")),
    "nn.relu6": (0.0, 6.0),
    "nn.silu": None,
    "nn.gelu": None,
    "nn.gelu_tanh": None,
    "sigmoid": None,
    "tanh": None,
}


@dataclass(frozen=True)
class Convolution:
    """The attributes of a 2-D convolution: (height, width), and padding (top, left, bottom, right).

    Layouts name an axis by its letter; `4c` is a part of 4 of axis C.
    """

    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    data_layout: str
    kernel_layout: str
    out_layout: str


@dataclass(frozen=True)
class MatrixProduct:
    """Where a product's operands have rows (M), columns (N) and depth (K); other letters are batches."""

    a_layout: str
    b_layout: str
    out_layout: str


@dataclass(frozen=True)
class Product:
    """A product with what follows it. Numbers are positions among the function's tensors (opinfo.tensors).

    `bias`: one number for each output channel, added to the product. `residual`: of the output's shape, added
    before the activation. `activation`: an operator's name, or `clip`; `limits`: what it keeps values between
    where it only does that. `ops`: the function's op info.
    """

    attrs: Convolution | MatrixProduct
    data: int
    weights: int
    output: int
    bias: int | None
    residual: int | None
    activation: str | None
    limits: tuple[float, float] | None
    ops: list[OpInfo]


def convolution(op: OpInfo) -> Convolution:
    """The attributes of an entry of nn.conv2d."""
    attrs = op["attrs"]
    return Convolution(
        tuple(attrs["strides"]),
        tuple(attrs["padding"]),
        tuple(attrs["dilation"]),
        int(attrs["groups"]),
        attrs["data_layout"],
        attrs["kernel_layout"],
        attrs["out_layout"] or attrs["data_layout"],
    )


def matrix_product(op: OpInfo) -> MatrixProduct:
    """The attributes of an entry of matmul."""
    attrs = op["attrs"]
    return MatrixProduct(attrs["a_layout"], attrs["b_layout"], attrs["out_layout"])


def read_product(func: PrimFunc) -> Product | None:
    """The product that a function computes, or None where it is anything else, or does more."""
    ops = of(func)
    places = tensors(func)
    anchors: dict[str, Callable[[OpInfo], Convolution | MatrixProduct]]
    anchors = {"nn.conv2d": convolution, "matmul": matrix_product}
    if not ops or ops[0]["name"] not in anchors:
        return None
    try:
        attrs = anchors[ops[0]["name"]](ops[0])
    except KeyError:  # a product of tensors whose ranks are not known
        return None
    data, weights = (arg.get("param") for arg in ops[0]["args"])
    if data is None or weights is None:
        return None
    letter = "C" if isinstance(attrs, Convolution) else "N"
    parts = re.findall(r"\d*[A-Za-z]", attrs.out_layout)
    rest = _Epilogue([index for index, part in enumerate(parts) if part[-1].upper() == letter], places)
    for index, op in enumerate(ops[1:]):
        if not rest.take(op, index):
            return None
    read = {arg["param"] for op in ops for arg in op["args"] if "param" in arg}
    if len(read) != len(places) - 1:  # not one output, or tensors whose part is not known
        return None
    return Product(
        attrs, data, weights, len(places) - 1, rest.bias, rest.residual, rest.activation, rest.limits, ops
    )


class _Epilogue:
    """What follows a product, operator by operator."""

    def __init__(self, channel: list[int], places: list[Any]) -> None:
        self.channel, self.places = channel, places
        self.bias: int | None = None
        self.residual: int | None = None
        self.activation: str | None = None
        self.limits: tuple[float, float] | None = None

    def take(self, op: OpInfo, index: int) -> bool:
        """Whether an operator can follow; `index`: of the entry whose result it must take."""
        from_before = [arg for arg in op["args"] if "op" in arg]
        others = [position for position, arg in enumerate(op["args"]) if "op" not in arg]
        if from_before != [{"op": index}]:
            return False
        name = op["name"]
        if name == "add" and len(others) == 1:
            return self._add(op, others[0])
        if name in ACTIVATIONS and not others and self.activation is None:
            self.activation, self.limits = name, ACTIVATIONS[name]
            return True
        if name in ("clip", "maximum", "minimum") and self.activation in (None, "clip", "nn.relu"):
            return self._clip(op, others)
        return False

    def _add(self, op: OpInfo, operand: int) -> bool:
        param = op["args"][operand].get("param")
        axes = op["attrs"].get("broadcast_axes")
        if param is None or axes is None or self.activation is not None:
            return False
        shape, full = self.places[param].shape, self.places[-1].shape
        along = [axis for axis, size in zip(axes[operand], shape, strict=True) if not _is_one(size)]
        if self.bias is None and along == self.channel:
            self.bias = param
            return True
        wide = len(shape) == len(full) and axes[operand] == list(range(len(full)))
        if self.residual is None and wide and all(map(_same, shape, full)):
            self.residual = param
            return True
        return False

    def _clip(self, op: OpInfo, others: list[int]) -> bool:
        low, high = self.limits or (float("-inf"), float("inf"))
        if op["name"] == "clip":
            low, high = max(low, float(op["attrs"]["min"])), min(high, float(op["attrs"]["max"]))
        else:
            value = op["args"][others[0]].get("value") if len(others) == 1 else None
            if value is None:
                return False
            low = max(low, float(value)) if op["name"] == "maximum" else low
            high = min(high, float(value)) if op["name"] == "minimum" else high
        if low > high:  # whichever comes last would win
            return False
        self.activation, self.limits = "clip", (low, high)
        return True


def _is_one(size: Any) -> bool:
    return isinstance(size, tirx.IntImm) and int(size) == 1


def _same(a: Any, b: Any) -> bool:
    return bool(tvm_ffi.structural_equal(a, b))
