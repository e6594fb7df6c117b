"""The file of a node test, and the options of its import: sizes and bounds that a user would give."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import onnx
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions

from .cases import CONSTANTS, DATA, Case

# Operators with sizes that follow from no other: as data, they need a bound.
_BOUNDED = (
    "CenterCropPad", "ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Reshape", "Resize", "Tile",
    "Upsample",
)  # fmt: skip

_MOST_BOUNDS = 12
_ASKED = re.compile(r"'bounds: \{(.+?): N[,}]")


def load_node(case: Case, folder: Path) -> tuple[Path, ImportOptions]:
    """Write the file of a node test; returns its path and the options of the import."""
    path, bounds = folder / "m.onnx", _bounds(case)
    onnx.save(case.model, path)
    options = ImportOptions("m", shapes=_shapes(case), bounds=bounds)
    if bounds or not case.inputs or not case.name.endswith((f"/{DATA}", f"/{CONSTANTS}")):
        return path, options
    # Sizes inside of a body: as its user would, give the bounds that the errors ask for.
    most = 4 * max((max(value.shape, default=1) for value in case.outputs if value is not None), default=1)
    for _ in range(_MOST_BOUNDS):
        try:
            import_model(path, options)
        except KilnError as error:
            bound = asked_bound(error)
            if bound is None:
                return path, options
            options = replace(options, bounds={**options.bounds, bound: most})
        else:
            break
    return path, options


def asked_bound(error: KilnError) -> str | None:
    """The tensor for which an error asks its user for a bound; None if it asks for none."""
    match = _ASKED.search(str(error))
    return match[1].partition("[")[0] if match else None


def _shapes(case: Case) -> dict[str, tuple[int | str, ...]]:
    """The shapes of the inputs whose sizes the file leaves open."""
    weights = {tensor.name for tensor in case.model.graph.initializer}
    inputs = [value for value in case.model.graph.input if value.name not in weights]
    shapes: dict[str, tuple[int | str, ...]] = {}
    for value, array in zip(inputs, case.inputs, strict=True):
        tensor = value.type.tensor_type
        fixed = tensor.HasField("shape") and all(dim.dim_value > 0 for dim in tensor.shape.dim)
        if array is not None and not fixed:
            shapes[value.name] = tuple(array.shape)
    return shapes


def _bounds(case: Case) -> dict[str, int]:
    """The bound of a size that is data, which its user has to give: the greatest of the expected sizes."""
    (node, *other_nodes), wanted = case.model.graph.node, case.outputs[0]
    if other_nodes or node.op_type not in _BOUNDED or wanted is None or not wanted.ndim:
        return {}
    if (not case.name.endswith(f"/{DATA}") and node.op_type != "Range") or not case.inputs:
        return {}
    return {node.output[0]: max(*wanted.shape, 1)}
