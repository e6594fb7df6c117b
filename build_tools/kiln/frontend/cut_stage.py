"""cut: stage that takes a part of a model's file: of an ONNX graph, or one signature of a TFLite file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.config import sizes
from kiln.errors import KilnError
from kiln.files import atomic_write, read_json
from kiln.frontend.onnx.cut import cut
from kiln.frontend.onnx.declared_shapes import declared_shape
from kiln.frontend.onnx.model import read as read_onnx
from kiln.frontend.onnx.model import real_inputs
from kiln.frontend.onnx.size_names import name_sizes
from kiln.frontend.tflite.model import read as read_tflite
from kiln.frontend.tflite.signatures import with_signature
from kiln.stages.model import CutStage


def run(args: CutStage) -> None:
    """Write the part of --source that the key `cut` of the model describes. Raises KilnError as `cut`."""
    cut_key = read_json(args.config)["cut"]
    try:
        content = part_of(args.source, cut_key, json.loads(args.sizes))
    except KilnError as error:
        raise KilnError(str(error).replace(str(args.source), args.called or str(args.source))) from error
    atomic_write(args.out, content)


def part_of(source: Path, section: Mapping[str, Any], shapes: Mapping[str, Any] | None = None) -> bytes:
    """The content of a file with a part of the ONNX or TFLite file `source`.

    `section`: the key `cut` of the model, which describes the part. `shapes`: of an ONNX file that PyTorch
    has written, by input the sizes, dimensions or expressions that the shapes of all tensors get. Raises
    KilnError as `cut`, and where no input of the part has a dimension of `shapes`.
    """
    if source.suffix.lower() == ".tflite":
        read_tflite(source)
        return with_signature(source, source.read_bytes(), section["signature"])
    whole = read_onnx(source, ports=False)
    name_sizes(whole, shapes or {})
    model = cut(source, whole, section)
    _check_dimensions(source, model, shapes or {})
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def named(source: Path, shapes: Mapping[str, Any]) -> bytes:
    """The content of the ONNX file `source` with the sizes of `shapes` (see `part_of`) in all shapes."""
    model = read_onnx(source, ports=False)
    name_sizes(model, shapes)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _check_dimensions(source: Path, part: Any, shapes: Mapping[str, Any]) -> None:
    """Raise KilnError for a dimension of the whole program that no input of the part has."""
    axes = [axis for value in real_inputs(part) for axis in declared_shape(value) or () if axis is not None]
    used = {name for axis in axes for name in sizes.names(axis)}
    for name, shape in shapes.items():
        for axis, size in enumerate(shape):
            for dim in sorted(sizes.names(size) - used):
                raise KilnError(
                    f"{source}: cut: no input of the part has the dimension '{dim}', axis {axis} of input "
                    f"'{name}': give that axis one size, a number in 'inputs: {{{name}: {{shape: […]}}}}'"
                )
