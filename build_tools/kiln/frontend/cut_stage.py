"""cut: stage that takes a part of a model's file: of an ONNX graph, or one signature of a TFLite file."""

from __future__ import annotations

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
        if args.source.suffix == ".tflite":
            read_tflite(args.source)
            content = with_signature(args.source, args.source.read_bytes(), cut_key["signature"])
        else:
            model = cut(args.source, read_onnx(args.source, ports=False), cut_key)
            content = model.SerializeToString(deterministic=True)
    except KilnError as error:
        raise KilnError(str(error).replace(str(args.source), args.called or str(args.source))) from error
    atomic_write(args.out, content)
