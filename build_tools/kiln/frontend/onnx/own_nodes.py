"""Nodes of the user's own operators (kiln.operators) in an ONNX graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, numpy_helper
from tvm.relax.frontend.onnx import onnx_frontend

from kiln.extents import Extent
from kiln.frontend.onnx import control, ops, sequences
from kiln.frontend.onnx.attributes import with_nested_graphs
from kiln.frontend.onnx.expansions import expansion_of
from kiln.frontend.symbols import Symbols
from kiln.onnx_domains import domain_name, domain_of
from kiln.operators.convert import OwnNode
from kiln.operators.registry import DOMAIN, LoadedOperator, by_key

# Operators that the importer itself converts.
EVALUATED = {*control.KINDS, *sequences.KINDS, "Constant", "Shape", "Size"}
# Operators of com.microsoft that TVM's table has as if they were ONNX's.
_OF_ANOTHER_DOMAIN = {"Attention"}


def has_converter(domain: str, op_type: str) -> bool:
    """Whether Kiln or TVM has a converter for an operator; TVM's table has no domains."""
    if expansion_of(domain, op_type) is not None:
        return True
    if domain_name(domain):
        return False
    if op_type in EVALUATED or op_type in ops.OVERRIDES:
        return True
    return op_type in onnx_frontend._get_convert_map() and op_type not in _OF_ANOTHER_DOMAIN


def is_own(node: onnx.NodeProto) -> bool:
    """Whether the node is one of the user's operators, after `adopt_own`."""
    return f"{node.domain}.".startswith(f"{DOMAIN}.")


def own_operators() -> Mapping[tuple[str, str], LoadedOperator]:
    """The user's operators by the domain and name that their nodes have after `adopt_own`."""
    return {(_own_domain(domain), name): loaded for (domain, name), loaded in by_key().items()}


def _own_domain(domain: str) -> str:
    return f"{DOMAIN}.{domain}" if domain else DOMAIN


def adopt_own(path: Path, model: onnx.ModelProto) -> None:
    """Move nodes of the user's operators to a domain of their own, in place.

    No library knows that domain, so none converts or folds such nodes. Raises KilnError for a file that
    declares no operator, and for an operator that Kiln has, too, unless it is declared with replaces=True.
    """
    operators = by_key()
    if not operators:
        return
    domains: set[str] = set()
    bodies = [model.graph, *model.functions]
    for graph in (inner for body in bodies for inner in with_nested_graphs(path, body)):
        for node in graph.node:
            key = domain_of(node), node.op_type
            if key not in operators:
                continue
            loaded = operators[key]
            if has_converter(*key) and not loaded.operator.replaces:
                raise loaded.error(
                    f"Kiln has an operator '{node.op_type}' of {f'domain {key[0]}' if key[0] else 'ONNX'}: "
                    "set replaces=True to use this one in its place, or give it a domain of its own"
                )
            node.domain = _own_domain(key[0])
            domains.add(node.domain)
    for domain in sorted(domains):
        for owner in (model, *model.functions):
            owner.opset_import.append(helper.make_opsetid(domain, 1))


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of a node; tensors as NumPy arrays in lists."""
    values = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            value = numpy_helper.to_array(value).reshape(-1).tolist()
        values[attribute.name] = (
            list(value) if isinstance(value, (list, tuple)) or hasattr(value, "extend") else value
        )
    return values


def convert_own(
    node: onnx.NodeProto, loaded: LoadedOperator, inputs: list[Any], builder: Any, symbols: Symbols
) -> list[Any]:
    """The results of `node` as Relax expressions. Raises KilnError that names the user's file."""

    def simplified(size: Extent) -> Extent:
        simple = symbols.simplify(size)
        return int(simple) if hasattr(simple, "value") else simple

    def greatest(size: Extent) -> int | None:
        return symbols.greatest([size])

    converter = OwnNode(loaded, builder, simplified, greatest)
    return converter.convert(inputs, attributes_of(node), len(node.output))
