"""References of TFLite files with custom operators: LiteRT, which does not know them, runs all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tflite

from kiln.arrays import Array
from kiln.errors import KilnError
from kiln.frontend.tflite.files import Kinds, elements_of, indices, packed, unpacked
from kiln.frontend.tflite.own_nodes import custom_name, known_operators, options_of, quant_of
from kiln.golden.own_step import OwnStep
from kiln.operators.registry import typed_attributes

OpenInterpreter = Callable[[bytes], Any]


@dataclass
class TflitePart:
    """Operators that LiteRT computes, and the own operators after them; tensors are named by their index."""

    operators: list[Any] = field(default_factory=list)
    own_steps: list[OwnStep] = field(default_factory=list)
    interpreter: Any = None
    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)


class TfliteParts:
    """A TFLite file with custom operators, as parts. Raises KilnError for a file with control flow."""

    def __init__(self, path: Path, content: bytes, open_interpreter: OpenInterpreter) -> None:
        self._open = open_interpreter
        self._schema, self._model = unpacked(path, content)
        self._flat = tflite.Model.GetRootAsModel(content, 0)
        if len(self._model.subgraphs) > 1:
            raise KilnError(f"{path}: it has control flow and a custom operator, which no reference computes")
        graph = self._model.subgraphs[0]
        self._inputs, self._outputs = indices(graph.inputs), indices(graph.outputs)
        self._constant = {
            index
            for index, tensor in enumerate(graph.tensors)
            if self._model.buffers[tensor.buffer].data is not None
            and len(self._model.buffers[tensor.buffer].data)
        }
        kinds, types = Kinds(self._schema, self._model), self._schema.TensorType
        # Conversions of float16 weights to float32. They are repeated in each part that reads the weights, as
        # LiteRT's XNNPACK fails on a graph that returns their results.
        self._halves = {
            indices(op.outputs)[0]: op
            for op in graph.operators
            if kinds.of(op) == "DEQUANTIZE"
            and indices(op.inputs)[0] in self._constant
            and graph.tensors[indices(op.inputs)[0]].type == types.FLOAT16
        }
        self._parts = self._split(graph.operators)

    def _split(self, operators: Sequence[Any]) -> list[TflitePart]:
        """The parts in order: an operator belongs to the first one in which all of its inputs are known."""
        own_operators, file_parts = known_operators(), [TflitePart()]
        ready: dict[int, int] = {}
        for position, operator in enumerate(operators):
            inputs, outputs = indices(operator.inputs), indices(operator.outputs)
            if outputs and outputs[0] in self._halves:
                continue
            number_of_part = max((ready.get(index, 0) for index in inputs), default=0)
            name = custom_name(self._flat, self._flat.Subgraphs(0).Operators(position))
            if name in own_operators:
                loaded, raw = (
                    own_operators[name],
                    bytes(bytearray(() if operator.customOptions is None else operator.customOptions)),
                )
                names = [str(index) if index >= 0 else "" for index in inputs]
                attributes = typed_attributes(loaded, options_of(loaded, raw))
                graph = self._flat.Subgraphs(0)
                quants = [
                    quant_of(graph.Tensors(index)) if index >= 0 else None for index in [*inputs, *outputs]
                ]
                result_names = [str(index) for index in outputs]
                file_parts[number_of_part].own_steps.append(
                    OwnStep(loaded, names, result_names, attributes, quants)
                )
                number_of_part += 1
            else:
                file_parts[number_of_part].operators.append(operator)
            if number_of_part == len(file_parts):
                file_parts.append(TflitePart())
            ready.update(dict.fromkeys(outputs, number_of_part))
        for number, file_part in enumerate(file_parts):
            self._set_reads_and_writes(file_part, file_parts[number + 1 :])
        return file_parts

    def _set_reads_and_writes(self, file_part: TflitePart, later_parts: Sequence[TflitePart]) -> None:
        """Set the tensors that a part reads from other parts, and that other parts read from it."""
        read = {index for operator in file_part.operators for index in indices(operator.inputs)}
        file_part.operators[:0] = [op for index, op in self._halves.items() if index in read]
        results = {index for operator in file_part.operators for index in indices(operator.outputs)}
        read = {index for operator in file_part.operators for index in indices(operator.inputs) if index >= 0}
        file_part.reads = sorted(read - results - self._constant)
        read_later = {
            index
            for other in later_parts
            for operator in other.operators
            for index in indices(operator.inputs)
        }
        read_later |= {
            int(name)
            for other in [file_part, *later_parts]
            for step in other.own_steps
            for name in step.inputs
            if name
        }
        file_part.writes = sorted((results & (read_later | set(self._outputs))) - self._halves.keys())

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for `inputs`, both in the file's order."""
        values = {str(index): value for index, value in zip(self._inputs, inputs, strict=True)}
        for file_part in self._parts:
            if file_part.writes:
                self._compute(file_part, values)
            for step in file_part.own_steps:
                for name in step.inputs:
                    if name and name not in values:
                        values[name] = self._constant_array(int(name))
                step.run(values)
        return [values[str(index)] for index in self._outputs]

    def _compute(self, file_part: TflitePart, values: dict[str, Array]) -> None:
        """Run the operators of a part in LiteRT, and add its results to `values`."""
        if file_part.interpreter is None:
            graph = self._model.subgraphs[0]
            whole_graph = graph.operators, graph.inputs, graph.outputs, self._model.signatureDefs
            graph.operators, graph.inputs, graph.outputs = (
                file_part.operators,
                file_part.reads,
                file_part.writes,
            )
            self._model.signatureDefs = None
            file_part.interpreter = self._open(packed(self._model))
            graph.operators, graph.inputs, graph.outputs, self._model.signatureDefs = whole_graph
        interpreter = file_part.interpreter
        for entry, index in zip(interpreter.get_input_details(), file_part.reads, strict=True):
            if list(entry["shape"]) != list(values[str(index)].shape):
                interpreter.resize_tensor_input(entry["index"], values[str(index)].shape)
        interpreter.allocate_tensors()
        for entry, index in zip(interpreter.get_input_details(), file_part.reads, strict=True):
            interpreter.set_tensor(entry["index"], values[str(index)])
        interpreter.invoke()
        for entry, index in zip(interpreter.get_output_details(), file_part.writes, strict=True):
            values[str(index)] = elements_of(interpreter, entry["index"])

    def _constant_array(self, index: int) -> Array:
        """The array of a constant."""
        if index in self._halves:
            return self._constant_array(indices(self._halves[index].inputs)[0]).astype(np.float32)
        tensor = self._model.subgraphs[0].tensors[index]
        names: Mapping[int, str] = {
            code: name for name, code in vars(self._schema.TensorType).items() if name[0].isupper()
        }
        data = bytes(bytearray(self._model.buffers[tensor.buffer].data))
        return np.frombuffer(data, np.dtype(names[tensor.type].lower())).reshape(indices(tensor.shape))


def tflite_parts(path: Path, content: bytes, open_interpreter: OpenInterpreter) -> TfliteParts | None:
    """The parts of a file, `content`, which errors call `path`; None if it has no custom operators."""
    own_operators = known_operators()
    model = tflite.Model.GetRootAsModel(content, 0)
    graphs = [model.Subgraphs(number) for number in range(model.SubgraphsLength())]
    operators = [graph.Operators(index) for graph in graphs for index in range(graph.OperatorsLength())]
    if not any(custom_name(model, operator) in own_operators for operator in operators):
        return None
    return TfliteParts(path, content, open_interpreter)
