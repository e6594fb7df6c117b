"""Inlines the functions that an ONNX model defines."""

from __future__ import annotations

import graphlib
from pathlib import Path

import onnx
import onnx.defs
import onnx.inliner

from kiln.errors import KilnError
from kiln.frontend.importer import one_line
from kiln.frontend.onnx.attributes import with_nested_graphs
from kiln.onnx_domains import versions_of

_MOST_NODES = 1 << 17  # greatest number of nodes of a model after inlining

_Key = tuple[str, str, str]


def inline_functions(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    """Inline all functions of `model`. Raises KilnError for recursion and for more than _MOST_NODES nodes."""
    if not model.functions:
        return model
    called = {_key_of_function(function): _calls(path, function) for function in model.functions}
    try:
        order = list(
            graphlib.TopologicalSorter({key: set(names) for key, names in called.items()}).static_order()
        )
    except graphlib.CycleError as error:
        raise KilnError(f"{path}: the function '{error.args[1][0][1]}' calls itself") from None
    counts: dict[_Key, int] = {}
    for key in order:
        counts[key] = sum(counts.get(name, 1) for name in called.get(key, [])) if key in called else 1
    total = sum(counts.get(name, 1) for name in _calls(path, model.graph))
    if total > _MOST_NODES:
        raise KilnError(
            f"{path}: its functions, inlined, make {total:.4g} nodes, allowed: at most {_MOST_NODES}"
        )
    _raise_versions(path, model)
    _write_defaults(path, model)
    try:
        return onnx.inliner.inline_local_functions(model, convert_version=True)
    except Exception as error:  # ONNX raises exception types of its own
        raise KilnError(f"{path}: cannot inline its functions: {one_line(error)}") from error


def _write_defaults(path: Path, model: onnx.ModelProto) -> None:
    """Give each call the attributes that it leaves to the function's defaults, in place: ONNX drops them."""
    defaults = {_key_of_function(function): function.attribute_proto for function in model.functions}
    for body in (model.graph, *model.functions):
        for node in (node for graph in with_nested_graphs(path, body) for node in graph.node):
            attributes_set = {attribute.name for attribute in node.attribute}
            node.attribute.extend(
                one for one in defaults.get(_key_of_call(node), ()) if one.name not in attributes_set
            )


def _raise_versions(path: Path, model: onnx.ModelProto) -> None:
    """Give functions the model's operator sets, in place, where both sets define their operators alike.

    Else ONNX's version converter runs. It needs the type of every tensor; inference finds few in functions.
    """
    model_versions = versions_of(model.opset_import)
    for function in model.functions:
        function_versions = versions_of(function.opset_import)
        nodes = [node for graph in with_nested_graphs(path, function) for node in graph.node]
        for entry in function.opset_import:
            version = model_versions.get(entry.domain, entry.version)
            names = {node.op_type for node in nodes if node.domain == entry.domain}
            pair = function_versions[entry.domain], version
            definitions_by_name = [
                {_definition(name, entry.domain, version) for version in pair} for name in names
            ]
            if all(len(definitions) == 1 and None not in definitions for definitions in definitions_by_name):
                entry.version = version


def _definition(name: str, domain: str, version: int) -> int | None:
    """The version that defined an operator as it is in operator set `version`; None: no such operator."""
    try:
        return int(onnx.defs.get_schema(name, version, domain).since_version)
    except onnx.defs.SchemaError:
        return None


def _calls(path: Path, body: onnx.GraphProto | onnx.FunctionProto) -> list[_Key]:
    """The operators or functions that the nodes of `body` and of its nested graphs call, one per node."""
    return [_key_of_call(node) for graph in with_nested_graphs(path, body) for node in graph.node]


def _key_of_function(function: onnx.FunctionProto) -> _Key:
    return (function.domain, function.name, function.overload)


def _key_of_call(node: onnx.NodeProto) -> _Key:
    return (node.domain, node.op_type, node.overload)
