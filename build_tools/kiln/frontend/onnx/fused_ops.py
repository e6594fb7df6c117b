"""Operators of files that ONNX Runtime has optimised and saved (domain com.microsoft).

They are operators of ONNX with an activation, another layout or another name.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te

from kiln.frontend.onnx.body import Body, Expansion
from kiln.frontend.onnx.value import not_known

op = relax.op
_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
# By activation, the attributes of ONNX's operator that its parameters set, in order, with their defaults.
_ACTIVATIONS: dict[str, dict[str, float]] = {
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "Relu": {},
    "Selu": {"alpha": 1.6732632, "gamma": 1.050701},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "Tanh": {},
    "ThresholdedRelu": {"alpha": 1.0},
}


def _activate(body: Body, name: str, kind: str, parameters: list[float]) -> str:
    """The activation `kind` of the tensor `name`. Raises ValueError for an unknown activation."""
    if kind in ("", "Identity"):
        return name
    if kind == "Clip":
        limits = [body.like(name, value) for value in parameters]
        return body.op("Clip", name, *limits)
    if kind not in _ACTIVATIONS:
        raise ValueError(f"its activation is {kind}, allowed: Clip, {', '.join(_ACTIVATIONS)}")
    numbers = {**_ACTIVATIONS[kind], **dict(zip(_ACTIVATIONS[kind], parameters, strict=False))}
    return body.op(kind, name, **numbers)


def fused_conv(body: Body) -> list[str]:
    """FusedConv: an activation of Conv(X, W, B) + Z."""
    attributes = {name: body.attribute(name) for name in _WINDOW}
    result = body.op("Conv", *(body.input(index) for index in range(3) if body.has(index)), **attributes)
    if body.has(3):
        result = body.op("Add", result, body.input(3))
    parameters = list(body.attribute("activation_params") or [])
    return [_activate(body, result, body.attribute("activation", ""), parameters)]


def nhwc_max_pool(body: Body) -> list[str]:
    """NhwcMaxPool: MaxPool of images whose channels are last."""
    names = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
    attributes = {name: body.attribute(name) for name in names}
    pooled = body.op("MaxPool", body.channels_first(body.input(0)), **attributes)
    return [body.channels_last(pooled)]


def fused_gemm(body: Body) -> list[str]:
    """FusedGemm: an activation of Gemm."""
    attributes = {name: body.attribute(name) for name in ("alpha", "beta", "transA", "transB")}
    kind = body.attribute("activation", "")
    names = [f"activation_{name}" for name in ("alpha", "beta", "gamma")]
    numbers = [body.attribute(name) for name in names]
    inputs = [body.input(index) for index in range(3) if body.has(index)]
    parameters = dict(zip(("alpha", "beta", "gamma"), numbers, strict=True))
    ordered = [parameters.get(name) for name in _ACTIVATIONS.get(kind, {})]
    present = [number for number in ordered if number is not None]
    if len(present) != len(ordered) and present:
        raise ValueError(f"its activation {kind} has some of its parameters alone: {', '.join(names)}")
    return [_activate(body, body.op("Gemm", *inputs, **attributes), kind, present)]


def _as_in_onnx(op_type: str, *attributes: str) -> Expansion:
    """The expansion into ONNX's operator `op_type`, with the same inputs and the same `attributes`."""

    def convert(body: Body) -> list[str]:
        present = {name: body.attribute(name) for name in attributes}
        inputs = [body.input(index) for index in range(len(body.node.input))]
        return [body.op(op_type, *inputs, **present)]

    return convert


def expand_dims(body: Body) -> list[str]:
    """ExpandDims: a new axis of size 1, whose position must be known before the model runs."""
    axis = body.extent(body.input(1))
    if not isinstance(axis, int):
        raise not_known(body.input(1))
    return [body.bind(op.expand_dims(body.tensor(body.input(0)), [axis]))]


def distances(body: Body) -> list[str]:
    """CDist: the distance of each row of A from each row of B."""
    metric = body.only("metric", "sqeuclidean", "euclidean")
    rows, columns = (op.expand_dims(body.tensor(body.input(index)), [1 - index]) for index in (0, 1))
    differences = body.bind_tensor(op.subtract(rows, columns))
    squared = body.bind_tensor(op.sum(op.multiply(differences, differences), [2]))
    return [body.bind(squared if metric == "sqeuclidean" else op.sqrt(squared))]


def unfold(body: Body) -> list[str]:
    """UnfoldTensor: windows of `size` elements along axis `dim`, as a new last axis."""
    name = body.input(0)
    rank = body.rank(name)
    axis, size, step = int(body.attribute("dim", -1)) % rank, int(body.required("size")), _step(body)
    shape = body.shape(name)
    count = body.symbols.simplify((shape[axis] - size) // step + 1)
    sizes = [*shape[:axis], count, *shape[axis + 1 :], size]

    def compute(x: Any) -> Any:
        def element(*indices: Any) -> Any:
            return x(*indices[:axis], indices[axis] * step + indices[-1], *indices[axis + 1 : -1])

        return te.compute(sizes, element, name="unfold")

    return [body.bind(body.emit_te(compute, body.tensor(name), hint="unfold"))]


def _step(body: Body) -> int:
    step = int(body.attribute("step", 1))
    if step < 1:
        raise ValueError(f"its attribute step is {step}, allowed: 1 and more")
    return step


MICROSOFT: dict[str, Expansion] = {
    "CDist": distances,
    "ExpandDims": expand_dims,
    "FusedConv": fused_conv,
    "FusedGemm": fused_gemm,
    "GatherND": _as_in_onnx("GatherND"),
    "GridSample": _as_in_onnx("GridSample", "align_corners", "mode", "padding_mode"),
    "NhwcMaxPool": nhwc_max_pool,
    "Pad": _as_in_onnx("Pad", "mode"),
    "Trilu": _as_in_onnx("Trilu", "upper"),
    "UnfoldTensor": unfold,
}
