"""A random TFLite graph under construction: its tensors, and how far their rounding may differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from tflite_files import Node, Tensor, write_graph

from ..random_graphs.drawing import BOOL, FLOAT, INT32, INT64, Array, Drawing
from ..random_graphs.graph import Value
from ..tflite_operators.files import options_of

INT8, UINT8, INT16 = "int8", "uint8", "int16"
QUANTISED = (INT8, UINT8, INT16)
MOST = 1e3  # of a float's magnitude: beyond, rounding of functions shows
MOST_LEVELS = 8  # a value that may be further from LiteRT's is moved, and no longer computed with
NONE, RELU, RELU_N1_TO_1, RELU6 = range(4)
# The types of activations by form, and how the weights of floats are stored.
FORMS: dict[str, tuple[tuple[str, ...], str]] = {
    "float": ((FLOAT,), ""), "half": ((FLOAT,), "float16"), "hybrid": ((FLOAT,), INT8), INT8: ((INT8,), ""),
    UINT8: ((UINT8,), ""), INT16: ((INT16,), ""), "mixed": ((INT8, INT8, INT16, UINT8, FLOAT), ""),
}  # fmt: skip


@dataclass(frozen=True)
class Activation(Value):
    """A tensor of the graph. index: in the file. scale, zero: of a quantised one.

    most: its usual greatest magnitude, as a real number. error: how far it may be from LiteRT's for the ways
    to round integers, as a real number; rounding of floats is not in it.
    """

    index: int = -1
    scale: float | None = None
    zero: int = 0
    error: float = 0.0

    @property
    def levels(self) -> int:
        """How many levels a quantised tensor may be from LiteRT's."""
        return 0 if self.scale is None else round(self.error / self.scale)

    @property
    def bound(self) -> float:
        """The greatest magnitude that a quantised tensor can have; of others the usual one."""
        if self.scale is None:
            return self.most
        info = np.iinfo(self.dtype)
        return max(self.zero - int(info.min), int(info.max) - self.zero) * self.scale

    @property
    def is_clean(self) -> bool:
        """Whether LiteRT's tensor is known to be the same."""
        return self.exact and not self.error


class TfliteGraph(Drawing):
    """Operators, constants and inputs so far of a graph of one of `FORMS`."""

    def __init__(self, seed: int, form: str) -> None:
        super().__init__(seed)
        self.dtypes, self.weights = FORMS[form]
        self.values: list[Activation] = []
        self.inputs: list[tuple[Activation, Array]] = []
        self.nodes: list[Node] = []
        self.shared: dict[Any, Any] = {}
        self._tensors: list[Tensor] = []
        self._chosen: set[int] = set()  # outputs of the graph that operators may read
        # Of hybrid weights: the real numbers in their place, of tensors and of what the reference reads.
        self._real: dict[int, Tensor] = {}

    @property
    def dtype(self) -> str:
        """A type of activations."""
        return self.choice.choice(self.dtypes)

    def grid(self, dtype: str, most: float) -> tuple[float | None, int]:
        """A scale and zero point by which a type holds about `most`."""
        if dtype not in QUANTISED:
            return None, 0
        info = np.iinfo(dtype)
        least, greatest = int(info.min), int(info.max)
        scale = float(np.float32(max(most, 1e-3) * self.choice.uniform(0.6, 1.6) / (greatest - least) * 2))
        if dtype == INT16:
            return scale, 0
        middle = (least + greatest + 1) // 2
        zero = self.choice.choice([least, middle, middle + 3, middle - 17, greatest, middle + 40])
        return scale, zero if self.choice.random() < 0.8 else self.choice.randint(least, greatest)

    def result(
        self, dtype: str, shape: Sequence[int], most: float, error: float = 0.0, exact: bool = False
    ) -> Activation:
        """The result of an operator that rounds once, quantised on its own; `error`: before it rounds."""
        scale, zero = self.grid(dtype, most)
        return self.rounded(Activation("", dtype, tuple(shape), most, exact, -1, scale, zero, error))

    @staticmethod
    def rounded(value: Activation, levels: float = 1.0) -> Activation:
        """A result whose rounding may differ by so many levels, besides the error before it."""
        if value.scale is None:
            return value
        return replace(value, error=math.floor(value.error / value.scale + levels + 1e-3) * value.scale)

    def contents(self, dtype: str, shape: Sequence[int], most: float) -> Array:
        """Random contents; of a quantised type all of its levels."""
        if dtype not in QUANTISED:
            return self.array(tuple(shape), dtype, most)
        info = np.iinfo(dtype)
        return self.data.integers(info.min, info.max + 1, tuple(shape)).astype(dtype)

    def input(self, shape: Sequence[int], dtype: str, like: Activation | None = None) -> Activation:
        """A new input of the graph, quantised like `like` if it is given."""
        most = 2.0 if dtype == FLOAT or dtype in QUANTISED else 1.0 if dtype == BOOL else 9.0
        scale, zero = (like.scale, like.zero) if like else self.grid(dtype, most)
        name = self.name("x")
        value = Activation(
            name, dtype, tuple(shape), most, True, self._place(name, shape, dtype, scale, zero), scale, zero
        )
        self.inputs.append((value, self.contents(dtype, shape, most)))
        self.values.append(value)
        return value

    def _place(
        self, name: str, shape: Sequence[int], dtype: str, scale: Any = None, zero: int = 0,
        data: Array | None = None, axis: int = 0,
    ) -> int:  # fmt: skip
        self._tensors.append(Tensor(name, shape, dtype, scale, zero, axis, data))
        return len(self._tensors) - 1

    def constant(
        self, content: Any, dtype: str, scale: Any = None, zero: int = 0, axis: int = 0, stored: str = ""
    ) -> Activation:
        """A constant of the file; `stored`: its type there, where that is narrower."""
        array = np.asarray(content, dtype=dtype)
        name = self.name("c")
        index = self._place(name, array.shape, stored or dtype, scale, zero, array, axis)
        one = scale if isinstance(scale, float) else None
        most = float(np.abs(array.astype("float64") - zero).max(initial=0.0) * (one or 1.0))
        return Activation(name, dtype, array.shape, most, True, index, one, zero)

    def weight(self, content: Array, axis: int = 0) -> Activation:
        """A constant filter of a float operator, stored as the form says: in float16, or as 8 bits.

        Some of the latter become floats by an operator of their own, as converters write weights alone.
        """
        if self.weights == "float16":
            half = self.constant(content.astype("float16"), "float16")
            draft = Activation("", FLOAT, content.shape, half.most)
            return self.add("DEQUANTIZE", [half], [draft], "DequantizeOptions", keep=False)[0]
        if self.weights != INT8:
            return self.constant(content, FLOAT)
        other_axes = tuple(a for a in range(content.ndim) if a != axis)
        scale = (
            np.abs(content).max(other_axes if self.choice.random() < 0.6 else None, keepdims=True) / 127
            + 1e-6
        )
        scale = scale.astype(FLOAT)
        levels = np.round(content / scale).astype(INT8)
        scales = [float(s) for s in scale.reshape(-1)]
        held = self.constant(
            levels, INT8, scales if len(scales) > 1 else scales[0], 0, axis if len(scales) > 1 else 0
        )
        if self.choice.random() < 0.3:
            draft = Activation("", FLOAT, content.shape, float(np.abs(content).max()))
            return self.add("DEQUANTIZE", [held], [draft], "DequantizeOptions", keep=False)[0]
        self._real[held.index] = Tensor(held.name, levels.shape, FLOAT, data=levels.astype(FLOAT) * scale)
        return replace(held, dtype=FLOAT, scale=None)

    def pick(
        self,
        dtype: str,
        fits: Callable[[Activation], bool] = lambda v: True,
        shapes: Sequence[Any] = (),
        clean: bool = False,
    ) -> Activation:
        """A value of a type whose error is not too great, or a new input, of one of `shapes`."""
        candidates = [
            v for v in self.values
            if v.dtype == dtype and v.levels <= MOST_LEVELS and v.most <= MOST and fits(v)
            and (v.is_clean or not clean)
        ]  # fmt: skip
        if candidates and self.choice.random() < 0.85:
            return self.choice.choice(candidates[-6:])
        while True:
            shape = self.choice.choice(shapes) if shapes else self.shape()
            draft = Activation("", dtype, tuple(shape), 2.0)
            if fits(draft):
                return self.input(shape, dtype)

    def operand(self, shape: Sequence[int], dtype: str, like: Activation | None = None) -> Activation:
        """A value of a shape: one of the graph, a constant or a new input; `like`: of its quantisation."""
        shape = tuple(shape)
        candidates = [
            v for v in self.values if v.shape == shape and v.dtype == dtype and v.levels <= MOST_LEVELS
        ]
        if like is not None:
            candidates = [v for v in candidates if (v.scale, v.zero) == (like.scale, like.zero)]
        how = self.choice.random()
        if candidates and how < 0.5:
            return self.choice.choice(candidates)
        if how >= 0.9:
            return self.input(shape, dtype, like)
        scale, zero = (like.scale, like.zero) if like else self.grid(dtype, 2.0)
        most = 2.0 if dtype not in (INT32, INT64) else 9.0
        return self.constant(self.contents(dtype, shape, most), dtype, scale, zero)

    def add(
        self, operator: str, inputs: Sequence[Activation | None], results: Sequence[Activation],
        table: str = "", keep: bool = True, **options: Any,
    ) -> list[Activation]:  # fmt: skip
        """Append an operator; `results`: drafts of its outputs. keep: they may be read by others."""
        outputs = []
        for draft in results:
            name = self.name("t")
            outputs.append(
                replace(
                    draft,
                    name=name,
                    index=self._place(name, draft.shape, draft.dtype, draft.scale, draft.zero),
                )
            )
        code = getattr(schema.BuiltinOperator, operator)
        indices = [-1 if value is None else value.index for value in inputs]
        version = 2 if operator == "BROADCAST_TO" else 1  # the first that LiteRT takes
        made_options = options_of(table, options)
        self.nodes.append(
            Node(code, made_options, indices, [value.index for value in outputs], version=version)
        )
        if keep:
            outputs = [v if v.dtype != FLOAT or v.most <= MOST else self._tamed(v) for v in outputs]
            self.values += outputs
        if outputs and self.choice.random() < 0.08:
            self._chosen.add(outputs[-1].index)
        return outputs

    def _tamed(self, value: Activation) -> Activation:
        """A value that a tanh after it keeps small."""
        return self.add("TANH", [value], [replace(value, most=1.0, exact=False)], keep=False)[0]

    def ends(self) -> list[Activation]:
        """The outputs of the graph: the values that nothing reads, and some that operators read."""
        read = {index for node in self.nodes for index in node.inputs}
        input_indices = {value.index for value, _ in self.inputs}
        return [
            v for v in self.values
            if v.index not in input_indices and (v.index not in read or v.index in self._chosen)
        ]  # fmt: skip

    def used(self) -> list[tuple[Activation, Array]]:
        """The inputs that operators read, with their contents."""
        read = {index for node in self.nodes for index in node.inputs}
        return [(value, array) for value, array in self.inputs if value.index in read]

    def write(self, path: Path, is_real: bool, opened: Mapping[str, tuple[int | str, ...]]) -> Path:
        """The file. is_real: hybrid weights are the floats they stand for. opened: dynamic shapes."""
        read = {index for node in self.nodes for index in node.inputs}
        tensors = [self._real.get(at, one) if is_real else one for at, one in enumerate(self._tensors)]
        # Only tensors that an operator uses are written.
        present = read | {index for node in self.nodes for index in node.outputs}
        order = [at for at in range(len(tensors)) if at in present]
        place = {at: number for number, at in enumerate(order)} | {-1: -1}
        nodes = [
            replace(n, inputs=[place[i] for i in n.inputs], outputs=[place[i] for i in n.outputs])
            for n in self.nodes
        ]
        inputs = [place[v.index] for v, _ in self.used()]
        written = [tensors[at] for at in order]
        for at in inputs:
            if written[at].name in opened:
                sizes = [-1 if isinstance(size, str) else size for size in opened[written[at].name]]
                written[at] = replace(written[at], signature=sizes)
        return write_graph(path, written, nodes, inputs, [place[v.index] for v in self.ends()])
