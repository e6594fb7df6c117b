"""Makes resource variables (VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE, CALL_ONCE) inputs and outputs.

A graph reads the value that the run before has left until it assigns the variable, and the last assigned
value after that. So the first value is an input of the graph, and the last one an output.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.errors import KilnError
from kiln.frontend.quiet import quiet_stderr
from kiln.frontend.state import Content
from kiln.frontend.tflite.control import VARIABLES
from kiln.frontend.tflite.files import Kinds, indices, make_constant, packed, unpacked

_HANDLE, _READ, _ASSIGN, _ONCE = VARIABLES
KINDS = frozenset(VARIABLES)


@dataclass(frozen=True)
class Variable:
    """A variable of a graph: its name and its first value."""

    name: str
    initial: Content


@dataclass(frozen=True)
class Opened:
    """A file whose variables were replaced: they are the last inputs and the last outputs of its graph."""

    content: bytes
    variables: list[Variable] = field(default_factory=list)


def opened(path: Path, content: bytes) -> Opened:
    """The file `content` without resource variables. Raises KilnError for a use that is not supported."""
    schema, model = unpacked(path, content)
    kinds = Kinds(schema, model)
    if not any(kinds.of(op) in KINDS for op in model.subgraphs[0].operators):
        return Opened(content)
    return _Graph(path, schema, model, kinds).opened()


class _Graph:
    """Rewrites the first graph of a model."""

    def __init__(self, path: Path, schema: Any, model: Any, kinds: Kinds) -> None:
        self._path, self._schema, self._model, self._kinds = path, schema, model, kinds
        self._graph = model.subgraphs[0]
        self._handles: dict[int, str] = {}  # tensor → variable
        self._now: dict[str, int] = {}  # variable → the tensor with its value
        self._first: dict[str, int] = {}  # variable → the input with its first value
        self._same: dict[int, int] = {}  # tensor that a READ_VARIABLE makes → the tensor with this value

    def opened(self) -> Opened:
        """The rewritten file."""
        initial: dict[str, Array] = {}
        operators = []
        for op in self._graph.operators:
            kind = self._kinds.of(op)
            if kind not in KINDS:
                op.inputs = [self._same.get(index, index) for index in indices(op.inputs)]
                operators.append(op)
            elif kind == _HANDLE:
                self._handles[indices(op.outputs)[0]] = _name(op)
            elif kind == _ONCE:
                initial |= self._initialised(int(op.builtinOptions.initSubgraphIndex))
            elif kind == _READ:
                self._read(op)
            else:
                self._assign(op)
        for name in self._now.keys() - initial.keys():
            raise KilnError(
                f"{self._path}: variable '{name}' has no first value: no CALL_ONCE assigns it; assign it in "
                "an initialisation function before the conversion to TFLite"
            )
        names = [name for name in self._now if name in self._first]
        self._check(names, initial)
        graph = self._graph
        for name in [name for name in names if self._now[name] == self._first[name]]:
            # A variable that is never assigned is a constant.
            make_constant(self._schema, self._model, graph.tensors[self._first[name]], initial[name])
            names.remove(name)
        outputs = [self._same.get(index, index) for index in indices(graph.outputs)]
        graph.operators = operators
        graph.inputs = [*indices(graph.inputs), *(self._first[name] for name in names)]
        graph.outputs = [*outputs, *(self._now[name] for name in names)]
        self._model.signatureDefs = None  # they list the inputs as they were
        variables = [Variable(name, _content(initial[name])) for name in names]
        return Opened(packed(self._model), variables)

    def _variable(self, op: Any) -> str:
        handle = indices(op.inputs)[0]
        if handle not in self._handles:
            raise KilnError(
                f"{self._path}: {self._kinds.of(op)} of a variable that no VAR_HANDLE of the graph names: "
                "only variables of the main graph are supported"
            )
        return self._handles[handle]

    def _read(self, op: Any) -> None:
        name, result = self._variable(op), indices(op.outputs)[0]
        if name not in self._now:
            self._now[name] = self._first[name] = result
        self._same[result] = self._now[name]

    def _assign(self, op: Any) -> None:
        name, value = self._variable(op), indices(op.inputs)[1]
        self._now[name] = self._same.get(value, value)

    def _initialised(self, number: int) -> dict[str, Array]:
        """The values that graph `number`, which runs once, assigns to variables, by name."""
        graph = self._model.subgraphs[number]
        handles: dict[int, str] = {}
        assigned: dict[str, int] = {}
        rest = []
        for op in graph.operators:
            kind = self._kinds.of(op)
            if kind == _HANDLE:
                handles[indices(op.outputs)[0]] = _name(op)
            elif kind == _ASSIGN:
                handle, value = indices(op.inputs)
                assigned[handles[handle]] = value
            elif kind in (_READ, _ONCE):
                raise KilnError(f"{self._path}: CALL_ONCE: {kind} in its graph is not supported")
            else:
                rest.append(op)
        values = {name: self._constant(graph, index) for name, index in assigned.items()}
        missing = [name for name, value in values.items() if value is None]
        if missing:
            computed = self._computed(number, rest, [assigned[name] for name in missing])
            values.update(zip(missing, computed, strict=True))
        return {name: value for name, value in values.items() if value is not None}

    def _constant(self, graph: Any, index: int) -> Array | None:
        """The array of a tensor that the file holds; None if an operator makes it."""
        tensor = graph.tensors[index]
        data = self._model.buffers[tensor.buffer].data
        if data is None or not len(data):
            return None
        shape = indices(tensor.shape)
        return np.frombuffer(bytes(bytearray(data)), self._dtype(tensor)).reshape(shape)

    def _dtype(self, tensor: Any) -> np.dtype[Any]:
        dtype = self._kinds.dtype(tensor)
        if dtype is None:
            name = self._kinds.type_name(tensor)
            raise KilnError(f"{self._path}: a variable is of type {name}, allowed: numbers and bool")
        return dtype

    def _computed(self, number: int, operators: list[Any], tensors: list[int]) -> list[Array]:
        """Tensors of the graph `number`, computed by LiteRT."""
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        single_graph = self._schema.ModelT.InitFromPackedBuf(packed(self._model), 0)
        graph = single_graph.subgraphs[number]
        graph.operators = operators
        graph.inputs, graph.outputs = [], tensors
        single_graph.subgraphs, single_graph.signatureDefs = [graph], None
        try:
            with quiet_stderr():
                reader = Interpreter(
                    model_content=packed(single_graph),
                    num_threads=1,
                    experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
                )
                reader.allocate_tensors()
                reader.invoke()
                return [reader.get_tensor(entry["index"]) for entry in reader.get_output_details()]
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise KilnError(f"{self._path}: CALL_ONCE: LiteRT cannot run its graph: {reason}") from error

    def _check(self, names: list[str], initial: dict[str, Array]) -> None:
        """Raise KilnError for a variable whose values differ in type, shape or quantisation."""
        for name in names:
            first, last = (self._graph.tensors[index] for index in (self._first[name], self._now[name]))
            held = initial[name]
            shapes = {tuple(indices(first.shape)), tuple(indices(last.shape)), held.shape}
            types = {str(self._dtype(first)), str(self._dtype(last)), str(held.dtype)}
            if len(shapes) > 1 or len(types) > 1:
                raise KilnError(
                    f"{self._path}: variable '{name}' has values of {' and '.join(sorted(types))}, of shapes "
                    f"{' and '.join(map(str, sorted(shapes)))}, allowed: one type and one shape"
                )
            if (first.shapeSignature is not None) and any(size < 0 for size in first.shapeSignature):
                raise KilnError(f"{self._path}: variable '{name}' has a dynamic size, allowed: fixed sizes")


def _name(op: Any) -> str:
    """The name of the variable that a VAR_HANDLE refers to."""
    options = op.builtinOptions
    words_given = [options.container, options.sharedName] if options is not None else []
    words = [word.decode(errors="replace") if isinstance(word, bytes) else word or "" for word in words_given]
    return "/".join(word for word in words if word)


def _content(value: Array) -> Content:
    """A value as JSON data: one number if all elements are equal."""
    same = value.size > 0 and bool((value == value.reshape(-1)[0]).all())
    content: Content = value.reshape(-1)[0].item() if same else value.tolist()
    return content
