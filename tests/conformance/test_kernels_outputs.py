"""Outputs that are an input, a constant, another output, a scalar or a view; and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.errors import KilnError
from tvm import relax

from .lowered import Array, Compiled, const, module, runnable

op = relax.op
X = np.random.default_rng(0).uniform(-3, 3, (3, 17)).astype("f4")
ONES = np.ones((2, 3), "f4")
RELU = np.maximum(X, 0)

OUTPUTS: dict[str, tuple[Callable[[Any], Any], list[Array]]] = {
    "input": (lambda x: x, [X]),
    "input_beside_its_function": (lambda x: [x, op.nn.relu(x)], [X, RELU]),
    "input_twice": (lambda x: [x, x], [X, X]),
    "input_reshaped": (lambda x: op.reshape(x, [17, 3]), [X.reshape(17, 3)]),
    "constant": (lambda x: [op.nn.relu(x), const(ONES)], [RELU, ONES]),
    "constant_only": (lambda x: const(ONES), [ONES]),
    "scalar_constant": (lambda x: [op.nn.relu(x), const(2.0)], [RELU, np.array(2, "f4")]),
    "reshaped": (lambda x: op.reshape(op.nn.relu(x), [17, 3]), [RELU.reshape(17, 3)]),
    "scalar": (op.max, [np.array(X.max())]),
    "scalar_and_its_use": (
        lambda x: [op.max(x), op.subtract(x, op.max(x))], [np.array(X.max()), X - X.max()]
    ),
    "zeros": (lambda x: [op.zeros([2, 2], "float32"), op.nn.relu(x)], [np.zeros((2, 2), "f4"), RELU]),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTPUTS)
def test_output(name: str, tmp_path: Path) -> None:
    make, want = OUTPUTS[name]
    compiled = Compiled(module([(X.shape, "float32")], make), runnable("x86_64"), tmp_path).load()
    results = compiled.run([X])
    assert len(results) == len(want)
    for result, expected in zip(results, want, strict=True):
        assert result.shape == expected.shape
        assert result.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_the_same_tensor_twice(tmp_path: Path) -> None:
    def body(x: Any) -> list[Any]:
        value = relax.BlockBuilder.current().emit(op.nn.relu(x))
        return [value, value, op.reshape(value, [51])]

    compiled = Compiled(module([(X.shape, "float32")], body), runnable("x86_64"), tmp_path).load()
    assert len(set(compiled.result.outputs)) == 3
    for result in compiled.run([X]):
        assert (result.reshape(X.shape) == RELU).all()


def test_an_output_that_a_later_step_reads(tmp_path: Path) -> None:
    """An output that a later step reads keeps its memory, although its last reader could overwrite it."""

    def body(x: Any) -> list[Any]:
        builder = relax.BlockBuilder.current()
        first = builder.emit(op.nn.softmax(x))
        second = builder.emit(op.nn.softmax(op.add(first, const(1.0))))
        return [first, op.nn.softmax(op.add(second, first))]

    compiled = Compiled(module([(X.shape, "float32")], body), runnable("x86_64"), tmp_path).load()
    first = compiled.run([X])[0]
    assert abs(first.sum(axis=1) - 1).max() < 1e-6


def test_scalar_inputs(tmp_path: Path) -> None:
    mod = module([((), "float32"), ((3, 17), "float32")], lambda a, x: [op.add(a, const(1.0)), op.add(a, x)])
    compiled = Compiled(mod, runnable("x86_64"), tmp_path).load()
    a = np.array(0.5, "f4")
    got = compiled.run([a, X])
    assert got[0] == 1.5
    assert (got[1] == X + a).all()


def test_an_input_that_nothing_reads(tmp_path: Path) -> None:
    mod = module([((4,), "float32"), ((3, 17), "float32")], lambda unused, x: op.nn.relu(x))
    compiled = Compiled(mod, runnable("x86_64"), tmp_path).load()
    assert (compiled.run([np.zeros(4, "f4"), X])[0] == RELU).all()


REFUSED: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "sort": ("float32", op.sort, "sort"),
    "unique": ("float32", op.unique, "unique"),
    "library": ("float32", lambda x: op.atan2(x, x), "atan2.*atan2f"),
    "double": ("float64", lambda x: op.nn.relu(op.atan2(x, x)), "atan2.*atan2.*cast its operands to float32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compiled_is_named(name: str, tmp_path: Path) -> None:
    dtype, make, words = REFUSED[name]
    mod = module([(X.shape, dtype)], make)
    with pytest.raises(KilnError) as caught:
        Compiled(mod, runnable("x86_64"), tmp_path)
    message = str(caught.value)
    assert re.search(words, message), message
    assert message.startswith("m: ") and "cannot be compiled" in message


def test_an_empty_tensor_is_computed_by_doing_nothing(tmp_path: Path) -> None:
    mod = module([((0, 3), "float32")], lambda x: op.add(x, const(1.0)))
    (result,) = Compiled(mod, runnable("x86_64"), tmp_path).load().separate([np.zeros((0, 3), "f4")])
    assert result.shape == (0, 3)
