"""Probabilities of classes from those of pairs of classes.

By the second method of Wu, Lin and Weng (2004).

With r[i, j] the probability of class i against class j, the probabilities p minimise the sum over all pairs
of (r[j, i] * p[i] - r[i, j] * p[j])^2. One class after the other is set to its optimum and p is scaled to a
sum of 1, until no condition is violated by more than 0.005 / classes, at most 100 times.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from kiln.frontend.counted.memory import serial
from kiln.frontend.onnx.body import Body
from kiln.frontend.symbols import int64, int64_of

_ROUNDS, _ERROR = 100, 0.005
# Numbers of the scalars: p.Q.p, the iterations left, the change of p[i], the error.
_TOTAL, _LEFT, _STEP, _WORST = range(4)


def coupled(body: Body, pairs: str, classes: int) -> str:
    """The probabilities of all classes, shape (rows, classes), from those of each pair's first class."""
    rows = body.shape(pairs)[0]
    memory = [[int64(classes), int64(classes)], [int64(classes)], [int64(4)]]

    def compute(probabilities: Any) -> Any:
        return te.extern(
            [[int64_of(rows), int64(classes)], *memory], [probabilities],
            lambda i, o: _Coupling(i[0], o, classes).statement(), dtype=["float32"] * 4, name="coupling",
        )  # fmt: skip

    results = body.emit_te(compute, body.tensor(pairs), hint="coupling")
    return body.bind(relax.TupleGetItem(results, 0))


def _number(value: float) -> Any:
    return tirx.const(value, "float32")


class _Memory:
    """A buffer, read and written by indices that are ints or expressions."""

    def __init__(self, buffer: Any, *first: Any) -> None:
        self._buffer, self._first = buffer, first

    def _at(self, index: Any) -> list[Any]:
        indices = [*self._first, *(index if isinstance(index, tuple) else (index,))]
        return [
            int64(index_or_int) if isinstance(index_or_int, int) else index_or_int for index_or_int in indices
        ]

    def __getitem__(self, index: Any) -> Any:
        return tirx.BufferLoad(self._buffer, self._at(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        script.buffer_store(self._buffer, value, self._at(index))


class _Coupling:
    """Writes the statement of the kernel: `pairs` holds the probabilities of pairs, `buffers` the results."""

    def __init__(self, pairs: Any, buffers: Any, classes: int) -> None:
        self.pairs, self.out, self.classes = pairs, buffers[0], classes
        self.q, self.products, self.scalars = (_Memory(buffer) for buffer in buffers[1:])

    def statement(self) -> Any:
        """For each row: the matrix of the quadratic form, and the iterations."""
        with IRBuilder() as ir, script.seq_scope(), serial(self.pairs.shape[0]) as row:
            self.p = _Memory(self.out, row)
            self._form(_Memory(self.pairs, row))
            self.scalars[_LEFT] = _number(_ROUNDS)
            with script.While(self.scalars[_LEFT] > _number(0)):
                self.scalars[_LEFT] = self.scalars[_LEFT] - _number(1)
                self._products()
                with script.If(self.scalars[_WORST] < _number(_ERROR / self.classes)):
                    with script.Then():
                        self.scalars[_LEFT] = _number(0)
                    with script.Else(), serial(self.classes) as class_number:
                        self._improve(class_number)
        return ir.get()

    def _form(self, r: _Memory) -> None:
        """Set p to equal probabilities and Q to the matrix of the sum of squares."""
        for i in range(self.classes):
            self.p[i] = _number(1 / self.classes)
            self.q[i, i] = _number(0)
        for number, (i, j) in enumerate(combinations(range(self.classes), 2)):
            against = _number(1) - r[number]
            self.q[i, i] = self.q[i, i] + against * against
            self.q[j, j] = self.q[j, j] + r[number] * r[number]
            self.q[i, j] = -against * r[number]
            self.q[j, i] = -against * r[number]

    def _products(self) -> None:
        """Store Q p, p Q p, and the greatest error of the conditions of the optimum."""
        self.scalars[_TOTAL], self.scalars[_WORST] = _number(0), _number(0)
        with serial(self.classes) as i:
            self.products[i] = _number(0)
            with serial(self.classes) as j:
                self.products[i] = self.products[i] + self.q[i, j] * self.p[j]
            self.scalars[_TOTAL] = self.scalars[_TOTAL] + self.p[i] * self.products[i]
        with serial(self.classes) as i:
            error = tirx.abs(self.products[i] - self.scalars[_TOTAL])
            self.scalars[_WORST] = tirx.max(self.scalars[_WORST], error)

    def _improve(self, i: Any) -> None:
        """Move p[i] to its optimum, and scale all to a sum of 1."""
        self.scalars[_STEP] = (self.scalars[_TOTAL] - self.products[i]) / self.q[i, i]
        step = self.scalars[_STEP]
        self.p[i] = self.p[i] + step
        total = _number(1) + step
        added = step * (step * self.q[i, i] + _number(2) * self.products[i])
        self.scalars[_TOTAL] = (self.scalars[_TOTAL] + added) / total / total
        with serial(self.classes) as j:
            self.products[j] = (self.products[j] + step * self.q[i, j]) / total
            self.p[j] = self.p[j] / total
