"""Operators of ONNX Runtime (domain com.microsoft) for state space models and linear attention.

Exporters of language models write them in place of several operators of ONNX: causal convolutions whose last
inputs are a state, norms with a gate, and the gates of a recurrence.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from kiln.extents import Extent
from kiln.frontend.onnx import linear_attention as onnx_operator
from kiln.frontend.onnx.body import Body, Expansion
from kiln.frontend.onnx.node import part
from kiln.frontend.onnx.transformer_ops import rms_norm

op = relax.op
_FLOAT = "float32"  # the operators compute in it, whatever type their tensors have


def _gate(x: Any, kind: str) -> Any:
    """An activation that lets a part of `x` through. Raises ValueError for an unknown one."""
    if kind == "sigmoid":
        return op.sigmoid(x)
    if kind in ("silu", "swish"):
        return op.multiply(x, op.sigmoid(x))
    raise ValueError(f"its attribute 'activation' is {kind}, allowed: silu, swish, sigmoid")


def scaled_silu(body: Body) -> list[str]:
    """ScaledSiLU: z * sigmoid(z) of z = scale * X; the scale is an input of one element or `alpha`."""
    name = body.input(0)
    alpha = float(body.attribute("alpha", 1.0))
    scale = body.cast(body.input(1), body.dtype(name)) if body.has(1) else body.like(name, alpha)
    if body.rank(scale):
        scale = body.reshape(scale, [])
    z = body.bind_tensor(op.multiply(body.tensor(name), body.tensor(scale)))
    return [body.bind(op.multiply(z, op.sigmoid(z)))]


def gated_add(body: Body) -> list[str]:
    """GatedAdd: X + Y * gate, one number of the gate for each row."""
    x, y, gate = (body.tensor(body.input(index)) for index in range(3))
    return [body.bind(op.add(x, op.multiply(y, gate)))]


def gated_rms_norm(body: Body) -> list[str]:
    """GatedRMSNorm: RMS norm of the last axis, in parts as long as the scale, times a gate's activation."""
    name, dtype = body.input(0), body.dtype(body.input(0))
    width, count = body.size(name, -1, "the last size"), body.size(body.input(1), 0, "the size of the scale")
    if width % count:
        raise ValueError(f"its scale has {count} elements, allowed: a divisor of {width}, the last size")
    groups = body.reshape(body.cast(name, _FLOAT), [*body.shape(name)[:-1], width // count, count])
    scale = body.cast(body.input(1), _FLOAT)
    epsilon = float(body.attribute("epsilon", 1e-5))
    normal = rms_norm(body, groups, scale, [body.rank(groups) - 1], epsilon)
    gate = body.tensor(body.cast(body.input(2), _FLOAT))
    kind = body.attribute("activation", "silu")
    normal = body.reshape(normal, body.shape(name))
    return [body.cast(body.bind(op.multiply(body.tensor(normal), _gate(gate, kind))), dtype)]


def branchwise_rms_norm(body: Body) -> list[str]:
    """BranchwiseRMSNorm: RMS norm of each branch, (…, branches, size) or (…, branches * size)."""
    name, dtype = body.input(0), body.dtype(body.input(0))
    branches = int(body.attribute("num_branches", 0))
    sizes = body.shape(name)
    width = body.size(name, -1, "the last size")
    if branches:
        if branches < 0 or width % branches:
            raise ValueError(
                f"its attribute 'num_branches' is {branches}, allowed: a divisor of {width}, the last size"
            )
        width //= branches
        sizes = [*sizes[:-1], branches, width]
    grouped = body.reshape(body.cast(name, _FLOAT), sizes)
    ones = body.const([1.0] * width, _FLOAT)
    normal = rms_norm(body, grouped, ones, [len(sizes) - 1], float(body.attribute("epsilon", 1e-5)))
    if body.has(1):
        scale = body.cast(body.input(1), _FLOAT)
        elements = math.prod(
            body.size(scale, axis, "a size of the scale") for axis in range(body.rank(scale))
        )
        if elements > width:
            scale = body.reshape(scale, [elements // width, width])
        normal = body.bind(op.multiply(body.tensor(normal), body.tensor(scale)))
    return [body.cast(body.reshape(normal, body.shape(name)), dtype)]


def linear_attention(body: Body) -> list[str | None]:
    """LinearAttention: ONNX's operator of this name, without states of earlier positions as results."""
    body.only("state_window", 0)
    return onnx_operator.linear_attention(body)


def linear_attention_gate(body: Body) -> list[str | None]:
    """LinearAttentionGate: decay_scale * softplus(a + dt_bias), and sigmoid(b)."""
    a, bias, scale = (body.tensor(body.cast(body.input(index), _FLOAT)) for index in range(3))
    softplus = body.op("Softplus", body.bind(op.add(a, bias)))
    decay = body.bind(op.multiply(body.tensor(softplus), scale))
    beta = body.bind(op.sigmoid(body.tensor(body.input(3)))) if body.has(3) else None
    return [body.cast(decay, body.dtype(body.input(0))), beta]


def causal_convolution(body: Body) -> list[str | None]:
    """CausalConvWithState: depthwise convolution of the state, then the input; and the next state.

    The state is the last (kernel size - 1) * dilation positions; zeros where the node has none.
    """
    body.only("ndim", 1)
    body.only("state_window", 0)
    last = bool(body.only("channels_last", 0, 1))
    x, weight, bias, past = (body.input(index) for index in range(4))
    channels = body.size(weight, 0, "the number of channels")
    dilation = int(body.attribute("dilation", 1))
    length = (body.size(weight, 2, "the size of the kernel") - 1) * dilation
    sizes = body.shape(x)
    if past and body.size(past, 1 if last else -1, "the length of the state") != length:
        raise ValueError(
            f"its state '{past}' has {body.shape(past)[1 if last else -1]} positions, allowed: {length}, "
            "(kernel size - 1) * dilation"
        )
    x, past = (_by_channels(body, name, channels) if last and name else name for name in (x, past))
    if length and not past:
        zero = relax.const(0, body.dtype(x))
        past = body.bind(op.full([body.shape(x)[0], channels, length], zero, body.dtype(x)))
    whole = body.op("Concat", past, x, axis=2) if length else x
    inputs = [whole, weight, *([bias] if bias else [])]
    y = body.op("Conv", *inputs, group=channels, dilations=[dilation], strides=[1], pads=[0, 0])
    kind = body.attribute("activation", "none")
    if kind != "none":
        if kind not in ("silu", "swish"):
            raise ValueError(f"its attribute 'activation' is {kind}, allowed: none, silu, swish")
        y = body.bind(_gate(body.tensor(y), kind))
    present = None
    if length and body.wants(1):
        end = body.shape(whole)[2]
        present = body.bind(part(body.tensor(whole), 2, end - length, end))
    if not last:
        return [y, present]
    state_sizes = [sizes[0], length, *sizes[2:]]
    return [_by_positions(body, y, sizes), present and _by_positions(body, present, state_sizes)]


def _by_channels(body: Body, name: str, channels: int) -> str:
    """The tensor `name` (batch, length, …) as (batch, channels, length)."""
    return body.transpose(body.reshape(name, [*body.shape(name)[:2], channels]), [0, 2, 1])


def _by_positions(body: Body, name: str, sizes: list[Extent]) -> str:
    """The tensor `name` (batch, channels, length) as (batch, length, …), with the sizes `sizes`."""
    return body.reshape(body.transpose(name, [0, 2, 1]), sizes)


MICROSOFT: dict[str, Expansion] = {
    "BranchwiseRMSNorm": branchwise_rms_norm,
    "CausalConvWithState": causal_convolution,
    "GatedAdd": gated_add,
    "GatedRMSNorm": gated_rms_norm,
    "LinearAttention": linear_attention,
    "LinearAttentionGate": linear_attention_gate,
    "ScaledSiLU": scaled_silu,
}
