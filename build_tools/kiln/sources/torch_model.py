"""Configurations of PyTorch models, completed by the sizes that their archives declare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kiln.config.dims import Dim
from kiln.config.model import Model, Tensor
from kiln.config.sizes import SizeExpr
from kiln.errors import KilnError
from kiln.sources import torch_dims as dims
from kiln.sources.torch_archive import read_archive

Shapes = dict[str, list[SizeExpr]]  # by input of the whole program, a size or an expression of dims per axis


def with_sizes(model: Model, archive: Path, called: Path) -> tuple[Model, Shapes]:
    """The model with the dimensions of its archive, and the shapes of the archive's inputs.

    Adds to `dims` and `inputs` the dimensions and shapes that the configuration does not state. With the key
    `cut`, the part may lack an input: then `inputs` gets no shapes, which are written into the graph that is
    cut instead. `called`: how errors call the archive. Raises KilnError for a file that is no archive, and
    for sizes that the export does not allow.
    """
    try:
        content = read_archive(archive)
        shapes_set = {name: tensor.shape for name, tensor in model.inputs.items() if tensor.shape is not None}
        if model.cut is not None:  # other names are tensors inside of the program
            shapes_set = {name: shape for name, shape in shapes_set.items() if name in content.inputs}
        ranges = {name: (dim.min, dim.max, dim.multiple) for name, dim in model.dims.items()}
        shapes, missing = dims.fill(called, content, shapes_set, ranges)
    except KilnError as error:
        raise KilnError(str(error).replace(str(archive), str(called))) from None
    added = {
        name: Dim(min=least, max=greatest, multiple=step) for name, (least, greatest, step) in missing.items()
    }
    update = {"dims": {**model.dims, **added}}
    if model.cut is not None:
        return without_shapes(model.model_copy(update=update), shapes), shapes
    inputs = {name: _with_shape(model.inputs.get(name), shape) for name, shape in shapes.items()}
    return model.model_copy(update={**update, "inputs": {**model.inputs, **inputs}}), shapes


def without_shapes(model: Model, names: Sequence[str] | Shapes) -> Model:
    """The model without the shapes of the inputs `names`, for a graph that declares them itself."""
    inputs = {}
    for name, tensor in model.inputs.items():
        others = tensor.model_fields_set - {"shape"}
        if name not in names:
            inputs[name] = tensor
        elif others:
            inputs[name] = Tensor(**tensor.model_dump(include=others))
    return model.model_copy(update={"inputs": inputs})


def _with_shape(tensor: Tensor | None, shape: list[SizeExpr]) -> Tensor:
    return (tensor or Tensor()).model_copy(update={"shape": shape})
