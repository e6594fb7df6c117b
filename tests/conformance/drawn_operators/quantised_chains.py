"""Graphs in standard QDQ: QuantizeLinear and DequantizeLinear follow most steps of a drawn chain.

Scales, zero points, signs and bits are drawn; constants are weights of 8 bits with one scale, or one for each
index of an axis. Inputs are floats.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..onnx_nodes.cases import Array
from . import chain_kernels
from .case import DrawnCase, reference
from .chain_links import Chain, Shape
from .chains import LINKS
from .draw import Draw, Node

NAME = "QuantisedChain"
_OPSETS = (19, 22)
_INT16_SINCE = 21
# Steps with kernels of integers are drawn more often than others.
_LINKS = [*LINKS, *(link for link, weight in chain_kernels.LINKS.items() for _ in range(2 * weight))]
_FLOAT_STEPS = 0.12  # the share of steps and constants that stay in float
_NUDGES = (1 + 2**-18, 1 - 2**-18, 1 + 2**-14, 1 - 2**-14)
# Of elements: beyond these shares, differences do not come from values between two levels.
_FEW, _MANY = 0.15, 0.5


class QuantisedChain(Chain):
    """A chain whose tensors are rounded to levels."""

    def _rounded(self, name: str, shape: Shape) -> str:
        d, around = self.d, 0.03
        kind = d.pick(("int8", "int8", "uint8"))
        if d.opset >= _INT16_SINCE and d.chance(0.2):
            kind, around = "int16", 0.03 / 128
        info = np.iinfo(kind)
        middle = (info.min + info.max + 1) // 2
        zero = middle + d.number(-40, 40) if d.chance(0.7) else d.pick((middle, info.min, info.max))
        pair = self.const(np.float32(d.real(0.3, 2) * around)), self.const(zero, kind)
        levels = self.step("QuantizeLinear", name, *pair)
        return self.step("DequantizeLinear", levels, *pair, shape=shape)

    def data(self, shape: Shape) -> str:
        return self._rounded(self.given(self.d.data(self.d.values(shape, "float32", 1.0))), shape)

    def weights(self, shape: Shape) -> str:
        d = self.d
        if d.chance(_FLOAT_STEPS) or not shape:
            return super().weights(shape)
        kind = d.pick(("int8", "int8", "uint8"))
        axis = d.axis(len(shape)) if d.chance(0.6) else None
        parts = () if axis is None else (shape[axis],)
        middle = 0 if kind == "int8" else 128
        zero = np.full(parts, middle)
        if d.chance(0.3):
            zero = middle + d.indices(parts, -30, 30)
        scale = 0.01 * (0.5 + np.abs(d.values(parts, "float32", 0.5))) / max(1.0, np.prod(shape[1:]) ** 0.5)
        constants = self.const(d.values(shape, kind)), self.const(scale, "float32"), self.const(zero, kind)
        attributes = {} if axis is None else {"axis": axis}
        return super().step("DequantizeLinear", *constants, **attributes)

    def step(self, operator: str, *inputs: str, shape: Shape | None = None, **attributes: Any) -> str:
        converts = operator in ("QuantizeLinear", "DequantizeLinear")
        if shape is None or converts or self.d.chance(_FLOAT_STEPS):
            return super().step(operator, *inputs, shape=shape, **attributes)
        return self._rounded(super().step(operator, *inputs, **attributes), shape)


def quantised_chain(d: Draw) -> Node:
    """A graph of 1 to 4 links in QDQ."""
    d.opset = d.number(*_OPSETS)
    c = QuantisedChain(d)
    rank = d.pick((1, 2, 3, 4, 4, 4, 5))
    c.data(tuple(d.size(1, 6) if axis < 2 else d.size(2, 8) for axis in range(rank)))
    for _ in range(d.number(1, 4)):
        names = list(c.shapes)
        x = names[-1] if d.chance(0.8) else d.pick(names)
        c.extend(d.pick(_LINKS), x)
    results = [name for name in list(c.shapes)[:-1] if d.chance(0.1)] + list(c.shapes)[-1:]
    return Node(NAME, list(c.inputs), {}, len(results), d.opset, steps=c.steps, results=results)


def compare_levels(case: DrawnCase, found: Sequence[Array]) -> str:
    """The difference of results from ONNX Runtime's, in words; empty if roundings explain it.

    A value between two levels may be rounded either way, and what follows may enlarge that: as much as ONNX
    Runtime's own results change with the scales of activations, and two levels. Such values are few.
    """
    if len(found) != len(case.outputs):
        return f"{len(found)} results, expected {len(case.outputs)}"
    nudged: list[list[Array]] = []
    for number, (ours, theirs) in enumerate(zip(found, case.outputs, strict=True)):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return f"output {number}: {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
        got, want = ours.astype("float64"), theirs.astype("float64")
        greatest = float(np.abs(want[np.isfinite(want)]).max(initial=0.0))
        far = ~np.isclose(got, want, 1e-4, 2e-5 * max(1.0, greatest), equal_nan=True)
        if not far.any():
            continue
        nudged = nudged or _nudged(case)
        moved = max(float(np.nanmax(np.abs(other[number] - want), initial=0.0)) for other in nudged)
        differences = np.abs(got - want)[far]
        share = far.mean() if far.sum() > 3 else 0.0
        limit = 2.002 * max(moved, _greatest_level(case.model))
        if not (differences <= limit).all() or share > (_MANY if moved else _FEW):
            return f"output {number}: {far.sum()} of {far.size} differ, by {differences.max():g} of {limit:g}"
    return ""


def _scales(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """The scales of activations."""
    names = {node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    return [tensor for tensor in model.graph.initializer if tensor.name in names]


def _greatest_level(model: onnx.ModelProto) -> float:
    return max((float(numpy_helper.to_array(tensor)) for tensor in _scales(model)), default=0.0)


def _nudged(case: DrawnCase) -> list[list[Array]]:
    """The outputs of all runs with scales of activations that differ a little."""
    outputs = []
    for factor in _NUDGES:
        model = copy.deepcopy(case.model)
        for tensor in _scales(model):
            value = np.asarray(numpy_helper.to_array(tensor) * np.float32(factor), "float32")
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
        runs = reference(model, [inputs for _, inputs in case.runs]) or []
        outputs.append([array for run in runs for array in run or ()])
    return outputs
