"""Shapes that an ONNX file declares for its inputs."""

from __future__ import annotations

import re

import onnx

from kiln.config.sizes import SizeExpr, names, parse


def declared_shape(value: onnx.ValueInfoProto) -> tuple[SizeExpr | None, ...] | None:
    """The shape in the file: a size, an expression of symbols or None per axis; None for an unknown rank."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    # Exporters write a dynamic size as a name, "?", a missing value, 0 or -1.
    return tuple(
        dim.dim_value if dim.dim_value > 0 else _size_expression(dim.dim_param) for dim in tensor.shape.dim
    )


def _size_expression(text: str) -> SizeExpr | None:
    """The size expression in a dimension's name, such as `past + 1`; None for no expression, such as "?"."""
    try:
        expression = parse(text)
    except ValueError:
        return text if re.fullmatch(r"[\w .:/-]{1,60}", text) and re.search("[A-Za-z]", text) else None
    return expression if names(expression) else None
