"""QuantisedMoves: operators that move values work on integers, and results stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.graph.quantised_moves import quantised_moves
from relaxed import calls, const, module, operators, run_by_tvm
from tvm import relax

op = relax.op
RNG = np.random.default_rng(2)


def _real(x: Any, scale: float = 0.5, zero: int = 3) -> Any:
    return op.dequantize(x, const(scale), const(zero, "int8"), out_dtype="float32")


def _levels(x: Any, scale: float = 0.5, zero: int = 3) -> Any:
    return op.quantize(x, const(scale), const(zero, "int8"), out_dtype="int8")


def _same(shape: tuple[int, ...], body: Any) -> list[str]:
    """Assert that the pass changes no bit of the result; return the operators that are left."""
    mod = module([(shape, "int8")], body)
    changed = quantised_moves(mod)
    x = RNG.integers(-128, 128, shape).astype("int8")
    (want,), (got,) = run_by_tvm(mod, [x]), run_by_tvm(changed, [x])
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    return operators(changed)


MOVES: dict[str, Any] = {
    "reshape": lambda x: op.reshape(x, [2, 48]),
    "permute_dims": lambda x: op.permute_dims(x, [0, 2, 3, 1]),
    "strided_slice": lambda x: op.strided_slice(x, [1], [1], [3]),
    "max_pool2d": lambda x: op.nn.max_pool2d(x, [2, 2], [1, 1], [0, 1, 1, 0]),
    "resize2d": lambda x: op.image.resize2d(x, (8, 6), layout="NCHW", method="nearest_neighbor"),
    "relu": op.nn.relu,
    "max_pool1d": lambda x: op.nn.max_pool1d(op.reshape(x, [2, 4, 12]), 3, 2, [1, 1]),
    "max_pool3d": lambda x: op.nn.max_pool3d(op.expand_dims(x, 1), (2, 2, 2), (1, 2, 1)),
    "pad": lambda x: op.nn.pad(x, [0, 0, 1, 0, 0, 2, 0, 0]),
    "pad_by_a_level": lambda x: op.nn.pad(x, [0, 0, 0, 0, 1, 0, 0, 1], "constant", -2.5),
    "pad_by_any_value": lambda x: op.nn.pad(x, [0, 0] * 3 + [1, 0], "constant", 0.8),
    "pad_beyond_all_levels": lambda x: op.nn.pad(x, [0, 0] * 3 + [1, 0], "constant", 1e9),
    "flip": lambda x: op.flip(x, 2),
    "gather_nd": lambda x: op.gather_nd(x, const([[1, 0], [0, 3]], "int64")),
    "gather_elements": lambda x: op.gather_elements(x, const([[[[2, 0]]]], "int64"), 3),
    "take": lambda x: op.take(x, const(np.array([2, 0]), "int64"), 1),
    "two": lambda x: op.nn.relu(op.permute_dims(x, [0, 2, 3, 1])),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_between_equal_scales_are_of_integers(name: str) -> None:
    left = _same((2, 4, 4, 3), lambda x: _levels(MOVES[name](_real(x))))
    assert not {"quantize", "dequantize"} & set(left)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_of_extremes_are_those_of_integers(name: str) -> None:
    assert "dequantize" not in _same((2, 3, 5), lambda x: getattr(op, name)(_real(x), 1))


def test_the_greatest_elements_are_those_of_integers() -> None:
    def body(x: Any) -> Any:
        found = op.topk(_real(x), 2, 1, "both", True, "int32")
        return op.concat([op.astype(_levels(found[0]), "int32"), found[1]], 0)

    assert not {"quantize", "dequantize"} & set(operators(quantised_moves(module([((2, 5), "int8")], body))))


def test_a_concat_of_several_scales_is_requantised_part_by_part() -> None:
    def body(x: Any) -> Any:
        return _levels(op.concat([_real(x), _real(op.negative(x), 0.25, -4)], 1))

    left = _same((2, 4), body)
    assert left.count("quantize") == left.count("dequantize") == 1


def test_a_tensor_that_others_read_as_floats_is_not_quantised_early() -> None:
    def body(x: Any) -> Any:
        wide = op.reshape(op.exp(_real(x)), [8])
        return op.concat([op.astype(_levels(wide), "float32"), wide], 0)

    assert _same((2, 4), body).count("quantize") == 1


def test_embeddings_stay_integers() -> None:
    table = RNG.integers(-128, 128, (9, 6)).astype("int8")
    mod = module([((2, 3), "int64")], lambda x: op.exp(op.take(_real(const(table, "int8")), x, 0)))
    look_up = next(call for call in calls(quantised_moves(mod)) if call.op.name == "relax.take")
    assert str(look_up.ty.dtype) == "int8"


STAY: dict[str, Any] = {
    "a_padding_that_is_no_level": lambda x: op.nn.pad(_real(x), [0, 0, 1, 0], "constant", 0.3),
    "a_padding_that_no_level_reaches": lambda x: op.nn.pad(_real(x), [0, 0, 1, 0], "constant", 100.0),
    "another_scale": lambda x: _levels(op.reshape(_real(x), [8]), 0.25),
    "each_channel_its_own": lambda x: op.reshape(
        op.dequantize(x, const([0.1, 0.2]), const([0, 0], "int8"), axis=0, out_dtype="float32"), [8]
    ),
}


@pytest.mark.parametrize("name", STAY)
def test_other_conversions_stay(name: str) -> None:
    assert "dequantize" in _same((2, 4), STAY[name])


def test_the_parts_of_a_split_stay_integers() -> None:
    """Parts of a split that are quantised one by one, as gates of a recurrent layer, stay integers."""

    def body(x: Any) -> Any:
        parts = op.split(_real(x), 2, 1)
        return op.concat([_levels(parts[0]), _levels(op.nn.relu(parts[1]))], 0)

    left = _same((2, 4), body)
    assert left.count("quantize") == left.count("dequantize") == 0
