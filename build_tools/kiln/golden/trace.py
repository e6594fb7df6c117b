"""The first operator of a model whose result changes when inputs are padded.

The reference runs with every intermediate tensor as an output, once on exact and once on padded inputs. An
operator sees the padding when its result, cut to the elements that stand for real ones, is another. Which
elements those are is mostly the first ones of each axis; where a Reshape has merged a padded axis with one
outside of it, they are spread, and the positions are followed through it (`Positions`).

What is computed from shapes alone (the operands of a Reshape, a divisor taken from Shape) differs of itself
and is not what a reader looks for: the first operator that brings it together with data is named.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kiln.errors import KilnError
from kiln.frontend.quiet import quiet_stderr
from kiln.golden.compare import Limits, compare

Array = npt.NDArray[Any]

_SHAPE_OF = {"Shape", "Size", "SHAPE", "RANK"}
_RESHAPES = {"Reshape", "Flatten", "RESHAPE"}
_MOST_READINGS = 16  # ways to read the axes of one tensor that are tried


@dataclass(frozen=True)
class Operator:
    """One node in topological order: its kind, name, and the tensors it reads and writes."""

    kind: str
    name: str
    inputs: list[str]
    outputs: list[str]

    def __str__(self) -> str:
        return (
            f"{self.kind} (node '{self.name}')" if self.name else f"{self.kind} (makes '{self.outputs[0]}')"
        )


@dataclass(frozen=True)
class Traced:
    """A graph and the value of every tensor, twice: with exact and with padded inputs."""

    operators: list[Operator]
    inputs: list[str]
    exact: Mapping[str, Array]
    padded: Mapping[str, Array]


def first_to_differ(
    path: Path, exact: Sequence[Array], padded: Sequence[Array], limits: Limits
) -> Operator | None:
    """The first operator of the model file that sees the padding; None where none could be told."""
    try:
        with quiet_stderr():
            traced = (_tflite if path.suffix.lower() == ".tflite" else _onnx)(path, exact, padded)
    except KilnError:
        raise
    except Exception:  # a graph that cannot be taken apart is refused all the same, without the name
        return None
    return find(traced, limits)


def find(traced: Traced, limits: Limits) -> Operator | None:
    """The first operator whose result differs where it stands for real elements."""
    positions, data = Positions(), set(traced.inputs)
    shapes_only = None
    for operator in traced.operators:
        of_data = operator.kind not in _SHAPE_OF and any(name in data for name in operator.inputs)
        data |= set(operator.outputs) if of_data else set()
        for name in operator.outputs:
            if name not in traced.exact or name not in traced.padded:
                continue
            if operator.kind in _RESHAPES and positions.follow(operator, traced):
                continue
            if not positions.agree(name, traced.exact[name], traced.padded[name], limits):
                if of_data:
                    return operator
                shapes_only = shapes_only or operator
    return shapes_only


class Positions:
    """Where the elements of an exact tensor lie in its padded one: for each axis a list of indices."""

    def __init__(self) -> None:
        self._of: dict[str, list[Array]] = {}
        # (exact size, padded size) of an axis that a Reshape has merged → where its elements lie
        self._merged: dict[tuple[int, int], Array] = {}

    def agree(self, name: str, exact: Array, padded: Array, limits: Limits) -> bool:
        """Whether the two agree under one reading of the axes, which is then kept for `name`."""
        if exact.ndim != padded.ndim or exact.dtype != padded.dtype:
            return False
        if any(have < want for have, want in zip(padded.shape, exact.shape, strict=True)):
            return False
        eight_bits = exact.dtype.kind in "iu" and exact.dtype.itemsize == 1
        for reading in self._readings(exact.shape, padded.shape):
            if compare(padded[np.ix_(*reading)], exact, limits, eight_bits).passed:
                self._of[name] = reading
                return True
        return False

    def _readings(self, exact: Sequence[int], padded: Sequence[int]) -> Iterator[list[Array]]:
        axes = []
        for pair in zip(exact, padded, strict=True):
            merged = self._merged.get(pair)
            axes.append([np.arange(pair[0]), *([merged] if merged is not None else [])])
        return (list(one) for one in itertools.islice(itertools.product(*axes), _MOST_READINGS))

    def follow(self, operator: Operator, traced: Traced) -> bool:
        """Follow the elements through a reshape, which moves none; whether that could be told."""
        source, result = operator.inputs[0], operator.outputs[0]
        if source not in self._of and source not in traced.inputs:
            return False
        before, after = traced.exact[source], traced.exact[result]
        reading = self._of.get(source) or [np.arange(size) for size in before.shape]
        if not reading or after.ndim == 0 or after.size == 0:
            return False
        wide = traced.padded[source].shape
        flat = np.ravel_multi_index(np.ix_(*reading), wide).reshape(after.shape)
        found = []
        for axis, places in enumerate(np.unravel_index(flat, traced.padded[result].shape)):
            lines = np.moveaxis(places, axis, 0).reshape(after.shape[axis], -1)
            if (lines != lines[:, :1]).any():
                return True  # the elements of an axis lie nowhere in common: nothing was computed, either
            found.append(lines[:, 0])
            if (lines[:, 0] != np.arange(len(lines))).any():
                self._merged[after.shape[axis], traced.padded[result].shape[axis]] = lines[:, 0]
        self._of[result] = found
        return True


def _onnx(path: Path, exact: Sequence[Array], padded: Sequence[Array]) -> Traced:
    import onnx
    import onnxruntime

    model = onnx.load(str(path))
    graph = model.graph
    constants = {value.name for value in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in constants]
    operators = [
        Operator(node.op_type, node.name, _reads(node), [name for name in node.output if name])
        for node in graph.node
    ]
    known = {value.name for value in graph.output}
    for operator in operators:
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in operator.outputs if name not in known)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_outputs()]

    def values(given: Sequence[Array]) -> dict[str, Array]:
        feeds = dict(zip(inputs, given, strict=True))
        made = dict(zip(names, session.run(None, feeds), strict=True))
        return {name: value for name, value in {**feeds, **made}.items() if isinstance(value, np.ndarray)}

    return Traced(operators, inputs, values(exact), values(padded))


def _reads(node: Any) -> list[str]:
    """The tensors that a node reads; with those that its branches and loop bodies take from outside."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            own = {value.name for value in graph.input} | {n for inner in graph.node for n in inner.output}
            names += [name for inner in graph.node for name in _reads(inner) if name not in own]
    return names


def _tflite(path: Path, exact: Sequence[Array], padded: Sequence[Array]) -> Traced:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType
    from tflite import Model
    from tflite.utils import opcode2name

    model = Model.GetRootAsModel(path.read_bytes(), 0)
    graph = model.Subgraphs(0)
    operators = []
    for position in range(graph.OperatorsLength()):
        node = graph.Operators(position)
        code = model.OperatorCodes(node.OpcodeIndex())
        kind = opcode2name(max(code.BuiltinCode(), code.DeprecatedBuiltinCode()))
        reads = [str(index) for index in node.InputsAsNumpy() if index >= 0]
        writes = [str(index) for index in node.OutputsAsNumpy()]
        name = graph.Tensors(int(writes[0])).Name().decode(errors="replace")
        operators.append(Operator(kind, name, reads, writes))
    inputs = [str(index) for index in graph.InputsAsNumpy()]

    def values(given: Sequence[Array]) -> dict[str, Array]:
        interpreter = Interpreter(
            model_path=str(path),
            num_threads=1,
            experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            experimental_preserve_all_tensors=True,
        )
        for index, value in zip(inputs, given, strict=True):
            interpreter.resize_tensor_input(int(index), list(value.shape))
        interpreter.allocate_tensors()
        for index, value in zip(inputs, given, strict=True):
            interpreter.set_tensor(int(index), value)
        interpreter.invoke()
        made = {n: interpreter.get_tensor(int(n)) for operator in operators for n in operator.outputs}
        return {**dict(zip(inputs, given, strict=True)), **made}

    return Traced(operators, inputs, values(exact), values(padded))
