"""Pattern tables that several backends share: matmuls and convolutions with their epilogues.

    dense    x (…, k) · constant w (k, n)           conv2d   NHWC data, constant HWIO weights
    matmul   a (…, m, k) · b (…, k, n), both computed at run time, with equal batch axes

dense and conv2d may be followed by a bias (a constant of n elements), a residual (a tensor of the output's
shape) and ReLU or a clip, or, where a backend asks for it, another activation (`SMOOTH`) in place of the
residual; dense may follow a layer norm. The longest form is listed first. In the graph the patterns are
relax.dpl patterns; in fused functions they are read from op info (opinfo/match.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm_ffi
from tvm.relax.dpl import is_const, is_op, wildcard
from tvm.tirx import PrimFunc

from kiln.arrays import Array
from kiln.byoc.match import Group, Match, Operand, Pattern
from kiln.opinfo.match import ConvolutionAttributes, read_product

FLOAT = "float32"
ACTIVATIONS = ("clip", "relu", None)
# Activations of one input that only some backends compute; gelu is the exact one.
SMOOTH = ("gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
_GELU = {"half": 0.5, "one": 1.0, "root": 2.0**-0.5}
_WIDEST_NORM = 2048  # a layer norm before a product is computed again for each block of columns


def _epilogue_forms(more: Sequence[str]) -> Iterator[tuple[bool, bool, str | None]]:
    """All epilogues as (bias, residual, activation), the longest first. `more`: further activations."""
    forms = [
        *itertools.product((True, False), (True, False), ACTIVATIONS),
        *itertools.product((True, False), (False,), more),
    ]
    return iter(sorted(forms, key=lambda form: -sum(map(bool, form))))


def either(name: str, one: Any, other: Any) -> Any:
    """The pattern of a commutative operator with its operands in either order."""
    return is_op(name)(one, other) | is_op(name)(other, one)


def _with_epilogue(
    anchor: Any, bias: bool, residual: str | None, activation: str | None
) -> tuple[Any, dict[str, Any]]:
    """The pattern of `anchor` with an epilogue, and the patterns of the epilogue's operands by name.

    `residual`: the side of the sum on which the residual is. The sides are separate patterns because both may
    be matmuls of which only one is read by this sum alone; a pattern that allows either side would match the
    first of them.
    """
    operands: dict[str, Any] = {}
    root = anchor
    if bias:
        operands["bias"] = is_const()
        root = either("relax.add", root, operands["bias"])
    if residual:
        operands["residual"] = wildcard()
        sides = (root, operands["residual"])
        root = is_op("relax.add")(*(sides if residual == "right" else reversed(sides)))
    if activation == "relu":
        root = is_op("relax.nn.relu")(root)
    if activation == "clip":
        operands |= {"low": is_const(), "high": is_const()}
        below = either("relax.minimum", root, operands["high"])
        root = either("relax.maximum", below, operands["low"])
    if activation in SMOOTH:
        root = _smooth_activation(activation, root, operands)
    return root, operands


def _smooth_activation(activation: str, x: Any, operands: dict[str, Any]) -> Any:
    """The pattern of an activation in SMOOTH, applied to `x`; adds its constants to `operands`."""
    if activation in ("sigmoid", "tanh"):
        return is_op(f"relax.{activation}")(x)
    if activation == "silu":
        return is_op("relax.nn.silu")(x) | either("relax.multiply", x, is_op("relax.sigmoid")(x))
    if activation == "gelu_tanh":
        return is_op("relax.nn.gelu_tanh")(x)
    # Exported graphs contain gelu as x * (1 + erf(x * root)) * half.
    operands |= {name: is_const() for name in _GELU}
    scaled = either("relax.multiply", x, operands["root"])
    shifted = either("relax.add", is_op("relax.erf")(scaled), operands["one"])
    return either("relax.multiply", either("relax.multiply", x, shifted), operands["half"])


def _table(
    name: str,
    anchor_name: str,
    fixed: Any,
    check: Any,
    depth: Any,
    more: Sequence[str] = (),
    norm: bool = False,
) -> list[Pattern]:
    """Patterns of the operator `anchor_name` with each epilogue; `fixed` makes the pattern of the weights.

    `more`: activations of SMOOTH that are matched too; `norm`: whether a layer norm computes the data.
    """
    table = []
    forms = [
        (*form, side)
        for form in _epilogue_forms(more)
        for side in (("right", "left") if form[1] else (None,))
    ]
    for bias, residual, activation, side in forms:
        x, w = wildcard(), fixed()
        before = {"scale": is_const(), "shift": is_const()} if norm else {}
        anchor = is_op(anchor_name)(is_op("relax.nn.layer_norm")(x, *before.values()) if norm else x, w)
        root, operands = _with_epilogue(anchor, bias, side, activation)
        options = {
            "norm": norm or None, "bias": bias or None, "residual": residual or None, "activation": activation
        }  # fmt: skip
        table.append(
            Pattern(name, root, anchor, {"x": x, "w": w, **before, **operands}, check, options, depth)
        )
    return table


def dense(more: Sequence[str] = (), norm: bool = False) -> list[Pattern]:
    """Patterns of dense layers, x · w with w a constant matrix, with their epilogues.

    `more`: activations of SMOOTH that are matched too; `norm`: also after a layer norm.
    """
    described = (
        "dense",
        "relax.matmul",
        is_const,
        is_dense,
        lambda match: match.operands["w"].shape[0],
        more,
    )
    return [*(_table(*described, True) if norm else []), *_table(*described)]


def conv2d(more: Sequence[str] = ()) -> list[Pattern]:
    """Patterns of NHWC convolutions with any number of groups, with their epilogues (`more` as for dense)."""
    return _table("conv2d", "relax.nn.conv2d", is_const, is_conv2d, _conv_depth, more)


def matmul() -> list[Pattern]:
    """The pattern of matmuls of two tensors that are both computed at run time."""
    x, w = wildcard(), wildcard()
    root = is_op("relax.matmul")(x, w)
    return [Pattern("matmul", root, root, {"x": x, "w": w}, is_matmul)]


def _conv_depth(match: Match) -> int:
    """Multiply-adds for one element of a convolution's output."""
    shape = match.operands["w"].shape
    return int(np.prod(shape[:3]))


def _is_float32(match: Match) -> bool:
    """Whether all tensors are float32 and bias, residual and limits have the expected shapes."""
    operands = match.operands
    if any(operand.dtype != FLOAT for operand in [*operands.values(), match.output]):
        return False
    width = match.output.shape[-1]
    bias = operands.get("bias")
    if bias is not None and (bias.value is None or bias.shape[-1:] != (width,) or bias.value.size != width):
        return False
    residual = operands.get("residual")
    if residual is not None and not _same_shape(residual.shape, match.output.shape):
        return False
    limits = [operands[name] for name in ("low", "high") if name in operands]
    if not all(limit.value is not None and limit.value.size == 1 for limit in limits):
        return False
    return match.options.get("activation") != "gelu" or all(
        value is not None and value.size == 1 and abs(float(value.reshape(-1)[0]) - expected) < 1e-6
        for value, expected in (
            (operands[name].value, expected) for name, expected in _GELU.items() if name in operands
        )
    )


def _same_shape(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(tvm_ffi.structural_equal(x, y) for x, y in zip(a, b, strict=True))


def is_dense(match: Match) -> bool:
    """Whether the match is a dense layer in float32."""
    w, x = match.operands["w"], match.operands["x"]
    if match.options.get("norm"):
        norm = norm_of(match)
        if norm["axes"] not in ([-1], [len(x.shape) - 1]) or w.shape[0] > _WIDEST_NORM:
            return False
    return _is_float32(match) and w.value is not None and w.value.ndim == 2 and len(x.shape) >= 1


def norm_of(match: Match) -> dict[str, Any]:
    """The attributes of the layer norm before a product."""
    attrs: dict[str, Any] = next(op["attrs"] for op in match.ops if op["name"] == "nn.layer_norm")
    return {**attrs, "axes": [int(axis) for axis in attrs["axes"]]}


def is_conv2d(match: Match) -> bool:
    """Whether the match is an NHWC convolution in float32 with constant weights and any number of groups."""
    attrs, w = match.anchor["attrs"], match.operands["w"]
    return (
        _is_float32(match)
        and w.value is not None
        and attrs["data_layout"] == "NHWC"
        and attrs["kernel_layout"] == "HWIO"
        and attrs["out_layout"] in ("NHWC", "")
    )


def is_product(match: Match) -> bool:
    """Whether a convolution is a matmul of pixels by channels: 1x1, stride 1, unpadded, one group."""
    attrs = match.anchor["attrs"]
    return (
        tuple(match.operands["w"].shape[:2]) == (1, 1)
        and all(step == 1 for step in attrs["strides"])
        and not any(attrs["padding"])
        and attrs["groups"] == 1
    )


def is_matmul(match: Match) -> bool:
    """Whether the match is a matmul of two computed float32 tensors with equal batch axes."""
    x, w = match.operands["x"], match.operands["w"]
    if not _is_float32(match) or w.value is not None or x.value is not None:
        return False
    return len(x.shape) >= 2 and len(x.shape) == len(w.shape) and _same_shape(x.shape[:-2], w.shape[:-2])


# ---- after lowering ----

_CHECKS = {"dense": is_dense, "conv2d": is_conv2d}


def groups(*names: str) -> list[Group]:
    """Patterns of fused functions: the named kinds (dense, conv2d) with their epilogues."""
    return [Group(name, _reader(name)) for name in names]


def _reader(name: str) -> Any:
    """`Group.read` for the kind `name`, dense or conv2d."""

    def read(func: PrimFunc, tensors: Sequence[Operand]) -> Match | None:
        product = read_product(func)
        if product is None or isinstance(product.attrs, ConvolutionAttributes) != (name == "conv2d"):
            return None
        if product.output != len(tensors) - 1 or product.activation not in (None, "nn.relu", "clip"):
            return None
        indices = {
            "x": product.data,
            "w": product.weights,
            "bias": product.bias,
            "residual": product.residual,
        }
        operands = {
            name_of_operand: tensors[index] for name_of_operand, index in indices.items() if index is not None
        }
        options = {
            "bias": "bias" in operands or None,
            "residual": "residual" in operands or None,
            "activation": None if product.activation is None else product.activation.removeprefix("nn."),
        }
        ops = product.ops
        match = Match(name, operands, tensors[product.output], ops, ops[0], options, limits=product.limits)
        if not _CHECKS[name](match):
            return None
        depth = _conv_depth(match) if name == "conv2d" else match.operands["w"].shape[0]
        return replace(match, depth=int(depth))

    return read


def limits(match: Match) -> tuple[float, float] | None:
    """Bounds to which the activation clamps its input; None if there is no activation."""
    if match.limits is not None:
        return match.limits
    if match.options.get("activation") == "relu":
        return 0.0, float("inf")
    if match.options.get("activation") == "clip":
        low, high = (match.operands[name].value for name in ("low", "high"))
        assert low is not None and high is not None
        return float(low.reshape(-1)[0]), float(high.reshape(-1)[0])
    return None


def bias_of(match: Match) -> Array | None:
    """The bias as a vector; None if there is no bias or it is not constant."""
    bias = match.operands.get("bias")
    return None if bias is None or bias.value is None else bias.value.reshape(-1)
