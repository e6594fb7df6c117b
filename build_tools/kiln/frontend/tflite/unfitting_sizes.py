"""The error for a TFLite file whose dynamic inputs have sizes that do not fit together, with its remedy.

For an axis of dynamic size, a file also has a size with which it can be read: mostly 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kiln.frontend.tflite.files import tensor_name
from kiln.frontend.tflite.ops import ShapeError


def asking_for_sizes(graph: Any, convert: Callable[[], Any]) -> Any:
    """The result of `convert`; its ShapeError also names the inputs of `graph` with dynamic sizes."""
    try:
        return convert()
    except ShapeError as error:
        tensors = [graph.Tensors(index) for index in graph.InputsAsNumpy()]
        dynamic_inputs = [
            tensor_name(tensor)
            for tensor in tensors
            if np.any(np.asarray(tensor.ShapeSignatureAsNumpy()) < 0)
        ]
        if not dynamic_inputs:
            raise
        raise ShapeError(
            f"{error}; the file leaves sizes of '{', '.join(dynamic_inputs)}' open, and LiteRT cannot "
            "compute with those that it has instead: give others with 'inputs' in a YAML file"
        ) from error
