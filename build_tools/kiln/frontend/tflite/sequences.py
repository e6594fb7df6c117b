"""Runs a layer over a sequence, for recurrent_ops.py and the LSTMs; activations of recurrent operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tflite
from tvm import relax

from kiln.frontend import loops
from kiln.frontend.tflite.operands import TfliteOperands, const

op = relax.op
Step = Callable[[Any, Sequence[Any]], tuple[Any, Sequence[Any]]]
# Sequences of at most so many steps are unrolled; longer ones are loops of the plan.
MOST_UNROLLED = 4
# Activations that the operator `recurrent` has, by their code: name, alpha and beta.
ACTIVATIONS = {0: ("affine", 1.0, 0.0), 1: ("relu", 0.0, 0.0), 4: ("tanh", 0.0, 0.0)}


def swapped(node: TfliteOperands, x: Any, is_swapped: bool) -> Any:
    """The first two axes of `x` exchanged, where `is_swapped`."""
    return node.bind(op.permute_dims(x, [1, 0, 2])) if is_swapped else x


def activated(node: TfliteOperands, x: Any, code: int) -> Any:
    """`x` after the activation `code`. Raises ValueError for one that recurrent operators do not have."""
    kinds = tflite.ActivationFunctionType
    functions: dict[int, Callable[[Any], Any]] = {
        kinds.NONE: lambda value: value,
        kinds.RELU: op.nn.relu,
        kinds.RELU_N1_TO_1: lambda value: op.clip(value, -1, 1),
        kinds.RELU6: lambda value: op.clip(value, 0, 6),
        kinds.TANH: op.tanh,
    }
    if code not in functions:
        raise ValueError("its activation is SIGN_BIT, allowed: none, RELU, RELU_N1_TO_1, RELU6, TANH")
    return x if code == kinds.NONE else node.bind(functions[code](x))


def run_steps(
    node: TfliteOperands, sequence: Any, states: Sequence[Any], step: Step, backwards: bool = False
) -> tuple[Any, list[Any]]:  # fmt: skip
    """The results of `step` for all rows of `sequence` [steps, …], [steps, …], and the last states.

    step: from a row of `sequence` and the states to a result and the next states, of the same types.
    backwards: from the last row to the first.
    """
    count = int(sequence.ty.shape[0])
    if count > MOST_UNROLLED:
        return _loop(node, sequence, states, step, backwards)
    results: list[Any] = [None] * count
    current_states = list(states)
    for step_index in reversed(range(count)) if backwards else range(count):
        row = node.bind(op.strided_slice(sequence, [0], [step_index], [step_index + 1]))
        results[step_index], next_states = step(node.bind(op.squeeze(row, [0])), current_states)
        current_states = list(next_states)
    return node.bind(op.stack(results, axis=0)), current_states


def _loop(
    node: TfliteOperands, sequence: Any, states: Sequence[Any], step: Step, backwards: bool
) -> tuple[Any, list[Any]]:  # fmt: skip
    count, number = int(sequence.ty.shape[0]), node.next_loop()
    zero, limit = const(np.zeros(1), "int64"), const(np.full(1, count), "int64")
    begin_result = node.bind(loops.begin(number, [const(np.ones(1), "bool"), zero, *states], []))
    counter = node.bind(relax.TupleGetItem(begin_result, 1))
    current_states = [node.bind(relax.TupleGetItem(begin_result, 2 + index)) for index in range(len(states))]
    step_index = counter
    if backwards:
        step_index = node.bind(op.subtract(const(np.full(1, count - 1), "int64"), counter))
    row = node.bind(op.squeeze(node.bind(op.take(sequence, step_index, 0, mode="clip")), [0]))
    result, next_states = step(row, current_states)
    next_count = node.bind(op.add(counter, const(1, "int64")))
    continues = node.bind(op.less(next_count, limit))
    rows = node.bind(loops.row(result, counter, count, 0, backwards))
    end_result = node.bind(loops.end(number, [continues, next_count, *next_states], [rows]))
    results = [node.bind(relax.TupleGetItem(end_result, 2 + index)) for index in range(len(states) + 1)]
    return results[-1], results[:-1]
