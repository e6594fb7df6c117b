"""Cases as TFLite files: one operator, with the shapes and the results that LiteRT computes for it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from kiln.frontend.quiet import quiet_stderr
from tflite_files import Node, Tensor, write_graph

Array = npt.NDArray[Any]
_LEVEL = {"int8": 1.5, "uint8": 1.5, "int16": 3.5}  # greatest difference of two roundings, in levels


# Operators whose results equal LiteRT's bit for bit: for int16, and for every quantised type.
_INT16_NAMES = """
    ABS ADD BATCH_MATMUL CONV_2D DEPTHWISE_CONV_2D EXP FULLY_CONNECTED GELU LEAKY_RELU LOG LOGISTIC MEAN MUL
    RELU RELU6 RSQRT SOFTMAX SUB TANH TRANSPOSE_CONV
"""
_EXACT_OF_INT16 = frozenset(_INT16_NAMES.split())
_EXACT = frozenset(("DIV", "L2_NORMALIZATION", "LOG_SOFTMAX", "PRELU", "QUANTIZE"))


@dataclass(frozen=True)
class Operand:
    """A tensor of a case. array: its values; held: whether the file has them. scale: of a quantised one.

    stored: its type in the file where that is narrower than the array's.
    """

    array: Array
    held: bool = False
    scale: float | Sequence[float] | None = None
    zero_point: int = 0
    axis: int = 0
    stored: str = ""


@dataclass(frozen=True)
class Result:
    """An output: its type and quantisation; LiteRT says which shape it has."""

    dtype: str = "float32"
    scale: float | None = None
    zero_point: int = 0


def options_of(table: str, fields: Mapping[str, Any]) -> Any:
    """A table of the schema with `fields` set; None for no table."""
    if not table:
        return None
    options = getattr(schema, f"{table}T")()
    for key, value in fields.items():
        assert hasattr(options, key), (table, key)
        setattr(options, key, value)
    return options


def litert(path: Path, inputs: Sequence[Array], kernels: str) -> list[Array]:
    """The results of a set of LiteRT's kernels. Raises RuntimeError or ValueError where they refuse it."""
    resolver = getattr(OpResolverType, kernels)
    interpreter = Interpreter(model_path=str(path), num_threads=1, experimental_op_resolver_type=resolver)
    for entry, value in zip(interpreter.get_input_details(), inputs, strict=True):
        if tuple(entry["shape"]) != value.shape:  # of a dynamic axis
            interpreter.resize_tensor_input(entry["index"], value.shape)
    interpreter.allocate_tensors()
    for entry, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(entry["index"], value)
    interpreter.invoke()
    return [interpreter.get_tensor(entry["index"]).copy() for entry in interpreter.get_output_details()]


@dataclass(frozen=True)
class OperatorCase:
    """One operator with its operands; None is an omitted operand.

    options, table: fields of its options, and their name in the schema. levels: how far quantised results may
    be apart; 0: by their type. relative, absolute: of floats. kernels: LiteRT's kernels to compare with.
    shape: of the results, where LiteRT does not set it. then: an operator that makes complex results real.
    """

    name: str
    operator: str
    operands: Sequence[Operand | None]
    results: Sequence[Result]
    options: Mapping[str, Any] = field(default_factory=dict)
    table: str = ""
    levels: float = 0.0
    relative: float = 2e-5
    absolute: float = 1e-5
    then: str = ""
    shape: Sequence[int] = ()
    kernels: str = "BUILTIN_REF"

    @property
    def inputs(self) -> list[Array]:
        """The arrays of the operands that are inputs of the graph."""
        return [one.array for one in self.operands if one is not None and not one.held]

    def _write(self, path: Path, shapes: Sequence[Sequence[int]], version: int = 0) -> Path:
        tensors, places = [], []
        for number, one in enumerate(self.operands):
            if one is None:
                places.append(-1)
                continue
            places.append(len(tensors))
            data = one.array if one.held else None
            dtype = one.stored or str(one.array.dtype)
            tensors.append(
                Tensor(f"x{number}", one.array.shape, dtype, one.scale, one.zero_point, one.axis, data)
            )
        first = len(tensors)
        for number, result in enumerate(self.results):
            tensors.append(
                Tensor(f"y{number}", shapes[number], result.dtype, result.scale, result.zero_point)
            )
        options = options_of(self.table, self.options)
        kinds = schema.BuiltinOperator
        outputs = list(range(first, len(tensors)))
        nodes = [Node(getattr(kinds, self.operator), options, places, outputs, version=version)]
        if self.then:
            tensors.append(Tensor("z", shapes[0]))
            nodes.append(Node(getattr(kinds, self.then), None, outputs, [len(tensors) - 1]))
            outputs = [len(tensors) - 1]
        given = [index for index in places if index >= 0 and tensors[index].data is None]
        return write_graph(path, tensors, nodes, given, outputs)

    def open(self, folder: Path) -> tuple[Path, list[Array]]:
        """The file, and LiteRT's results: of its reference kernels, else of the others.

        Raises ValueError where LiteRT refuses the file.
        """
        rank = next((one.array.ndim for one in self.operands if one is not None), 1)
        refusal = ""
        with quiet_stderr():
            kernel_sets = dict.fromkeys((self.kernels, "BUILTIN"))
            # Some kernels look at the rank of the result, and not all have a second version.
            for kernels, version, shape in product(kernel_sets, (0, 1), (self.shape or [1], [1] * rank)):
                try:
                    drafted = self._write(folder / "draft.tflite", [shape] * len(self.results), version)
                    shapes = [value.shape for value in litert(drafted, self.inputs, kernels)]
                    path = self._write(folder / f"{self.name.replace('/', '-')}.tflite", shapes, version)
                    return path, litert(path, self.inputs, kernels)
                except (RuntimeError, ValueError) as error:
                    refusal = " ".join(str(error).split())[:160]
        raise ValueError(refusal)

    def difference(self, ours: Sequence[Array], theirs: Sequence[Array]) -> str:
        """How the results differ from LiteRT's; empty if they agree."""
        for index, (got, want, result) in enumerate(zip(ours, theirs, self.results, strict=True)):
            if got.dtype != want.dtype or got.shape != want.shape:
                return (
                    f"output {index}: {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
                )
            if got.dtype.kind in "biu":
                allowed = 0.0
                is_exact = self.operator in _EXACT
                is_exact |= got.dtype == "int16" and self.operator in _EXACT_OF_INT16
                if result.scale is not None and not is_exact:
                    allowed = self.levels or _LEVEL.get(str(got.dtype), 0)
                differ = np.abs(got.astype("int64") - want.astype("int64")) > allowed
            else:
                scale = float(np.abs(want[np.isfinite(want)]).max(initial=0))
                limit = max(self.absolute, self.relative * scale)
                differ = ~np.isclose(got, want, rtol=self.relative, atol=limit, equal_nan=True)
            if differ.any():
                where = tuple(int(axis[0]) for axis in np.nonzero(np.atleast_1d(differ)))
                a, b = np.atleast_1d(got)[where], np.atleast_1d(want)[where]
                return f"output {index}: {int(differ.sum())} elements, at {list(where)} {a}, expected {b}"
        return ""


def folder_of_cases() -> Any:
    """A temporary folder."""
    return tempfile.TemporaryDirectory(prefix="kiln-tflite-")
