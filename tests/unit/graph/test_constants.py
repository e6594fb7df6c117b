"""Simple operators of constants, computed by NumPy as TVM's own kernels compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from kiln.graph.constants import fold_constants, fold_levels, fold_simple_constants
from relaxed import Array, const, module, operators, run_by_tvm
from tvm import relax

op = relax.op
RNG = np.random.default_rng(5)
LEVELS = const(RNG.integers(-128, 128, (3, 4)), "int8")
BIAS = const(RNG.integers(-(2**30), 2**30, 4), "int32")
VALUE = const(RNG.normal(size=(3, 4)))

CASES: dict[str, Any] = {
    "axis": lambda: op.dequantize(LEVELS, const([0.1, 0.2, 0.7]), const([1, -2, 3], "int8"), axis=0),
    "one_scale": lambda: op.dequantize(LEVELS, const(0.3), const(-4, "int8")),
    "bias": lambda: op.dequantize(BIAS, const(1e-7), const(0, "int32")),
    "chain": lambda: op.multiply(op.add(op.reshape(VALUE, [4, 3]), const(0.1)), op.permute_dims(VALUE)),
    "types": lambda: op.astype(op.subtract(op.astype(LEVELS, "int32"), const(7, "int32")), "float32"),
    "axes": lambda: op.squeeze(op.expand_dims(VALUE, [0, 2]), [2]),
    "limits": lambda: op.astype(op.clip(LEVELS, -7, 7), "float32"),
    "roots": lambda: op.sqrt(VALUE),
    "rows": lambda: op.squeeze(op.take(VALUE, const([2], "int64"), -2, "fast"), [0]),
    "elements": lambda: op.astype(op.take(BIAS, const([[3, 0]], "int32"), mode="fast"), "float32"),
    "negative_indices": lambda: op.astype(
        op.where(op.less(BIAS, const(0, "int32")), op.add(BIAS, const(9, "int32")), BIAS), "float32"
    ),
    "comparisons": lambda: op.where(
        op.logical_or(
            op.logical_and(op.greater(VALUE, const(0.5)), op.not_equal(LEVELS, const(3, "int8"))),
            op.logical_not(op.greater_equal(VALUE, const(-0.5))),
        ),
        op.where(
            op.logical_or(op.less_equal(VALUE, const(0.1)), op.equal(LEVELS, const(2, "int8"))), VALUE, VALUE
        ),
        const(np.nan),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left_to_compute(name: str) -> None:
    mod = module([((1,), "float32")], lambda x: op.add(CASES[name](), x))
    changed = fold_simple_constants(mod)
    x: Array = np.zeros(1, "f4")
    (want,), (got,) = run_by_tvm(mod, [x]), run_by_tvm(changed, [x])
    np.testing.assert_array_equal(got, want)
    assert operators(relax.transform.DeadCodeElimination()(changed)) == ["add"]


def test_weights_clipped_to_fewer_bits_are_constants_of_integers() -> None:
    """As training with rounding writes them: a product reads the levels, which stay dequantised."""
    one, zero = const(0.1), const(0, "int8")

    def build(x: Any) -> Any:
        levels = op.permute_dims(op.clip(LEVELS, -7, 7))
        return op.matmul(op.dequantize(x, one, zero), op.dequantize(levels, one, zero))

    changed = fold_levels(module([((2, 4), "int8")], build))
    assert operators(changed) == ["dequantize", "dequantize", "matmul"]


STAY: dict[str, Any] = {
    "data": lambda x: op.multiply(op.reshape(x, [4, 1]), const(2.0)),
    "halves": lambda x: op.add(op.astype(op.astype(VALUE, "float16"), "float32"), x),
    "out_of_range": lambda x: op.add(op.take(VALUE, const([3], "int32"), 0, "clip"), x),
    "to_integers": lambda x: op.add(op.astype(op.astype(VALUE, "int32"), "float32"), x),
}


@pytest.mark.parametrize("name", STAY)
def test_other_operators_stay(name: str) -> None:
    mod = module([((4,), "float32")], STAY[name])
    assert operators(fold_simple_constants(mod)) == operators(mod)


FOLDED: dict[str, Any] = {
    "call": lambda x: op.add(op.exp(VALUE), x),
    "chain": lambda x: op.add(op.floor(op.exp(VALUE)), x),
    "tuple": lambda x: op.add(op.concat([VALUE, VALUE]), x),
    "item": lambda x: op.add(op.split(VALUE, 2, axis=1)[1], x),
    "shape": lambda x: op.add(op.broadcast_to(VALUE, [2, 3, 4]), x),
    "no_argument": lambda x: op.add(op.nn.softmax(op.zeros([3, 4], "float32")), x),
}


@pytest.mark.parametrize("name", FOLDED)
def test_what_is_left_is_folded_by_tvm(name: str) -> None:
    mod = module([((1,), "float32")], FOLDED[name])
    folded = relax.transform.DeadCodeElimination()(fold_constants(mod))
    want = relax.transform.DeadCodeElimination()(relax.transform.FoldConstant()(mod))
    assert operators(folded) == operators(want)
    assert operators(folded) == ["add"]
    [got], [whole] = run_by_tvm(folded, [np.ones(1, "f4")]), run_by_tvm(want, [np.ones(1, "f4")])
    np.testing.assert_array_equal(got, whole)


def test_nothing_is_legalised_where_nothing_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant that a variable holds takes the place of the variable all the same."""
    mod = module([((3, 4), "float32")], lambda x: op.exp(op.add(x, VALUE)))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([3, 4], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(op.exp(op.add(x, builder.emit(VALUE))))
        builder.emit_func_output(out)
    held = builder.get()
    monkeypatch.setattr(relax.transform, "FoldConstant", None)
    changed = [relax.transform.DeadCodeElimination()(fold_constants(one)) for one in (held, mod)]
    assert operators(changed[0]) == operators(changed[1]) == ["add", "exp"]
    tvm.ir.assert_structural_equal(changed[0], changed[1])


def test_operators_that_tvm_cannot_legalise_stay_beside_those_that_are_folded() -> None:
    """TVM has no rule for samples of an NHWC image, of data or of constants."""
    image, grid = const(RNG.normal(size=(1, 2, 2, 1))), const(RNG.normal(size=(1, 2, 1, 1)))

    def samples(x: Any) -> Any:
        sampled = [op.image.grid_sample(each, grid, layout="NHWC") for each in (x, image)]
        return op.add(op.add(*sampled), op.exp(VALUE))

    folded = fold_constants(module([((1, 2, 2, 1), "float32")], samples))
    names = operators(relax.transform.DeadCodeElimination()(folded))
    assert sorted(names) == ["add", "add", "image.grid_sample", "image.grid_sample"]


@pytest.mark.parametrize("reduction", ["update", "add", "mul", "min", "max"])
def test_a_scatter_of_fewer_lines_than_the_data_has(reduction: str) -> None:
    """TVM reads the indices as if they were as long as the data along the other axes."""
    data, updates = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(2, 2, 3))
    places = RNG.permuted(np.arange(12) % 5 - 1).reshape(2, 2, 3)
    want = data.astype("float32")
    for at in np.ndindex(places.shape):
        target = (at[0], places[at], at[2])
        if 0 <= places[at] < 3:
            old, new = want[target], np.float32(updates[at])
            want[target] = {
                "update": new, "add": old + new, "mul": old * new, "min": min(old, new), "max": max(old, new)
            }[reduction]  # fmt: skip

    def scatters(dtype: str) -> Any:
        given = const(data, dtype), const(places, "int64"), const(updates, dtype)
        scattered = op.scatter_elements(*given, axis=1, reduction=reduction)
        return module([((1,), dtype)], lambda x: op.add(scattered, x))

    folded = relax.transform.DeadCodeElimination()(fold_simple_constants(scatters("float32")))
    assert operators(folded) == ["add"]
    [got] = run_by_tvm(folded, [np.zeros(1, "f4")])
    np.testing.assert_array_equal(got, want)
    left = relax.transform.DeadCodeElimination()(fold_constants(scatters("float16")))
    assert sorted(operators(left)) == ["add", "scatter_elements"]


def test_a_scatter_of_a_dynamic_number_of_lines_stays() -> None:
    lines = tvm.tirx.Var("n", "int64")
    zeros, index = const(np.zeros((4, 3))), relax.Var("i", relax.TensorType([lines, 3], "int64"))
    updates = relax.Var("u", relax.TensorType([lines, 3], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [index, updates]):
        with builder.dataflow():
            made = builder.emit_output(op.scatter_elements(zeros, index, updates, 1, "add"))
        builder.emit_func_output(made)
    assert operators(fold_constants(builder.get())) == ["scatter_elements"]


def test_divisions_by_a_zero_that_constants_give_are_folded() -> None:
    """TVM has an error for a divisor of 0; this one is known when the product before it is folded."""

    def divided(x: Any) -> Any:
        zero = op.sum(op.multiply(VALUE, const(0.0)))
        return op.add(op.add(op.divide(op.sum(VALUE), zero), op.floor_mod(VALUE, zero)), x)

    folded = relax.transform.DeadCodeElimination()(fold_constants(module([((1,), "float32")], divided)))
    assert operators(folded) == ["add"]
    [got] = run_by_tvm(folded, [np.zeros(1, "f4")])
    assert np.isnan(got).all()
