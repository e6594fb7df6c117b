"""Transposes around products, and reshapes between dense layers, go; what something else reads stays."""

from __future__ import annotations

from typing import Any

import numpy as np
from kiln.graph.divisions import divisions_by_constants, divisions_by_square_roots, divisions_by_zero
from kiln.graph.pipeline import clean
from kiln.graph.products import products_in_place
from kiln.graph.reshapes import sink_reshapes
from kiln.graph.split_dense import split_dense
from relaxed import calls, const, module, operators, run_by_tvm
from tvm import relax

op = relax.op


def _same(before: Any, after: Any, shapes: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(2)
    inputs = [rng.uniform(-1, 1, shape).astype("f4") for shape in shapes]
    for a, b in zip(run_by_tvm(before, inputs), run_by_tvm(after, inputs), strict=True):
        assert np.allclose(a, b, atol=1e-5)


def test_transposes_of_operands_and_result_become_one_product() -> None:
    shapes = [(2, 5, 3, 4), (2, 7, 3, 4)]

    def body(q: Any, k: Any) -> Any:
        product = op.matmul(op.permute_dims(q, [0, 2, 1, 3]), op.permute_dims(k, [0, 2, 3, 1]))
        return op.permute_dims(product, [0, 2, 1, 3])

    mod = module([(shape, "float32") for shape in shapes], body)
    changed = products_in_place(mod)
    assert operators(changed) == ["einsum"]
    assert str(calls(changed)[0].attrs.subscripts) == "acbe,adbe->acbd"
    _same(mod, changed, shapes)


def test_a_product_that_something_else_reads_is_computed_once() -> None:
    shapes = [(5, 3), (7, 3)]

    def body(a: Any, b: Any) -> list[Any]:
        product = op.matmul(a, op.permute_dims(b, [1, 0]))
        return [product, op.permute_dims(product, [1, 0])]

    mod = clean(module([(shape, "float32") for shape in shapes], body))
    changed = products_in_place(mod)
    assert operators(changed) == ["einsum", "permute_dims"]
    _same(mod, changed, shapes)


def test_broadcast_batches_and_dense_layers_are_left_alone() -> None:
    def body(a: Any, b: Any) -> list[Any]:
        wide = op.matmul(a, op.permute_dims(b, [0, 2, 1]))
        return [wide, op.matmul(op.permute_dims(b, [0, 2, 1]), const(np.ones((6, 2))))]

    mod = module([((1, 5, 3), "float32"), ((4, 6, 3), "float32")], body)
    assert operators(products_in_place(mod)) == operators(mod)


def test_a_reshape_moves_behind_bias_activation_and_residual() -> None:
    shapes = [(2, 3, 4), (2, 3, 5)]

    def body(x: Any, residual: Any) -> Any:
        weights, again = const(np.ones((4, 5))), const(np.ones((5, 6)))
        dense = op.reshape(op.matmul(op.reshape(x, [6, 4]), weights), [2, 3, 5])
        dense = op.add(op.nn.relu(op.add(dense, const(np.ones((1, 1, 5))))), residual)
        norm = op.nn.layer_norm(dense, const(np.ones(5)), const(np.zeros(5)), [-1])
        return op.reshape(op.matmul(op.reshape(norm, [6, 5]), again), [2, 3, 6])

    mod = module([(shape, "float32") for shape in shapes], body)
    changed = clean(sink_reshapes(mod))
    fused = ["matmul", "add", "nn.relu", "add", "nn.layer_norm", "matmul", "reshape"]
    names = operators(changed)
    first = names.index("matmul")
    assert [name for name in names[:first] if name != "reshape"] == []
    assert [name for name in names[first:] if name != "reshape"] == fused[:-1]
    assert names.count("reshape") <= 3  # of x, of the residual, and of the result
    _same(mod, changed, shapes)


def test_a_reshape_that_cuts_the_last_axis_stays() -> None:
    def body(x: Any) -> Any:
        return op.multiply(op.reshape(x, [2, 3, 4]), const(np.arange(4)))

    mod = module([((2, 12), "float32")], body)
    assert operators(clean(sink_reshapes(mod))) == ["reshape", "multiply"]


def test_a_sum_reads_bytes_behind_a_reshape() -> None:
    """As TFLite's mean of a signal: 32-bit integers of all its elements were stored before the reshape."""

    def body(x: Any) -> Any:
        return op.sum(op.astype(op.reshape(op.maximum(x, const(0, "int8")), [1, 9, 4]), "int32"), [1])

    mod = module([((1, 1, 9, 4), "int8")], body)
    assert operators(clean(sink_reshapes(mod))) == ["maximum", "reshape", "astype", "sum"]


def test_divisions_by_constants() -> None:
    def body(x: Any) -> list[Any]:
        divisors = [3.0, np.linspace(1, 2, 4), 0.0, np.inf, 2.0**-140]
        return [op.divide(x, const(divisor)) for divisor in divisors] + [op.divide(const(1.0), x)]

    mod = module([((3, 4), "float32")], body)
    changed = divisions_by_constants(mod)
    assert operators(changed) == ["multiply", "multiply", *["divide"] * 4]
    _same(module([((3, 4), "float32")], lambda x: body(x)[:2]), divisions_by_constants(
        module([((3, 4), "float32")], lambda x: body(x)[:2])
    ), [(3, 4)])  # fmt: skip


def test_divisions_whose_quotient_is_rounded_stay() -> None:
    """Directly, and behind elementwise operators and moves; 41 * (1 / 41) is less than 1."""
    by = const(41.0)

    def body(x: Any) -> list[Any]:
        scale = op.where(op.equal(op.max(x), const(0.0)), const(1.0), op.divide(op.max(x), by))
        return [
            op.floor(op.divide(x, by)),
            op.astype(op.divide(x, by), "int64"),
            op.equal(op.divide(x, by), const(1.0)),
            op.floor(op.add(op.reshape(op.divide(x, by), [123]), const(0.5))),
            op.round(op.divide(x, scale)),
        ]

    mod = module([((123,), "float32")], body)
    changed = divisions_by_constants(mod)
    assert "multiply" not in operators(changed)
    x = np.arange(123).astype("f4")
    for want, got in zip(run_by_tvm(mod, [x]), run_by_tvm(changed, [x]), strict=True):
        np.testing.assert_array_equal(got, want)

    def smooth(x: Any) -> list[Any]:
        levels = op.quantize(op.divide(x, by), const(0.1), const(3, "int8"), 0, "int8")
        widened = op.sum(op.astype(levels, "int32"), [0])  # a cast of integers is exact
        return [op.divide(x, by), op.floor(op.sum(op.divide(x, by), [0])), widened]

    assert "divide" not in operators(divisions_by_constants(module([((123,), "float32")], smooth)))


def test_divisions_by_square_roots() -> None:
    """By those of fewer elements, and not by others; 0 and infinity stay what they are."""

    def body(x: Any) -> list[Any]:
        row, same = op.sqrt(op.max(op.abs(x), [1], keepdims=True)), op.sqrt(op.abs(x))
        return [op.divide(x, row), op.divide(x, same), op.divide(x, op.sum(x, [1], keepdims=True))]

    mod = module([((5, 4), "float32")], body)
    changed = divisions_by_square_roots(mod)
    assert operators(changed).count("divide") == 3  # one of them is the inverse
    assert operators(changed).count("multiply") == 1
    x = np.random.default_rng(4).normal(size=(5, 4)).astype("f4")
    x[1:3], x[3] = 0, np.inf
    x[4] = 1e-45
    with np.errstate(all="ignore"):
        for want, got in zip(run_by_tvm(mod, [x]), run_by_tvm(changed, [x]), strict=True):
            np.testing.assert_allclose(got, want, rtol=3e-7)


def test_divisions_by_zero() -> None:
    def body(x: Any) -> list[Any]:
        by = [getattr(op, name) for name in ("divide", "floor_divide", "mod", "floor_mod")]
        floats = [one(x, const(zero)) for one in by for zero in (0.0, -0.0)]
        return floats + [one(op.astype(x, "int32"), const(0, "int32")) for one in by]

    x = np.float32([0, 1, -2, np.inf, -np.inf, np.nan])
    outputs = run_by_tvm(divisions_by_zero(module([((6,), "float32")], body)), [x])
    with np.errstate(all="ignore"):
        for index, ours in enumerate(outputs[:8]):
            divisor = np.float32(-0.0 if index % 2 else 0.0)
            np.testing.assert_array_equal(ours, x / divisor if index < 4 else x * np.nan)
    for ours in outputs[8:]:
        np.testing.assert_array_equal(ours, np.zeros(6, np.int32))


def test_a_dense_layer_that_is_cut_apart_becomes_one_for_each_part() -> None:
    shapes = [(2, 5, 6)]
    weights = np.random.default_rng(1).uniform(-1, 1, (6, 12))

    def body(x: Any) -> list[Any]:
        dense = op.reshape(op.matmul(op.reshape(x, [10, 6]), const(weights)), [2, 5, 12])
        parts = op.split(op.add(dense, const(np.arange(12))), [2, 8], -1)
        return [parts[0], op.nn.relu(parts[1]), parts[2]]

    mod = clean(module([(shape, "float32") for shape in shapes], body))
    changed = clean(split_dense(mod))
    assert "split" not in operators(changed) and operators(changed).count("matmul") == 3
    _same(mod, changed, shapes)


def test_one_index_of_an_axis_made_of_the_columns() -> None:
    """Queries, keys and values as (3, batch, head, position, feature)."""
    shapes = [(2, 5, 6)]
    weights = np.random.default_rng(1).uniform(-1, 1, (6, 24))

    def body(x: Any) -> list[Any]:
        cut = op.permute_dims(op.reshape(op.matmul(x, const(weights)), [2, 5, 3, 2, 4]), [2, 0, 3, 1, 4])
        return [op.take(cut, const(i, "int64"), 0) for i in range(3)]

    mod = clean(module([(shape, "float32") for shape in shapes], body))
    changed = clean(split_dense(mod))
    assert "take" not in operators(changed) and operators(changed).count("matmul") == 3
    _same(mod, changed, shapes)


def test_a_dense_layer_that_is_also_read_whole_stays() -> None:
    def body(x: Any) -> list[Any]:
        dense = op.matmul(x, const(np.ones((6, 4))))
        parts = op.split(dense, 2, -1)
        return [dense, parts[0], parts[1]]

    mod = clean(module([((5, 6), "float32")], body))
    assert operators(clean(split_dense(mod))) == ["matmul", "split"]
