"""Draws one node: its operator set, attributes, and inputs as data or constants.

A node is a function of a seed and of the size of one axis. Its structure and its data come from two random
sequences, so that the same seed with another size gives the same node on other shapes: axes that follow the
size are the dynamic axes of a model with a dimension.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import defs

from ..onnx_nodes.cases import Array

OPSETS = (7, 24)  # the least and the greatest operator set that is drawn
SIZES = (1, 2, 3, 4, 5, 6)


@dataclass(frozen=True)
class Input:
    """An input of a node; constant: whether it is an initialiser of the file."""

    value: Array
    constant: bool


@dataclass(frozen=True)
class Step:
    """A node of a drawn graph, whose inputs are `x<number>` or results of earlier steps."""

    operator: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]


@dataclass
class Node:
    """A drawn node. outputs: how many; domain: of the operator; domain_opset: the version of that domain.

    steps: of a graph in place of one node, whose results are the tensors `results`. nodes: the same, as
    ONNX's nodes, which may call `functions` of the file.
    """

    operator: str
    inputs: list[Input | None]
    attributes: dict[str, Any]
    outputs: int
    opset: int
    domain: str = ""
    domain_opset: int = 1
    steps: list[Step] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    functions: list[onnx.FunctionProto] = field(default_factory=list)


@dataclass
class Draw:
    """The random choices of one node. open_size: another size for the axis drawn as number `open_at`."""

    operator: str
    seed: int
    open_at: int = -1
    open_size: int = 0
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        key = zlib.crc32(f"{self.operator}/{self.seed}".encode())
        self.rng = np.random.default_rng([key, 0])
        self._key, self._tensors = key, 0
        self.opset = self._opset()

    def _opset(self) -> int:
        """An operator set: first one of the operator's versions, then one that has this version."""
        try:
            versions = {
                defs.get_schema(self.operator, opset, "").since_version
                for opset in range(OPSETS[0], OPSETS[1] + 1)
                if defs.has(self.operator, opset, "")
            }
        except Exception:
            versions = set()
        if not versions:
            return int(self.rng.integers(11, 22))
        chosen = self.pick(sorted(versions))
        later = [version for version in versions if version > chosen]
        last = min(later) - 1 if later else OPSETS[1]
        return int(self.rng.integers(max(chosen, OPSETS[0]), last + 1))

    # Structure.
    def pick(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def chance(self, probability: float = 0.5) -> bool:
        return bool(self.rng.random() < probability)

    def number(self, least: int, most: int) -> int:
        return int(self.rng.integers(least, most + 1))

    def real(self, least: float, most: float) -> float:
        return float(np.float32(self.rng.uniform(least, most)))

    def size(self, least: int = 1, most: int = 6) -> int:
        """A size of an axis; the dynamic one has the size that the case is drawn for."""
        drawn = self.number(least, most)
        at = len(self.sizes)
        self.sizes.append(drawn)
        return self.open_size if at == self.open_at else drawn

    def shape(
        self, least_rank: int = 0, most_rank: int = 5, least: int = 1, most: int = 5
    ) -> tuple[int, ...]:
        return tuple(self.size(least, most) for _ in range(self.number(least_rank, most_rank)))

    def axis(self, rank: int) -> int:
        """An axis of a tensor, often counted from the end."""
        return self.number(-rank, rank - 1)

    def axes(self, rank: int, least: int = 0) -> list[int]:
        """Different axes in any order, some counted from the end."""
        count = self.number(min(least, rank), rank)
        chosen = self.rng.permutation(rank)[:count]
        return [int(axis) - (rank if self.chance(0.4) else 0) for axis in chosen]

    def some(self, **attributes: Any) -> dict[str, Any]:
        """Each attribute with a chance of two thirds; a value may be a function without arguments."""
        chosen = {}
        for name, value in attributes.items():
            drawn = value() if callable(value) else value
            if self.chance(0.67) and drawn is not None:
                chosen[name] = drawn
        return chosen

    # Data.
    def _noise(self) -> np.random.Generator:
        """A sequence for the next tensor, which does not depend on the sizes of those before."""
        self._tensors += 1
        return np.random.default_rng([self._key, self._tensors])

    def values(self, shape: Sequence[int], dtype: str = "float32", scale: float = 2.0) -> Array:
        """Random numbers: normal ones, whole ones of the range of 8 bits, or truth values."""
        shape = tuple(shape)
        kind = np.dtype(dtype).kind
        if kind == "f":
            return np.asarray(self._noise().normal(size=shape) * scale).astype(dtype)
        if kind == "b":
            return np.asarray(self._noise().integers(0, 2, shape)).astype(bool)
        least, most = (0, 256) if kind == "u" else (-128, 128)
        return np.asarray(self._noise().integers(least, most, shape)).astype(dtype)

    def indices(self, shape: Sequence[int], least: int, most: int, dtype: str = "int64") -> Array:
        """Whole numbers from `least` to `most`, both included."""
        return np.asarray(self._noise().integers(least, most + 1, tuple(shape))).astype(dtype)

    def order(self, count: int) -> Array:
        return self._noise().permutation(count)

    # Inputs.
    def data(self, value: Array) -> Input:
        return Input(np.asarray(value), False)

    def constant(self, value: Any, dtype: str | None = None) -> Input:
        return Input(np.asarray(value, dtype), True)

    def either(self, value: Any, dtype: str | None = None, data: float = 0.5) -> Input:
        """An input that is data with the chance `data`."""
        return Input(np.asarray(value, dtype), not self.chance(data))

    def size_input(self, value: Any, dtype: str = "int64") -> Input:
        """An input that decides sizes: seldom data."""
        return self.either(value, dtype, 0.1)

    def node(
        self, *inputs: Input | None, outputs: int = 1, domain: str = "", name: str = "", **attributes: Any
    ) -> Node:
        present = {key: value for key, value in attributes.items() if value is not None}
        operands = list(inputs)
        while operands and operands[-1] is None:
            operands.pop()
        return Node(name or self.operator, operands, present, outputs, self.opset, domain)


Maker = Callable[[Draw], Node]
