"""The drawn float32 nodes in a narrower floating-point type: inputs, weights and results.

The expected results are those that ONNX Runtime computes in float32 from the rounded inputs, rounded: its own
kernels of narrow types are few.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..onnx_nodes.cases import Array
from .draw import Draw, Input, Maker, Node

NARROW: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_KEPT = ("Cast", "CastLike", "BitCast")  # operators whose subject are the types themselves
CasesOf = Callable[[str, Maker, Sequence[int]], Iterator[Any]]


@cache
def _microsoft() -> dict[str, Any]:
    """The newest schema of each operator of com.microsoft."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found = (one for one in state.get_all_operator_schema() if one.domain == "com.microsoft")
    return {one.name: one for one in sorted(found, key=lambda one: one.since_version)}


def _formals(name: str, opset: int, domain: str) -> list[list[tuple[str, Any]]]:
    """By formal input, and by formal output, the name of its type variable and its types."""
    if domain:
        schema = _microsoft()[name]
        return [[(one.typeStr, one.types) for one in ports] for ports in (schema.inputs, schema.outputs)]
    known = onnx.defs.get_schema(name, opset, "")
    return [[(one.type_str, one.types) for one in ports] for ports in (known.inputs, known.outputs)]


def _places(node: Node, kind: str) -> tuple[set[int], set[int]]:
    """The float32 inputs of a node that may be of the type `kind`, and the results that then are, too."""
    if node.steps or node.operator in _KEPT or node.domain not in ("", "com.microsoft"):
        return set(), set()
    try:
        inputs, outputs = _formals(node.operator, node.opset, node.domain)
    except (KeyError, onnx.defs.SchemaError):  # an operator of ONNX Runtime in ONNX's domain
        return set(), set()
    floats = [number for number, item in enumerate(node.inputs)
              if item is not None and item.value.dtype == np.float32]  # fmt: skip
    formal = {number: inputs[min(number, len(inputs) - 1)] for number in floats}
    taken = {number for number, (_, types) in formal.items() if f"tensor({kind})" in types}
    variables = {formal[number][0] for number in taken}
    results = {
        number for number in range(node.outputs)
        if outputs[min(number, len(outputs) - 1)][0] in variables
    }  # fmt: skip
    return taken, results


def _rounded(maker: Maker, kind: str, d: Draw) -> Node:
    """A drawn node whose narrow inputs are float32 numbers of the type `kind`."""
    node = maker(d)
    taken, _ = _places(node, kind)
    if not taken:
        raise ValueError("the node has no such inputs")
    for number in taken:
        item = node.inputs[number]
        assert item is not None
        value = item.value.astype(NARROW[kind]).astype("float32")
        node.inputs[number] = Input(value, item.constant)
    return node


def narrow_cases(
    cases_of: CasesOf, kind: str, operator: str, maker: Maker, seeds: Sequence[int]
) -> Iterator[Any]:
    """The cases of an operator in the type `kind`; none where it cannot have it."""
    rounded = partial(_rounded, maker, kind)
    for case in cases_of(operator, rounded, seeds):
        seed = int(case.name.split("/")[1].split()[0])
        yield _narrowed(case, kind, *_places(maker(Draw(operator, seed)), kind))


def _narrowed(case: Any, kind: str, taken: set[int], results: set[int]) -> Any:
    """A case of float32 tensors with inputs `taken` and results `results` of the type `kind`."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    dtype, number = NARROW[kind], helper.np_dtype_to_tensor_dtype(np.dtype(NARROW[kind]))
    names = {f"x{at}" for at in taken}
    for tensor in model.graph.initializer:
        if tensor.name in names:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    data = [port.name for port in model.graph.input]
    for port in model.graph.input:
        if port.name in names:
            port.type.tensor_type.elem_type = number
    count = len(model.graph.output)
    changed = [model.graph.output[at].type.tensor_type.elem_type == TensorProto.FLOAT and at in results
               for at in range(count)]  # fmt: skip
    for at in range(count):
        if changed[at]:
            model.graph.output[at].type.tensor_type.elem_type = number
    runs = [
        (sizes, [_as(value, dtype, name in names) for name, value in zip(data, inputs, strict=True)])
        for sizes, inputs in case.runs
    ]
    with np.errstate(over="ignore"):
        outputs = [_as(value, dtype, changed[at % count]) for at, value in enumerate(case.outputs)]
    name = case.name.replace("/", f" {kind}/", 1)
    return dataclasses.replace(case, name=name, model=model, runs=runs, outputs=outputs)


def _as(value: Array, dtype: Any, changed: bool) -> Array:
    return value.astype(dtype) if changed else value
