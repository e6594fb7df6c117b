"""Conditions under which a special function runs: on sizes of dimensions, and on the content of inputs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from kiln.arrays import Array


@dataclass(frozen=True)
class Equals:
    """Condition: the size of dimension `dim` is `value`."""

    dim: str
    value: int

    @property
    def label(self) -> str:
        """The condition as part of an identifier."""
        return f"{self.dim}_{self.value}"

    def holds(self, size: Array) -> Array:
        """Whether each element of `size` meets the condition."""
        return np.asarray(size == self.value)


@dataclass(frozen=True)
class InRange:
    """Condition: least <= size of dimension `dim` <= greatest."""

    dim: str
    least: int
    greatest: int

    @property
    def label(self) -> str:
        return f"{self.dim}_{self.least}_to_{self.greatest}"

    def holds(self, size: Array) -> Array:
        return np.asarray((size >= self.least) & (size <= self.greatest))


@dataclass(frozen=True)
class MultipleOf:
    """Condition: the size of dimension `dim` is a multiple of `factor`."""

    dim: str
    factor: int

    @property
    def label(self) -> str:
        return f"{self.dim}_multiple_of_{self.factor}"

    def holds(self, size: Array) -> Array:
        return np.asarray(size % self.factor == 0)


@dataclass(frozen=True)
class InputIs:
    """Condition: an input is all zeros, all ones, or equal to `tensor` (constructor: `input_is`)."""

    input: str
    value: str  # zeros, ones, or the digest of `tensor`
    tensor: Array | None = field(default=None, compare=False, repr=False)

    @property
    def label(self) -> str:
        return re.sub(r"\W+", "_", f"{self.input}_{self.value[:8]}")


@dataclass(frozen=True)
class AllOf:
    """Condition: all of `parts` hold."""

    parts: tuple[Condition, ...]


OnSize = Equals | InRange | MultipleOf
Atom = OnSize | InputIs
Condition = Atom | AllOf

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Equals, InRange, MultipleOf, InputIs)}


def input_is(name: str, value: Literal["zeros", "ones"] | Array) -> InputIs:
    """The condition that the input `name` is all zeros, all ones, or equal to a tensor."""
    if isinstance(value, str):
        return InputIs(name, value)
    key = f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    return InputIs(name, hashlib.sha256(key).hexdigest(), value)


def atoms(condition: Condition) -> tuple[Atom, ...]:
    """Flatten nested `AllOf` conditions into atomic ones, without duplicates, in order."""
    if not isinstance(condition, AllOf):
        return (condition,)
    return tuple(dict.fromkeys(atom for part in condition.parts for atom in atoms(part)))


def label(parts: tuple[Atom, ...]) -> str:
    """An identifier for the function specialised to the conditions `parts`."""
    return "_and_".join(atom.label for atom in parts)


def to_json(parts: tuple[Atom, ...]) -> list[dict[str, Any]]:
    """Conditions as JSON data; a tensor is represented by its digest alone."""
    entries = []
    for atom in parts:
        entry = {"kind": type(atom).__name__, **(asdict(atom) if not isinstance(atom, InputIs) else {})}
        if isinstance(atom, InputIs):
            entry |= {"input": atom.input, "value": atom.value}
        entries.append(entry)
    return entries


def from_json(entries: list[dict[str, Any]], tensors: Mapping[str, Array]) -> tuple[Atom, ...]:
    """Inverse of `to_json`; `tensors`: the tensors of the conditions, by digest."""
    conditions = []
    for entry in entries:
        values = {key: value for key, value in entry.items() if key != "kind"}
        if entry["kind"] == "InputIs" and entry["value"] in tensors:
            values["tensor"] = tensors[entry["value"]]
        conditions.append(_KINDS[entry["kind"]](**values))
    return tuple(conditions)
