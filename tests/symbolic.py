"""Small ONNX files with dynamic sizes, imported for a bucket, and running them with TVM's own kernels."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import tvm
from kiln.config.boxes import Box
from kiln.config.dims import Segment
from kiln.config.interface import Interface
from kiln.config.slice_records import ImportConfig
from kiln.frontend.importer import import_model
from kiln.frontend.options import from_config
from kiln.kernels.operators.added import legalize_added
from kiln.lower.branches import no_branches
from relaxed import virtual_machine

Array = npt.NDArray[Any]
HEADER = '<ir_version: 8, opset_import: ["" : {opset}]>\n'
# (least, greatest) or (least, greatest, multiple)
Dims = Mapping[str, tuple[int, ...]]


def write(path: Path, text: str, opset: int = 17, **weights: Any) -> Path:
    """An ONNX file from its textual form; `weights` become initialisers."""
    model = onnx.parser.parse_model(HEADER.format(opset=opset) + text)
    for name, value in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    onnx.save(model, path)
    return path


def configuration(dims: Dims, shapes: Mapping[str, Sequence[int | str]] | None = None) -> ImportConfig:
    """The slice of a model's YAML that the import reads."""
    ranges = {name: {"min": box[0], "max": box[1], "multiple": (*box, 1)[2]} for name, box in dims.items()}
    inputs = {name: {"shape": list(shape)} for name, shape in (shapes or {}).items()}
    return ImportConfig.model_validate({"name": "m", "dims": ranges, "inputs": inputs})


def dynamic(dims: Dims, **sizes: int) -> Box:
    """The bucket for all sizes of `dims`; a dimension in `sizes` is padded to the given size."""
    parts = {}
    for name, (least, greatest, *multiple) in dims.items():
        size = sizes.get(name)
        parts[name] = Segment(
            strategy="dynamic" if size is None else "pad",
            min=least,
            max=greatest if size is None else size,
            multiple=multiple[0] if multiple else 1,
            size=size,
        )
    return Box(name="b", dims=parts)


def imported(
    path: Path, dims: Dims, shapes: Mapping[str, Sequence[int | str]] | None = None, **sizes: int
) -> tuple[tvm.IRModule, Interface]:
    """The module and the interface of `path` for the bucket of all sizes."""
    return import_model(path, from_config(configuration(dims, shapes), dynamic(dims, **sizes)))


def runner(mod: tvm.IRModule) -> Callable[[Sequence[Array], Mapping[str, int]], list[Array]]:
    """Compile with TVM's default pipeline: a function of the inputs and the sizes of the dimensions."""
    machine = virtual_machine(legalize_added(no_branches(mod)))
    dims = json.loads(str(mod["main"].attrs["kiln.dims"]))
    divided = [entry for entry in dims.values() if entry["divide"] > 1]

    def run(inputs: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        arguments: list[Any] = [tvm.runtime.tensor(np.asarray(value, order="C")) for value in inputs]
        if divided:
            parts = [sizes[entry["dim"]] // entry["divide"] for entry in divided]
            arguments.append(tvm.runtime.ShapeTuple(parts))
        result = machine["main"](*arguments)
        if isinstance(result, tvm.runtime.Tensor):
            return [result.numpy()]
        return [item.numpy() for item in result]

    return run
