"""Parts of ONNX graphs, between given tensors, with inputs bound to constants."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from kiln.config.check import choices
from kiln.errors import KilnError
from kiln.frontend.importer import one_line
from kiln.frontend.onnx.elements import spread_sequences
from kiln.frontend.onnx.model import real_inputs
from kiln.frontend.onnx.order import needed_by
from kiln.frontend.onnx.value_types import with_value_types


def cut(path: Path, model: onnx.ModelProto, section: Mapping[str, Any]) -> onnx.ModelProto:
    """The part of `model` that `section` describes, a new model.

    Keys of `section`: `elements`, for an input or output that is a sequence or an optional value, the number
    of tensors that it becomes; `constants`, values of inputs; `inputs`, names of inner tensors that become
    inputs; `outputs`, tensors by their names in the part, a mapping or a list of pairs in the order of the
    part's outputs, by default the model's own outputs. Inputs and weights that the part does not read are
    left out. Raises KilnError for a name that the graph does not have, for a constant that does not fit its
    input, and for an inner tensor whose type is unknown.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    spread_sequences(path, result, section.get("elements") or {})
    _bind_constants(path, result, section.get("constants") or {})
    graph = result.graph
    producers = {name: node for node in graph.node for name in node.output if name}
    inputs = list(section.get("inputs") or [])
    outputs = dict(section.get("outputs") or {}) or {value.name: value.name for value in graph.output}
    _check_names(path, result, producers, inputs, outputs)
    needed = needed_by(graph, set(inputs), set(outputs.values()))
    types = _types(path, result)
    new_inputs = [value for value in real_inputs(result) if value.name in needed]
    new_inputs += [_value_info(path, types, name, "inputs") for name in inputs if name in needed]
    returned = [_value_info(path, types, old, "outputs", new) for new, old in outputs.items()]
    nodes = [node for node in graph.node if set(node.output) & needed - set(inputs)]
    doubled = {name for node in nodes for name in node.output} & set(inputs)
    if doubled:
        raise KilnError(
            f"{path}: cut.inputs: '{sorted(doubled)[0]}' and another result of the same node are needed; "
            "cut at all results of that node"
        )
    nodes += [helper.make_node("Identity", [old], [new]) for new, old in outputs.items() if new != old]
    weights = [tensor for tensor in graph.initializer if tensor.name in needed]
    cut_graph = helper.make_graph(nodes, graph.name, new_inputs, returned, weights)
    graph.CopyFrom(cut_graph)
    return result


def _check_names(
    path: Path,
    model: onnx.ModelProto,
    computed: Collection[str],
    inputs: Sequence[str],
    outputs: Mapping[str, str],
) -> None:
    """Raise KilnError for a name in the section `cut` that the graph does not have, or that it has already.

    `computed`: tensors that a node computes. `inputs`: the part's new inputs. `outputs`: by new name.
    """
    weights = [tensor.name for tensor in model.graph.initializer]
    known_names = [*computed, *(value.name for value in real_inputs(model)), *weights]
    for key, names in (("inputs", inputs), ("outputs", outputs.values())):
        for name in names:
            if name not in known_names:
                raise KilnError(
                    f"{path}: cut.{key}: no tensor is called '{name}'{_nearest_names(name, known_names)}"
                )
    for name in inputs:
        if name not in computed:
            raise KilnError(f"{path}: cut.inputs: '{name}' is an input or a weight already; leave it out")
    clash = next((new for new, old in outputs.items() if new != old and new in known_names), None)
    if clash is not None:
        raise KilnError(f"{path}: cut.outputs: '{clash}' is another tensor of the graph; choose another name")


def _bind_constants(path: Path, model: onnx.ModelProto, constants: Mapping[str, Any]) -> None:
    """Replace inputs by weights with the given values, in place."""
    values = {value.name: value for value in real_inputs(model)}
    for name, value in constants.items():
        if name not in values:
            raise KilnError(
                f"{path}: cut.constants: the model has no input '{name}'{_nearest_names(name, values)}"
            )
        tensor = values[name].type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        array, fitting = _array(value, dtype)
        shape = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
        if not fitting:
            raise KilnError(f"{path}: cut.constants: {name}: {value} is not a value of type {dtype}")
        if array.ndim == 0 and None not in shape:
            array = np.full([size or 0 for size in shape], array)
        fits = array.ndim == len(shape) and all(
            size in (None, have) for size, have in zip(shape, array.shape, strict=False)
        )
        if not fits:
            allowed = ", ".join(dim.dim_param or str(dim.dim_value or "?") for dim in tensor.shape.dim)
            raise KilnError(f"{path}: cut.constants: {name}: shape {list(array.shape)}, allowed: [{allowed}]")
        model.graph.initializer.append(numpy_helper.from_array(array, name))
        model.graph.input.remove(values[name])


def _array(value: Any, dtype: Any) -> tuple[Any, bool]:
    """A number, or nested lists of numbers, as an array, and whether it has that value in type `dtype`."""
    try:
        exact = np.array(value)
        with np.errstate(all="ignore"):
            array = exact.astype(dtype)
    except (ValueError, TypeError, OverflowError):  # text, or lists of different lengths
        return np.zeros((), dtype), False
    numbers = exact.dtype.kind in "biuf"
    return array, numbers and (dtype.kind not in "iub" or np.array_equal(array, exact))


def _types(path: Path, model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    try:
        inferred = with_value_types(model).graph
    except Exception as error:  # ONNX raises exception types of its own
        raise KilnError(f"{path}: cut: cannot infer the graph's types: {one_line(error)}") from error
    values = {value.name: value for value in (*inferred.value_info, *inferred.input, *inferred.output)}
    for tensor in inferred.initializer:
        values[tensor.name] = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
    return values


def _value_info(
    path: Path, types: Mapping[str, onnx.ValueInfoProto], name: str, key: str, new: str | None = None
) -> onnx.ValueInfoProto:
    if name not in types or not types[name].type.tensor_type.elem_type:
        raise KilnError(f"{path}: cut.{key}: the type of '{name}' cannot be inferred; cut at another tensor")
    value = onnx.ValueInfoProto()
    value.CopyFrom(types[name])
    value.name = new or name
    return value


def _nearest_names(name: str, candidates: Sequence[str] | Mapping[str, Any]) -> str:
    names = sorted(candidates)
    return choices(name, names if len(names) <= 20 else [*names[:20], "…"]) if names else ""
