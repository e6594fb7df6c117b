"""cut: stage that takes a part of a model's file: of an ONNX graph, or one signature of a TFLite file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.errors import KilnError
from kiln.files import atomic_write, read_json
from kiln.frontend.onnx.cut import cut
from kiln.frontend.onnx.model import read as read_onnx
from kiln.frontend.tflite.model import read as read_tflite
from kiln.frontend.tflite.signatures import with_signature
from kiln.stages.model import CutStage


def run(args: CutStage) -> None:
    """Write the part of --source that the key `cut` of the model describes. Raises KilnError as `cut`."""
    cut_key = read_json(args.config)["cut"]
    try:
        content = part_of(args.source, cut_key)
    except KilnError as error:
        raise KilnError(str(error).replace(str(args.source), args.called or str(args.source))) from error
    atomic_write(args.out, content)


def part_of(source: Path, section: Mapping[str, Any]) -> bytes:
    """The content of a file with a part of the ONNX or TFLite file `source`.

    `section`: the key `cut` of the model, which describes the part. Raises KilnError as `cut`.
    """
    if source.suffix.lower() == ".tflite":
        read_tflite(source)
        return with_signature(source, source.read_bytes(), section["signature"])
    model = cut(source, read_onnx(source, ports=False), section)
    content: bytes = model.SerializeToString(deterministic=True)
    return content
