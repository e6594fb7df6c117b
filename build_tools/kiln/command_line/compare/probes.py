"""Copies of model files in which intermediate tensors are outputs too, so that a run returns them."""

from __future__ import annotations

from pathlib import Path

from kiln.command_line.compare.probe import Probe
from kiln.errors import KilnError


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
