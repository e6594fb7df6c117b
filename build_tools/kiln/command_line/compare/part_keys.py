"""The keys of a model's YAML file that apply to a part of its graph as well."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import onnx

from kiln.config import Model, sizes
from kiln.config.dims import key_of
from kiln.files import write_json
from kiln.frontend.onnx.declared_shapes import declared_shape

# Keys that do not name tensors of the model.
_KEPT = ("weights", "checks", "winograd", "quantised", "precision", "threads", "variants", "byoc")
_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16}
_OF_DIM = ("min", "max", "multiple")


def keys_of_part(model: Model, part: onnx.ModelProto, left_out: Collection[str] = ()) -> dict[str, Any]:
    """The keys of `model` for a model of the nodes in `part`: its settings, and ranges of its own sizes.

    Buckets, state and special cases are those of the whole model. `left_out`: settings that the part does
    not get.
    """
    content = model.model_dump(mode="json", exclude_unset=True)
    keys = {key: content[key] for key in _KEPT if key in content and key not in left_out}
    limits = _limits_of(part, content.get("tolerance", {}))
    if limits:
        keys["tolerance"] = limits
    shapes = [declared_shape(value) or () for value in part.graph.input]
    named = {name for shape in shapes for axis in shape if axis is not None for name in sizes.names(axis)}
    used = named | {key_of(name) for name in named}
    dims = {name: dim for name, dim in content.get("dims", {}).items() if name in used}
    if dims:
        keys["dims"] = {name: {key: dim[key] for key in _OF_DIM if key in dim} for name, dim in dims.items()}
    tensors = {name for node in part.graph.node for name in node.output}
    bounds = {key: most for key, most in content.get("bounds", {}).items() if key.split("[")[0] in tensors}
    if bounds:
        keys["bounds"] = bounds
    return keys


def _limits_of(part: onnx.ModelProto, tolerance: Mapping[str, Any]) -> dict[str, Any]:
    """The limits in `tolerance` for the types of the outputs of `part`, without those of single outputs."""
    types = {value.type.tensor_type.elem_type for value in part.graph.output}
    unread = {"outputs"}
    if types <= _FLOATS:
        unread |= {"levels"}
    elif types.isdisjoint(_FLOATS):
        unread |= {"absolute", "relative"}
    return {key: value for key, value in tolerance.items() if key not in unread}


def write_keys(keys: dict[str, Any], part: Path) -> Path:
    """The file to build for `part`: a YAML file with `keys` next to it, or without keys the part itself.

    JSON is YAML.
    """
    if not keys:
        return part
    described = part.with_suffix(".yaml")
    write_json(described, {"source": {"kind": "file", "path": part.name}, **keys})
    return described
