"""Copies of model files in which intermediate tensors are outputs too, so that a run returns them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kiln.errors import KilnError


@dataclass(frozen=True)
class Probe:
    """An output of the copy: the tensor `tensor`, which the node `node` of kind `op` computes.

    `node` is the name in the source model, or its position where it has none. `inputs` are the tensors that
    the node reads, without constants.
    """

    node: str
    op: str
    tensor: str
    inputs: tuple[str, ...] = ()


def write_probed(source: Path, out: Path) -> list[Probe]:
    """Write a copy of the model `source` to `out` and return its outputs in the order of execution.

    Raises KilnError if the file is not a valid model.
    """
    suffix = source.suffix.lower()
    if suffix == ".onnx":
        from kiln.command_line.compare.onnx_probes import write
    elif suffix == ".tflite":
        from kiln.command_line.compare.tflite_probes import write
    else:
        raise KilnError(f"{source}: compare accepts .onnx and .tflite files")
    return write(source, out)
