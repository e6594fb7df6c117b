"""Attributes that a node leaves out have the values that the schemas of ONNX and ONNX Runtime give them."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import pytest
from kiln.frontend.onnx.expansions import EXPANSIONS
from kiln.frontend.onnx.ops import OVERRIDES as CONVERTERS
from onnxruntime.capi import onnxruntime_pybind11_state as runtime


def _defaults_of_schemas() -> dict[tuple[str, str, str], Any]:
    """The default of each attribute that has one, by domain, operator and attribute."""
    attributes = [
        (schema.domain, schema.name, name, onnx.AttributeProto.FromString(attribute._default_value))
        for schema in runtime.get_all_operator_schema()
        for name, attribute in schema.attributes.items()
    ]
    attributes += [
        (schema.domain, schema.name, name, attribute.default_value)
        for schema in onnx.defs.get_all_schemas()
        for name, attribute in schema.attributes.items()
    ]
    return {
        (domain, operator, name): onnx.helper.get_attribute_value(default)
        for domain, operator, name, default in attributes
        if default.type
    }


def _defaults_of_code(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Name and default of each attribute that `function` reads by body.attribute or node.attributes.get."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        return
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("attribute", "get")
            and len(node.args) == 2
            and isinstance(node.args[0], ast.Constant)
        ):
            try:
                yield str(node.args[0].value), ast.literal_eval(node.args[1])
            except ValueError:  # an expression
                continue


def test_defaults_are_those_of_the_schemas() -> None:
    schemas, compared = _defaults_of_schemas(), 0
    converters = EXPANSIONS | {("", name): converter for name, converter in CONVERTERS.items()}
    for (domain, operator), function in converters.items():
        for name, ours in _defaults_of_code(function):
            if (domain, operator, name) not in schemas:
                continue
            theirs = schemas[domain, operator, name]
            ours, theirs = (v.decode() if isinstance(v, bytes) else v for v in (ours, theirs))
            assert ours == (pytest.approx(theirs) if isinstance(theirs, float) else theirs), (operator, name)
            compared += 1
    assert compared > 70
