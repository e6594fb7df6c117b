"""Matching of convolutions and matmuls in fused functions: the role of each parameter, for library backends.

`read_product` accepts a PrimFunc with op info (opinfo/attach.py) whose operators are one convolution or
matmul and an epilogue that libraries can compute: a bias, a residual, an activation. It follows the operands
of each operator, so that the order of the additions, or of an addition's operands, makes no difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm.tirx import PrimFunc

from kiln.extents import is_one
from kiln.opinfo.attach import OpInfo, of, tensors

# Activations without parameters, by operator name: the limits of a clipping activation, else None.
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
class ConvolutionAttributes:
    """The attributes of a 2-D convolution.

    Strides and dilation are (height, width), padding is (top, left, bottom, right). Layouts have a letter for
    each axis; `4c` is a block of 4 of axis C.
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
    """Layouts of a matmul: rows (M), columns (N), depth (K); other letters are batch axes."""

    a_layout: str
    b_layout: str
    out_layout: str


@dataclass(frozen=True)
class Product:
    """A convolution or matmul with its epilogue. Tensors are positions in `opinfo.attach.tensors`.

    `bias`: tensor with one number for each output channel, added to the sums. `residual`: tensor of the
    output's shape, added before the activation. `activation`: name of an operator, or `clip`; `limits`: lower
    and upper limit of an activation that only clips. `ops`: the function's op info.
    """

    attrs: ConvolutionAttributes | MatrixProduct
    data: int
    weights: int
    output: int
    bias: int | None
    residual: int | None
    activation: str | None
    limits: tuple[float, float] | None
    ops: list[OpInfo]


def convolution(op: OpInfo) -> ConvolutionAttributes:
    """The attributes of the convolution in an op info entry of nn.conv2d."""
    attrs = op["attrs"]
    return ConvolutionAttributes(
        tuple(attrs["strides"]),
        tuple(attrs["padding"]),
        tuple(attrs["dilation"]),
        int(attrs["groups"]),
        attrs["data_layout"],
        attrs["kernel_layout"],
        attrs["out_layout"] or attrs["data_layout"],
    )


def matrix_product(op: OpInfo) -> MatrixProduct:
    """The layouts in an op info entry of matmul."""
    attrs = op["attrs"]
    return MatrixProduct(attrs["a_layout"], attrs["b_layout"], attrs["out_layout"])


def read_product(func: PrimFunc) -> Product | None:
    """The convolution or matmul that a function computes; None if it computes anything else, or more."""
    ops = of(func)
    parameters = tensors(func)
    anchors: dict[str, Callable[[OpInfo], ConvolutionAttributes | MatrixProduct]]
    anchors = {"nn.conv2d": convolution, "matmul": matrix_product}
    if not ops or ops[0]["name"] not in anchors:
        return None
    try:
        attrs = anchors[ops[0]["name"]](ops[0])
    except KeyError:  # the ranks of the operands are not known
        return None
    data, weights = (arg.get("param") for arg in ops[0]["args"])
    if data is None or weights is None:
        return None
    letter = "C" if isinstance(attrs, ConvolutionAttributes) else "N"
    axes = re.findall(r"\d*[A-Za-z]", attrs.out_layout)
    epilogue = _Epilogue([index for index, axis in enumerate(axes) if axis[-1].upper() == letter], parameters)
    for index, op in enumerate(ops[1:]):
        if not epilogue.append(op, index):
            return None
    read = {arg["param"] for op in ops for arg in op["args"] if "param" in arg}
    if len(read) != len(parameters) - 1:  # more than one output, or a tensor whose role is not known
        return None
    return Product(
        attrs,
        data,
        weights,
        len(parameters) - 1,
        epilogue.bias,
        epilogue.residual,
        epilogue.activation,
        epilogue.limits,
        ops,
    )


class _Epilogue:
    """The epilogue of a convolution or matmul, built up operator by operator.

    `channel`: the axes of the output that hold the channel; `parameters`: the function's tensors.
    """

    def __init__(self, channel: list[int], parameters: list[Any]) -> None:
        self.channel, self.parameters = channel, parameters
        self.bias: int | None = None
        self.residual: int | None = None
        self.activation: str | None = None
        self.limits: tuple[float, float] | None = None

    def append(self, op: OpInfo, index: int) -> bool:
        """Append an operator; returns False if the operator cannot be part of the epilogue.

        Its one operand that is computed by an operator must be the result of entry `index`.
        """
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
        shape, full = self.parameters[param].shape, self.parameters[-1].shape
        along = [axis for axis, size in zip(axes[operand], shape, strict=True) if not is_one(size)]
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
        if low > high:  # the result would depend on the order of the limits
            return False
        self.activation, self.limits = "clip", (low, high)
        return True


def _same(a: Any, b: Any) -> bool:
    return bool(tvm_ffi.structural_equal(a, b))
