"""Statistics of each channel of chosen tensors of a float model, on calibration data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from kiln.arrays import Array
from kiln.frontend.onnx.plain_session import plain_session


@dataclass
class Channels:
    """Least and greatest value, sum, sum of squares of each channel of a tensor, of `count` elements each."""

    low: Array
    high: Array
    total: Array
    squares: Array
    count: int = 0

    def add(self, value: Array, axis: int) -> None:
        """Include a tensor with its channels on `axis`; one without elements adds nothing."""
        if not value.size:
            return
        flat = np.moveaxis(value, axis, 0).reshape(value.shape[axis], -1).astype(np.float64)
        self.low = np.minimum(self.low, flat.min(1))
        self.high = np.maximum(self.high, flat.max(1))
        self.total = self.total + flat.sum(1)
        self.squares = self.squares + np.square(flat).sum(1)
        self.count += flat.shape[1]

    @property
    def mean(self) -> Array:
        """Mean of each channel."""
        mean: Array = self.total / max(self.count, 1)
        return mean

    @property
    def power(self) -> Array:
        """Mean square of each channel."""
        power: Array = self.squares / max(self.count, 1)
        return power


def channel_statistics(
    model: onnx.ModelProto, axes: Mapping[str, int], runs: Sequence[Mapping[str, Array]], path: Path
) -> dict[str, Channels]:
    """Statistics of the tensors `axes` (name: channel axis) of `model` over `runs`.

    The model is saved to `path` on the way. A tensor that is already an output of the model is read there.
    """
    if not axes:
        return {}
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    outputs = {value.name for value in extended.graph.output}
    extended.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in axes
        if name not in outputs
    )
    onnx.save(extended, str(path))
    session = plain_session(str(path))
    statistics: dict[str, Channels] = {}
    for run in runs:
        for name, value in zip(axes, session.run(list(axes), dict(run)), strict=True):
            if name not in statistics:
                size = value.shape[axes[name]]
                statistics[name] = Channels(
                    np.full(size, np.inf), np.full(size, -np.inf), np.zeros(size), np.zeros(size)
                )
            statistics[name].add(value, axes[name])
    return statistics
