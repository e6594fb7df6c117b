"""One operator at a time, in Relax and in numpy, and the test that both compute the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .lowered import Array, Compiled, close, module, runnable


@dataclass(frozen=True)
class Case:
    """An operator on inputs of `shapes`, in Relax and in numpy; `exact`: no rounding may differ."""

    shapes: tuple[tuple[int, ...], ...]
    make: Callable[..., Any]
    compute: Callable[..., Array]
    exact: bool = False
    dtype: str = "float32"


def one(shape: tuple[int, ...], make: Any, compute: Any, exact: bool = False, dtype: str = "float32") -> Case:
    return Case((shape,), make, compute, exact, dtype)


def agree(case: Case, folder: Path) -> None:
    """Fail unless the operator's kernels compute the same as numpy."""
    rng = np.random.default_rng(12)
    inputs = [_input(shape, case.dtype, rng) for shape in case.shapes]
    mod = module([(value.shape, case.dtype) for value in inputs], case.make)
    result = Compiled(mod, runnable("x86_64"), folder).load().run(inputs)[0]
    want = case.compute(*inputs)
    assert result.shape == want.shape
    if case.exact:
        assert (result == want).all()
    else:
        close(result, want, 2e-6)


def _input(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if np.dtype(dtype).kind == "f":
        return rng.uniform(-3, 3, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(max(limits.min, -(2**20)), min(limits.max, 2**20), shape).astype(dtype)
