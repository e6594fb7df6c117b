"""Finds the writes of single rows that TensorFlow's converter spells as slices and a concatenation.

A list that a loop fills, such as the results of a Keras layer RNN, becomes a tensor with a row for each
element. The converter writes element i as CONCATENATION(SLICE(rows, 0, i), element, SLICE(rows, i + 1, -1)):
the slices have sizes of the run, and every iteration copies all rows. DYNAMIC_UPDATE_SLICE writes the row
alone, in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln.frontend.tflite.files import Kinds, indices


def replace_row_writes(schema: Any, kinds: Kinds, graph: Any) -> None:
    """Replace the writes of rows in `graph`, of the model of `kinds`, and remove what nothing reads then."""
    _RowWrites(schema, kinds, graph).replace()


class _RowWrites:
    def __init__(self, schema: Any, kinds: Kinds, graph: Any) -> None:
        self._schema, self._kinds, self._graph = schema, kinds, graph
        self._made_by = {index: op for op in graph.operators for index in indices(op.outputs)}

    def replace(self) -> None:
        operators, has_writes = [], False
        for op in self._graph.operators:
            write = self._write(op)
            operators += [op] if write is None else write
            has_writes |= write is not None
        if has_writes:
            self._graph.operators = self._read(operators)

    def _read(self, operators: Sequence[Any]) -> list[Any]:
        """The operators whose results are outputs of the graph, or are read by one of them."""
        read, kept = set(indices(self._graph.outputs)), []
        for op in reversed(operators):
            if not indices(op.outputs) or read & set(indices(op.outputs)):
                read |= set(indices(op.inputs))
                kept.append(op)
        return kept[::-1]

    def _write(self, op: Any) -> list[Any] | None:
        """The operators that write a row in place of the concatenation `op`; None for any other operator."""
        if self._kinds.of(op) != "CONCATENATION" or len(indices(op.inputs)) != 3:
            return None
        if op.builtinOptions.axis != 0 or op.builtinOptions.fusedActivationFunction:
            return None
        before, row, after = indices(op.inputs)
        head, tail = self._slice(before), self._slice(after)
        if head is None or tail is None or head[0] != tail[0]:
            return None
        rows, begin, size = head
        _, place_after, rest = tail
        if not self._are(begin, 0) or not self._are(rest, -1):
            return None
        place, following = self._first(size, -1), self._first(place_after, 0)
        if place is None or following is None or not self._is_next(following[0], place[0]):
            return None
        shape, row_shape = (indices(self._graph.tensors[index].shape) for index in (rows, row))
        if row_shape != [1, *shape[1:]]:
            return None
        result = indices(op.outputs)[0]
        self._graph.tensors[result].shape = list(shape)
        self._graph.tensors[result].shapeSignature = self._graph.tensors[rows].shapeSignature
        if len(shape) == 1:
            return [self._kinds.operator("DYNAMIC_UPDATE_SLICE", [rows, row, place[0]], result)]
        begin_of_row, zeros = self._tensor(following[-1], [len(shape)]), following[-1]
        update = self._kinds.operator("DYNAMIC_UPDATE_SLICE", [rows, row, begin_of_row], result)
        joined = self._kinds.operator("CONCATENATION", [place[0], zeros], begin_of_row)
        joined.builtinOptionsType = self._schema.BuiltinOptions.ConcatenationOptions
        joined.builtinOptions = self._schema.ConcatenationOptionsT()
        return [joined, update]

    def _slice(self, index: int) -> list[int] | None:
        """The inputs of the SLICE that makes tensor `index`: data, begin and size."""
        op = self._made_by.get(index)
        return indices(op.inputs) if op is not None and self._kinds.of(op) == "SLICE" else None

    def _first(self, index: int, others: int) -> list[int] | None:
        """The tensors that make the list `index`: one number, and a constant of `others`.

        The first alone is the list of a tensor of one axis.
        """
        op = self._made_by.get(index)
        if op is None or self._kinds.of(op) != "CONCATENATION":
            return [index] if indices(self._graph.tensors[index].shape) == [1] else None
        parts = indices(op.inputs)
        if len(parts) != 2 or indices(self._graph.tensors[parts[0]].shape) != [1]:
            return None
        return parts if self._are(parts[1], others) else None

    def _is_next(self, following: int, place: int) -> bool:
        """Whether the number in tensor `following` is one more than that in tensor `place`."""
        sum_ = self._made_by.get(self._number(following))
        if sum_ is None or self._kinds.of(sum_) != "ADD" or sum_.builtinOptions.fusedActivationFunction:
            return False
        one, other = sorted(indices(sum_.inputs), key=lambda index: not self._are(index, 1))
        return self._are(one, 1) and self._number(other) == self._number(place)

    def _number(self, index: int) -> int:
        """The tensor that `index` has its number from, through reshapes."""
        op = self._made_by.get(index)
        return (
            self._number(indices(op.inputs)[0])
            if op is not None and self._kinds.of(op) == "RESHAPE"
            else index
        )

    def _are(self, index: int, number: int) -> bool:
        """Whether tensor `index` is a constant whose elements are all `number`."""
        values = self._kinds.constant(self._graph.tensors[index])
        return values is not None and bool((values == number).all())

    def _tensor(self, like: int, shape: list[int]) -> int:
        """A new tensor of the type of tensor `like`."""
        tensor = self._schema.TensorT()
        tensor.type, tensor.shape = self._graph.tensors[like].type, shape
        tensor.name = f"row_write{len(self._graph.tensors)}"
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1
