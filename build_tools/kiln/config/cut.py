"""The key `cut` of a model: the part of its file that is built."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kiln.config.check import Section
from kiln.config.faults import PlacedError


class Cut(Section):
    """The part of a model's file that is built; golden vectors are made of that part."""

    elements: dict[str, int] = Field(
        default_factory=dict,
        description="by input or output that is a sequence or an optional value, the number of its tensors",
    )
    constants: dict[str, Any] = Field(
        default_factory=dict, description="by input, the number or list of numbers that it always is"
    )
    inputs: list[str] = Field(
        default_factory=list, description="inner tensors that become inputs: what computes them is left out"
    )
    outputs: dict[str, str] = Field(
        default_factory=dict,
        description="by name of an output, the tensor of the file that it is; empty: the file's outputs",
    )
    signature: str | None = Field(
        default=None, description="for TFLite files, the name of the signature whose graph is built"
    )

    def check_format(self, model_format: str) -> None:
        """Raise PlacedError for keys that files of the format `model_format` do not have."""
        if model_format != "tflite":
            if self.signature is not None:
                raise PlacedError(("cut", "signature"), "for TFLite files only")
            return
        for key in ("elements", "constants", "inputs", "outputs"):
            if getattr(self, key):
                raise PlacedError(
                    ("cut", key),
                    "for ONNX files and PyTorch models only; of a TFLite file, choose a signature",
                )
        if self.signature is None:
            raise PlacedError(("cut",), "of a TFLite file, choose a signature: 'cut: {signature: NAME}'")
