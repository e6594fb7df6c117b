"""Element types that ONNX's operators allow, for files that PyTorch's exporter writes.

PyTorch computes sums, products, extremes and matrix products of all integers and of both 16-bit floats; ONNX
defines many of these operators for some types alone, and the exporter writes the nodes all the same. Such a
node computes in a wider type here, between casts: integers wrap around as they do in the narrow type, because
the cast back drops the upper bits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from kiln.onnx_domains import is_onnx, opset_of

# By element type, those that hold all its values and compute the same once cast back, in order of preference.
_INTEGERS = ("INT32", "INT64")
_WIDER = {
    "BOOL": _INTEGERS,
    "UINT8": _INTEGERS,
    "INT8": _INTEGERS,
    "INT16": _INTEGERS,
    "UINT16": _INTEGERS,
    "INT32": ("INT64",),
    "FLOAT16": ("FLOAT",),
    "BFLOAT16": ("FLOAT",),
}


def with_allowed_types(model: Any) -> None:
    """Cast, in place, the operands of nodes whose types ONNX does not allow there, and the results back.

    A node stays as it is where no wider type is allowed either, or where its types are not known.
    """
    _in_graph(model.graph, opset_of(model), {})


def _in_graph(graph: Any, version: int, outer: Mapping[str, int]) -> None:
    """Do so in a graph; `outer`: the element types of tensors of the graphs around it."""
    import onnx

    kinds = dict(outer)
    for value in (*graph.value_info, *graph.output, *graph.input):
        if value.type.tensor_type.elem_type:
            kinds[value.name] = value.type.tensor_type.elem_type
    kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    nodes: list[Any] = []
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    _in_graph(inner, version, kinds)
        if is_onnx(node) and onnx.defs.has(node.op_type, version):
            schema = onnx.defs.get_schema(node.op_type, version)
            _learn(node, schema, kinds)
            nodes += _cast(node, schema, kinds)
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _cast(node: Any, schema: Any, kinds: dict[str, int]) -> list[Any]:
    """`node` between the casts that its types need."""
    from onnx import TensorProto, helper

    before: list[Any] = []
    after: list[Any] = []
    for variable, kind in _bound(node, schema, kinds).items():
        allowed = _allowed(schema, variable)
        name = TensorProto.DataType.Name(kind)
        wide = next((one for one in _WIDER.get(name, ()) if one in allowed), None)
        if name in allowed or wide is None:
            continue
        number = TensorProto.DataType.Value(wide)
        for index, operand in enumerate(node.input):
            if operand and _variable(schema.inputs, index) == variable and kinds.get(operand) == kind:
                own = f"{node.output[0]}.{index}.wide"
                before.append(helper.make_node("Cast", [operand], [own], f"{own}.cast", to=number))
                node.input[index], kinds[own] = own, number
        for index, result in enumerate(node.output):
            if result and _variable(schema.outputs, index) == variable:
                own = f"{result}.wide"
                after.append(helper.make_node("Cast", [own], [result], f"{result}.cast", to=kind))
                node.output[index], kinds[own], kinds[result] = own, number, kind
    return [*before, node, *after]


def _learn(node: Any, schema: Any, kinds: dict[str, int]) -> None:
    """Record the types of results that follow from those of the operands, or that `node` names."""
    from onnx import TensorProto

    named = {attribute.name: attribute for attribute in node.attribute}
    bound = _bound(node, schema, kinds)
    bodies = [attribute.g for attribute in node.attribute if attribute.g.output]
    of_body = {}
    if bodies:  # of an If, a Loop, whose body has a condition as its first result, or a Scan
        of_body = {
            result: value.type.tensor_type.elem_type
            for result, value in zip(reversed(node.output), reversed(bodies[0].output), strict=False)
        }
    for index, result in enumerate(node.output):
        variable = _variable(schema.outputs, index)
        if of_body.get(result):
            kinds[result] = of_body[result]
        elif node.op_type == "Cast":
            kinds[result] = named["to"].i
        elif node.op_type == "Constant" and "value" in named:
            kinds[result] = named["value"].t.data_type
        elif variable in bound:
            kinds[result] = bound[variable]
        elif variable.startswith("tensor("):
            kinds[result] = TensorProto.DataType.Value(_name_of(variable))


def _bound(node: Any, schema: Any, kinds: Mapping[str, int]) -> dict[str, int]:
    """The element type of each type variable of `schema`, by the first operand of that variable."""
    bound: dict[str, int] = {}
    for index, operand in enumerate(node.input):
        if operand in kinds and (variable := _variable(schema.inputs, index)):
            bound.setdefault(variable, kinds[operand])
    return bound


def _variable(formals: Any, index: int) -> str:
    """The type variable of an operand or a result; empty for one that the schema does not have."""
    return formals[min(index, len(formals) - 1)].type_str if formals else ""


@functools.cache
def _constraints(name: str, version: int) -> Mapping[str, frozenset[str]]:
    """By type variable of version `version` of an operator, the names of its element types."""
    import onnx

    schema = onnx.defs.get_schema(name, version)
    return {item.type_param_str: _names(item.allowed_type_strs) for item in schema.type_constraints}


def _allowed(schema: Any, variable: str) -> frozenset[str]:
    own = _constraints(schema.name, schema.since_version).get(variable)
    return _names([variable]) if own is None else own


def _names(texts: Iterable[str]) -> frozenset[str]:
    """Names of element types by ONNX's texts, without those of sequences."""
    return frozenset(_name_of(text) for text in texts if text.startswith("tensor("))


def _name_of(text: str) -> str:
    """tensor(int8) → INT8."""
    return text.removeprefix("tensor(").removesuffix(")").upper()
