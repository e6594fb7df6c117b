"""Inputs of a TFLite file whose sizes are open: what to do where those that it has instead do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kiln.frontend.tflite.files import tensor_name
from kiln.frontend.tflite.ops import ShapeError


def asking_for_sizes(graph: Any, convert: Callable[[], Any]) -> Any:
    """The result of `convert`; its ShapeError also names the inputs of `graph` whose sizes are open."""
    try:
        return convert()
    except ShapeError as error:
        tensors = [graph.Tensors(index) for index in graph.InputsAsNumpy()]
        open_inputs = [
            tensor_name(tensor)
            for tensor in tensors
            if np.any(np.asarray(tensor.ShapeSignatureAsNumpy()) < 0)
        ]
        if not open_inputs:
            raise
        raise ShapeError(
            f"{error}; the file leaves sizes of '{', '.join(open_inputs)}' open, and LiteRT cannot compute "
            "with those that it has instead: give others with 'inputs' in a YAML file"
        ) from error
