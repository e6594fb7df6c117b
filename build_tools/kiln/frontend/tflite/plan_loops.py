"""Converters of the custom operators that stand for loops and branches of the plan; see control.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from kiln.frontend import branches, loops
from kiln.frontend.tflite.operands import TfliteOperands, const

op = relax.op


class PlanLoops:
    """The loops and branches of the graph that `converter` converts; inner loops end before outer ones."""

    def __init__(self, converter: Any) -> None:
        self._converter = converter
        self._open: list[tuple[int, Any]] = []  # numbers and counters of the loops that have begun

    def begin(self, op: Any) -> Any:
        """The carried values in an iteration, from the first condition and the first values."""
        node = TfliteOperands(self._converter, op)
        outer = [counter for _, counter in self._open]
        number = node.next_loop()
        first = [self._condition(node), const(np.zeros(1), "int64"), *self._values(node)]
        begin_result = node.bind(loops.begin(number, first, outer))
        self._open.append((number, node.bind(relax.TupleGetItem(begin_result, 1))))
        return self._results(node, begin_result)

    def end(self, op: Any) -> Any:
        """The carried values after the loop, from the condition and the values of the next iteration.

        Raises ValueError for a value that changes its type or shape.
        """
        node = TfliteOperands(self._converter, op)
        number, counter = self._open.pop()
        next_count = node.bind(relax.op.add(counter, const(1, "int64")))
        next_values = [self._condition(node), next_count, *self._values(node)]
        return self._results(node, node.bind(loops.end(number, next_values, [])))

    def choose(self, op: Any) -> Any:
        """The results of one of two branches; each branch has one value for each result.

        Raises ValueError for values that are not quantised as the results are.
        """
        node = TfliteOperands(self._converter, op)
        count = len(node.outputs)
        values = [node.bind(value) for value in self._values(node)]
        for position, tensor in enumerate(node.inputs[1:]):
            result = node.outputs[position % count]
            both = tensor.qnn_params is not None and result.qnn_params is not None
            if both and not self._converter.has_same_qnn_params(tensor, result):
                raise ValueError("the results of a branch and of the operator have different quantisation")
        choice = node.bind(branches.choose(self._condition(node), values[:count], values[count:]))
        if count == 1:
            return choice
        return relax.Tuple([node.bind(relax.TupleGetItem(choice, index)) for index in range(count)])

    def _condition(self, node: TfliteOperands) -> Any:
        return node.bind(op.reshape(node.raw(0), [1]))

    def _values(self, node: TfliteOperands) -> list[Any]:
        return [node.raw(index) for index in range(1, len(node.inputs))]

    def _results(self, node: TfliteOperands, loop_result: Any) -> Any:
        results = [
            node.bind(relax.TupleGetItem(loop_result, 2 + index)) for index in range(len(node.outputs))
        ]
        return results[0] if len(results) == 1 else relax.Tuple(results)
