"""The float32 cases of one node as float16: inputs, weights and results, where the operator takes them.

The expected results are those of float32 on the rounded inputs, by ONNX's evaluator, which has to agree with
ONNX's own test first.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from kiln.frontend.onnx.model import real_inputs
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from .cases import HALVES, Array, Case


def in_halves(case: Case) -> Case | None:
    """A case in float16; None: it has no float32, or float16, operator or evaluator cannot take it."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    if not case.inputs or any(value is None for value in (*case.inputs, *case.outputs)):
        return None
    names = _converted(model)
    if not names:
        return None
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        expected = _expected(case, names)
    except Exception:  # the evaluator raises many kinds
        return None
    if expected is None:
        return None
    half_inputs = [
        value.astype("float16") if port.name in names else value
        for port, value in zip(real_inputs(case.model), case.inputs, strict=True)
        if value is not None
    ]
    name = f"{case.name.rpartition('/')[0]}/{HALVES}"
    return dataclasses.replace(case, name=name, model=model, inputs=half_inputs, outputs=expected)


def _converted(model: onnx.ModelProto) -> set[str]:
    """Make the float32 tensors of a model of one node float16; returns the names of the changed ones."""
    graph = model.graph
    if len(graph.node) != 1 or graph.node[0].op_type in ("Cast", "CastLike", "BitCast"):
        return set()
    node = graph.node[0]
    version = next(item.version for item in model.opset_import if item.domain == node.domain)
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    types = {port.name: port.type.tensor_type.elem_type for port in [*graph.input, *graph.output]}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    names: set[str] = set()
    variables: set[str] = set()
    for index, name in enumerate(node.input):
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if types.get(name) == TensorProto.FLOAT and "tensor(float16)" in formal.types:
            names.add(name)
            variables.add(formal.type_str)
    for index, name in enumerate(node.output):
        formal = schema.outputs[min(index, len(schema.outputs) - 1)]
        if types.get(name) == TensorProto.FLOAT and formal.type_str in variables:
            names.add(name)
    for port in [*graph.input, *graph.output]:
        if port.name in names:
            port.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in graph.initializer:
        if tensor.name in names:
            tensor.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float16"), tensor.name)
            )
    return names


def _expected(case: Case, names: set[str]) -> list[Array] | None:
    """The results of float32 on the inputs and weights `names`, rounded; None where the evaluator differs."""
    inputs: dict[str, Any] = dict(
        zip((port.name for port in real_inputs(case.model)), case.inputs, strict=True)
    )
    if not _agree(_evaluated(case.model, inputs), case):
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for tensor in model.graph.initializer:
        if tensor.name in names:
            tensor.CopyFrom(numpy_helper.from_array(_rounded(numpy_helper.to_array(tensor)), tensor.name))
    rounded = {name: _rounded(value) if name in names else value for name, value in inputs.items()}
    if any(np.isinf(rounded[name]).sum() > np.isinf(inputs[name]).sum() for name in names & set(inputs)):
        return None
    with np.errstate(all="ignore"):
        return [
            value.astype("float16") if port.name in names else value
            for port, value in zip(model.graph.output, _evaluated(model, rounded), strict=True)
        ]


def _rounded(value: Array) -> Array:
    with np.errstate(over="ignore"):
        return value.astype("float16").astype("float32")


def _evaluated(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Array]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [np.asarray(value) for value in ReferenceEvaluator(model).run(None, inputs)]


def _agree(found: Sequence[Array], case: Case) -> bool:
    return all(
        ours.dtype == theirs.dtype and ours.shape == theirs.shape
        and np.allclose(ours, theirs, rtol=case.relative, atol=case.absolute, equal_nan=True)
        for ours, theirs in zip(found, case.outputs, strict=True)
        if theirs is not None
    )  # fmt: skip
