"""The answers of a loaded model about its tensors, dimensions, runs and steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TensorInfo:
    """An input or output: a size in `shape` is a number, the name of a dimension, or an expression of names.

    real = scale * (stored - zero_point) if the tensor is quantised, otherwise `scale` is 0.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int | str, ...]
    scale: float
    zero_point: int


@dataclass(frozen=True)
class SizeRange:
    """Allowed sizes of a dynamic dimension: min, min + multiple, …, max."""

    min: int
    max: int
    multiple: int


@dataclass(frozen=True)
class RunPlan:
    """Bucket, number of steps, arena in bytes and shapes of the outputs of a run with given sizes."""

    bucket: str
    steps: int
    arena_bytes: int
    dims: dict[str, int]
    outputs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class StepTime:
    """Median time of one step over several runs, in nanoseconds, and the operators that the step computes."""

    step: int
    label: str
    nanoseconds: float
