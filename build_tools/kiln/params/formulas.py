"""Tensors that a short formula describes: code computes the elements instead of reading stored bytes.

Affine      start + sum of step * index over the axes: fills, ranges, grids of rows and columns
Repeated    constant along some axes: one element along these axes is enough

A formula gives exactly the stored elements, bit by bit, however the target rounds a product and a sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kiln.arrays import Array

ONCE = "once"  # suffix of the name of a tensor whose equal elements are stored once

_REACH = 1 << 31  # formulas are computed in int32


@dataclass(frozen=True)
class Affine:
    """Element [i, j, …] is start + steps[0] * i + steps[1] * j + …, in `dtype`."""

    dtype: str
    start: int | float
    steps: tuple[int | float, ...]

    @property
    def is_uniform(self) -> bool:
        """Whether all elements are `start`."""
        return not any(self.steps)


@dataclass(frozen=True)
class Repeated:
    """A tensor that is constant along some axes; `value` has one element along these axes."""

    value: Array

    @property
    def axes(self) -> tuple[int, ...]:
        """Axes along which `value` has one element: loads of the tensor read index 0 of these axes."""
        return tuple(axis for axis, size in enumerate(self.value.shape) if size == 1)


Formula = Affine | Repeated


def formula(value: Array) -> Formula | None:
    """The formula that gives `value` exactly; None where no formula of this module does."""
    if not value.size or not value.ndim:
        return None
    bits = np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}")
    varying = [bool((bits != bits.take([0], axis)).any()) for axis in range(value.ndim)]
    small = value[tuple(slice(None) if varies else slice(1) for varies in varying)]
    if not any(varying):
        return _uniform(value)
    affine = _integers(small) or _fractions(small)
    if affine is None and small.size < value.size:
        return Repeated(np.ascontiguousarray(small))
    return affine


def _uniform(value: Array) -> Affine | None:
    """The formula of equal elements; None for NaN and for integers of 2^31 or more in magnitude."""
    first, steps = value.reshape(-1)[0], (0,) * value.ndim
    dtype = str(value.dtype)
    if value.dtype.kind in "biu":
        return Affine(dtype, int(first), steps) if abs(int(first)) < _REACH else None
    number = float(first)
    return None if np.isnan(number) else Affine(dtype, number, steps)


def _integers(value: Array) -> Affine | None:
    """A formula with integer start and steps; the elements of `value` may be floats of integer value."""
    if value.dtype.kind not in "iu" and str(value.dtype) not in ("float32", "float64"):
        return None
    corner = (0,) * value.ndim
    ends = [
        value[corner],
        *(value[_unit(axis, value.ndim)] for axis in range(value.ndim) if value.shape[axis] > 1),
    ]
    if not all(np.isfinite(end) and end == np.rint(end) and abs(end) < _REACH for end in ends):
        return None
    start = int(value[corner])
    steps = tuple(
        int(value[_unit(axis, value.ndim)]) - start if size > 1 else 0
        for axis, size in enumerate(value.shape)
    )
    if abs(start) + sum(abs(step) * size for step, size in zip(steps, value.shape, strict=True)) >= _REACH:
        return None
    computed = np.full(value.shape, start, np.int64)
    for axis, (step, size) in enumerate(zip(steps, value.shape, strict=True)):
        computed += step * np.arange(size).reshape([-1 if at == axis else 1 for at in range(value.ndim)])
    return Affine(str(value.dtype), start, steps) if _same(computed.astype(value.dtype), value) else None


def _fractions(value: Array) -> Affine | None:
    """The formula of a range of float32 along one axis, such as 0, 0.1, 0.2, …"""
    long = [axis for axis, size in enumerate(value.shape) if size > 1]
    if str(value.dtype) != "float32" or len(long) != 1 or not np.isfinite(value).all():
        return None
    flat = value.reshape(-1)
    start, index = flat[0], np.arange(flat.size)
    if flat.size >= 1 << 24:  # larger indices are not exact in float32
        return None
    for step in {flat[1] - start, (flat[-1] - start) / np.float32(flat.size - 1)}:
        rounded_twice = index.astype(np.float32) * step + start
        # A product of two float32 is exact in float64: the result is that of a fused multiply-add.
        rounded_once = (index * np.float64(step) + np.float64(start)).astype(np.float32)
        if _same(rounded_twice, flat) and _same(rounded_once, flat):
            steps = tuple(float(step) if axis == long[0] else 0 for axis in range(value.ndim))
            return Affine("float32", float(start), steps)
    return None


def _unit(axis: int, count: int) -> tuple[int, ...]:
    """The index that is 1 on one axis and 0 on the others."""
    return tuple(int(at == axis) for at in range(count))


def _same(a: Array, b: Array) -> bool:
    """Whether two arrays have equal bytes."""
    return a.tobytes() == b.tobytes()
