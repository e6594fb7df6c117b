"""Find the first operator of a model whose result changes when inputs are padded.

The reference runs with every intermediate tensor as an output, once on exact and once on padded inputs. The
padding changes an operator's result if the result, cut to the elements that are not padding, differs. These
elements are mostly the first ones of each axis; where a Reshape has merged a padded axis with an outer axis,
they are not adjacent, and their positions are computed through the Reshape (`Positions`).

Results computed from shapes alone (the operands of a Reshape, a divisor from Shape) always differ and do not
explain an error: the first operator that combines such a result with data is reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.errors import KilnError
from kiln.frontend.onnx.plain_session import plain_session
from kiln.frontend.quiet import quiet_stderr
from kiln.frontend.tflite.files import builtin_of, elements_of, tensor_name
from kiln.golden.compare import ErrorLimits, compare

_SHAPE_OF = {"Shape", "Size", "SHAPE", "RANK"}
_RESHAPES = {"Reshape", "Flatten", "RESHAPE"}
_MOST_READINGS = 16  # combinations of positions of one tensor that are tried


@dataclass(frozen=True)
class Operator:
    """One node of the graph: its kind, its name, and the names of the tensors it reads and writes."""

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
    """Operators of a graph in topological order, and all tensors for exact and for padded inputs."""

    operators: list[Operator]
    inputs: list[str]
    exact: Mapping[str, Array]
    padded: Mapping[str, Array]


def first_to_differ(
    path: Path, exact: Sequence[Array], padded: Sequence[Array], limits: ErrorLimits
) -> Operator | None:
    """The first operator of the model file whose result the padding changes; None if it is unknown."""
    try:
        with quiet_stderr():
            traced = (_tflite if path.suffix.lower() == ".tflite" else _onnx)(path, exact, padded)
    except KilnError:
        raise
    except Exception:  # the message then lacks the operator
        return None
    return find(traced, limits)


def find(traced: Traced, limits: ErrorLimits) -> Operator | None:
    """The first operator whose result differs in elements that are not padding; None if no result does."""
    positions, data = Positions(), set(traced.inputs)
    shapes_only = None
    for operator in traced.operators:
        is_computed_from_data = operator.kind not in _SHAPE_OF and any(
            name in data for name in operator.inputs
        )
        data |= set(operator.outputs) if is_computed_from_data else set()
        for name in operator.outputs:
            if name not in traced.exact or name not in traced.padded:
                continue
            if operator.kind in _RESHAPES and positions.follow(operator, traced):
                continue
            if not positions.agree(name, traced.exact[name], traced.padded[name], limits):
                if is_computed_from_data:
                    return operator
                shapes_only = shapes_only or operator
    return shapes_only


class Positions:
    """Positions of the elements of exact tensors in the padded ones: for each axis an array of indices."""

    def __init__(self) -> None:
        self._positions: dict[str, list[Array]] = {}
        # (exact size, padded size) of an axis that a Reshape has merged → positions of its elements
        self._merged_positions: dict[tuple[int, int], Array] = {}

    def agree(self, name: str, exact: Array, padded: Array, limits: ErrorLimits) -> bool:
        """Whether `exact` and `padded` agree at one choice of positions, which is then stored for `name`."""
        if exact.ndim != padded.ndim or exact.dtype != padded.dtype:
            return False
        if any(have < want for have, want in zip(padded.shape, exact.shape, strict=True)):
            return False
        eight_bits = exact.dtype.kind in "iu" and exact.dtype.itemsize == 1
        for reading in self._readings(exact.shape, padded.shape):
            if compare(padded[np.ix_(*reading)], exact, limits, eight_bits).passed:
                self._positions[name] = reading
                return True
        return False

    def _readings(self, exact: Sequence[int], padded: Sequence[int]) -> Iterator[list[Array]]:
        """Possible positions of a tensor of shape `exact` in shape `padded`, at most _MOST_READINGS."""
        axes = []
        for pair in zip(exact, padded, strict=True):
            merged = self._merged_positions.get(pair)
            axes.append([np.arange(pair[0]), *([merged] if merged is not None else [])])
        return (list(reading) for reading in itertools.islice(itertools.product(*axes), _MOST_READINGS))

    def follow(self, operator: Operator, traced: Traced) -> bool:
        """Compute positions of a reshape's result from its operand's; returns whether that succeeded."""
        source, result = operator.inputs[0], operator.outputs[0]
        if source not in self._positions and source not in traced.inputs:
            return False
        operand, moved = traced.exact[source], traced.exact[result]
        reading = self._positions.get(source) or [np.arange(size) for size in operand.shape]
        if not reading or moved.ndim == 0 or moved.size == 0:
            return False
        padded_shape = traced.padded[source].shape
        flat = np.ravel_multi_index(np.ix_(*reading), padded_shape).reshape(moved.shape)
        positions = []
        for axis, indices in enumerate(np.unravel_index(flat, traced.padded[result].shape)):
            lines = np.moveaxis(indices, axis, 0).reshape(moved.shape[axis], -1)
            if (lines != lines[:, :1]).any():
                return True  # no common positions along an axis; a reshape changes no value
            positions.append(lines[:, 0])
            if (lines[:, 0] != np.arange(len(lines))).any():
                self._merged_positions[moved.shape[axis], traced.padded[result].shape[axis]] = lines[:, 0]
        self._positions[result] = positions
        return True


def _onnx(path: Path, exact: Sequence[Array], padded: Sequence[Array]) -> Traced:
    """Trace an ONNX model in ONNX Runtime."""
    import onnx

    model = onnx.load(str(path))
    graph = model.graph
    constants = {value.name for value in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in constants]
    operators = [
        Operator(node.op_type, node.name, _reads(node), [name for name in node.output if name])
        for node in graph.node
    ]
    graph_outputs = {value.name for value in graph.output}
    for operator in operators:
        graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in operator.outputs if name not in graph_outputs
        )
    session = plain_session(model.SerializeToString(), severity=4)
    names = [value.name for value in session.get_outputs()]

    def values(tensors: Sequence[Array]) -> dict[str, Array]:
        feeds = dict(zip(inputs, tensors, strict=True))
        results = dict(zip(names, session.run(None, feeds), strict=True))
        return {name: value for name, value in {**feeds, **results}.items() if isinstance(value, np.ndarray)}

    return Traced(operators, inputs, values(exact), values(padded))


def _reads(node: Any) -> list[str]:
    """Names of the tensors that a node reads, including outer tensors read by branches and loop bodies."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            inner_names = {value.name for value in graph.input} | {
                n for inner_node in graph.node for n in inner_node.output
            }
            names += [
                name for inner_node in graph.node for name in _reads(inner_node) if name not in inner_names
            ]
    return names


def _tflite(path: Path, exact: Sequence[Array], padded: Sequence[Array]) -> Traced:
    """Trace a TFLite model in LiteRT."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType
    from tflite import Model
    from tflite.utils import opcode2name

    model = Model.GetRootAsModel(path.read_bytes(), 0)
    graph = model.Subgraphs(0)
    operators = []
    for position in range(graph.OperatorsLength()):
        node = graph.Operators(position)
        code = model.OperatorCodes(node.OpcodeIndex())
        kind = opcode2name(builtin_of(code))
        reads = [str(index) for index in node.InputsAsNumpy() if index >= 0]
        writes = [str(index) for index in node.OutputsAsNumpy()]
        name = tensor_name(graph.Tensors(int(writes[0])))
        operators.append(Operator(kind, name, reads, writes))
    inputs = [str(index) for index in graph.InputsAsNumpy()]

    def values(tensors: Sequence[Array]) -> dict[str, Array]:
        interpreter = Interpreter(
            model_path=str(path),
            num_threads=1,
            experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            experimental_preserve_all_tensors=True,
        )
        for index, value in zip(inputs, tensors, strict=True):
            interpreter.resize_tensor_input(int(index), list(value.shape))
        interpreter.allocate_tensors()
        for index, value in zip(inputs, tensors, strict=True):
            interpreter.set_tensor(int(index), value)
        interpreter.invoke()
        results = {n: elements_of(interpreter, int(n)) for operator in operators for n in operator.outputs}
        return {**dict(zip(inputs, tensors, strict=True)), **results}

    return Traced(operators, inputs, values(exact), values(padded))
