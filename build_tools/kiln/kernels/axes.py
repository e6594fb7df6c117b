"""Layouts of tensors whose functions exist already: the order of their axes, and axes in two parts.

A layout is said relative to the one that the function was made for: each part is (axis, size), where size is
0 for the whole axis, or for what is left of it when a part of `size` lies elsewhere. (n, h, w, c) stored as
NCHW4c is ((0, 0), (3, 0), (1, 0), (2, 0), (3, 4)).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import tirx

Array = npt.NDArray[Any]
Sizes = Sequence[Any]
_PART = re.compile(r"([A-Z])|([1-9]\d*)([a-z])")


@dataclass(frozen=True)
class Layout:
    """See the module's docstring. Every axis has one part of size 0, and at most one of another size."""

    parts: tuple[tuple[int, int], ...]

    @classmethod
    def same(cls, rank: int) -> Layout:
        """The layout that a tensor has already."""
        return cls(tuple((axis, 0) for axis in range(rank)))

    @classmethod
    def parse(cls, had: str, wanted: str, sizes: Sizes) -> Layout | None:
        """The layout that turns `had` (plain letters) into `wanted`; None where that cannot be."""
        if not had.isupper() or _PART.sub("", wanted) or len(had) != len(sizes):
            return None
        parts = []
        for whole, size, part in _PART.findall(wanted):
            letter = whole or part.upper()
            if letter not in had:
                return None
            parts.append((had.index(letter), int(size or 0)))
        wholes = sorted(axis for axis, size in parts if not size)
        split = {axis: size for axis, size in parts if size}
        if wholes != list(range(len(had))) or len(parts) != len(had) + len(split):
            return None
        if any(not _divides(size, sizes[axis]) for axis, size in split.items()):
            return None
        return cls(tuple(parts))

    @property
    def rank(self) -> int:
        """The number of axes before the change."""
        return sum(1 for _, size in self.parts if not size)

    @property
    def is_same(self) -> bool:
        return self == Layout.same(len(self.parts))

    @property
    def split(self) -> Mapping[int, int]:
        """The size of the inner part of each axis that has two."""
        return {axis: size for axis, size in self.parts if size}

    def at(self, axis: int) -> int:
        """Where an axis, or what is left of it, has gone."""
        return self.parts.index((axis % self.rank, 0))

    def places(self, axis: int) -> list[int]:
        """Where all parts of an axis have gone, the outer one first."""
        inner = self.split.get(axis % self.rank)
        return [self.at(axis)] + ([] if inner is None else [self.parts.index((axis % self.rank, inner))])

    def shape(self, sizes: Sizes) -> list[Any]:
        """The sizes in this layout."""
        split = self.split
        return [size or _divided(sizes[axis], split.get(axis, 1)) for axis, size in self.parts]

    def forward(self, indices: Sizes) -> list[Any]:
        """The indices in this layout of an element that had `indices`."""
        split = self.split
        found = []
        for axis, size in self.parts:
            index, inner = indices[axis], split.get(axis)
            if inner is not None:
                index = tirx.floormod(index, inner) if size else tirx.floordiv(index, inner)
            found.append(index)
        return found

    def backward(self, indices: Sizes) -> list[Any]:
        """The indices that an element had which is now at `indices`."""
        found: list[Any] = []
        for axis in range(self.rank):
            outer, *inner = (indices[place] for place in self.places(axis))
            found.append(outer * self.split[axis] + inner[0] if inner else outer)
        return found

    def name(self, had: str) -> str:
        """Letters for the parts, where the axes had these: NHWC → NCHW4c."""
        return "".join(f"{size}{had[axis].lower()}" if size else had[axis] for axis, size in self.parts)

    def without(self, axes: Sequence[int]) -> Layout:
        """The layout of a tensor that does not have some of the axes."""
        gone = {axis % self.rank for axis in axes}
        left = [axis for axis in range(self.rank) if axis not in gone]
        return Layout(tuple((left.index(axis), size) for axis, size in self.parts if axis in left))

    def apply(self, value: Array) -> Array:
        """A tensor's value in this layout, for what is known at build time."""
        shape: list[int] = []
        begins = []
        for axis, size in enumerate(value.shape):
            begins.append(len(shape))
            inner = self.split.get(axis)
            shape += [size] if inner is None else [size // inner, inner]
        order = [begins[axis] + (1 if size else 0) for axis, size in self.parts]
        return np.ascontiguousarray(value.reshape(shape).transpose(order))


def _number(size: Any) -> int | None:
    return int(size) if isinstance(size, int | tirx.IntImm) else None


def _divides(part: int, size: Any) -> bool:
    known = _number(size)
    return known is not None and known % part == 0


def _divided(size: Any, part: int) -> Any:
    known = _number(size)
    return size if known is None else known // part
