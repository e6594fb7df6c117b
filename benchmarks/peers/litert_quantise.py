"""A SavedModel to an int8 .tflite file: `litert_quantise.py FOLDER SAMPLES.npz OUT`, with onnx2tf's Python.

TensorFlow's post-training quantisation with its defaults: int8 weights for each channel, int8 activations,
and floats where there is no integer kernel. Inputs and outputs keep their types.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def main(folder: str, samples: str, out: str) -> None:
    """Calibrate with each sample of the file, whose images are NCHW and become NHWC."""
    tensorflow: Any = importlib.import_module("tensorflow")  # not of this project's environment
    inputs = tensorflow.saved_model.load(folder).signatures["serving_default"].structured_input_signature[1]
    arrays = np.load(samples)
    count = len(next(iter(arrays.values())))

    def representative() -> Iterator[dict[str, np.ndarray]]:
        for number in range(count):
            given = {}
            for name, spec in inputs.items():
                value = arrays[name][number]
                if list(value.shape) != list(spec.shape):
                    value = np.moveaxis(value, 1, -1)
                given[name] = np.ascontiguousarray(value, spec.dtype.as_numpy_dtype)
            yield given

    converter = tensorflow.lite.TFLiteConverter.from_saved_model(folder)
    converter.optimizations = [tensorflow.lite.Optimize.DEFAULT]
    converter.representative_dataset = representative
    Path(out).write_bytes(converter.convert())


if __name__ == "__main__":
    main(*sys.argv[1:])
