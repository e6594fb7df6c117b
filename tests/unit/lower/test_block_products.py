"""BlockProducts: quantised rows by weights with scales of blocks, as products of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.lower.block_products import block_products
from relaxed import Array, calls, const, module, operators, run_by_tvm
from tvm import relax

op = relax.op
RNG = np.random.default_rng(6)
DEPTH, COLUMNS = 64, 24


def _weights(rows: int, columns: int = 1, bits: int = 4) -> Array:
    """Levels times scales of blocks of `rows` by `columns`."""
    levels = RNG.integers(-(1 << (bits - 1)), 1 << (bits - 1), (DEPTH, COLUMNS)).astype("f4")
    scales = RNG.uniform(0.01, 0.1, (DEPTH // rows, COLUMNS // columns)).astype("f4")
    return np.asarray(levels * scales.repeat(rows, 0).repeat(columns, 1))


def _static(x: Any, dtype: str, zero: int) -> Any:
    scale, point = const(0.02), const(zero, dtype)
    quantised = op.quantize(x, scale, point, -1, dtype)
    return op.dequantize(quantised, scale, point, -1, "float32")


def _of_rows(x: Any, dtype: str, zero: int, of_floats: bool = False) -> Any:
    """Each row dequantised by a scale and a zero point of its own; of_floats: subtracted in float32."""
    scale = op.add(op.max(op.abs(x), -1, keepdims=True), const(0.1))
    scale = op.divide(scale, const(100.0))
    point = op.astype(op.add(op.multiply(scale, const(10.0)), const(float(zero))), dtype)
    levels = op.astype(op.clip(op.round(op.divide(x, scale)), 0, 120), dtype)
    if of_floats:
        return op.multiply(op.subtract(op.astype(levels, "float32"), op.astype(point, "float32")), scale)
    return op.multiply(
        op.astype(op.subtract(op.astype(levels, "int32"), op.astype(point, "int32")), "float32"), scale
    )


FORMS: dict[str, Any] = {
    "static": _static,
    "rows": _of_rows,
    "rows of floats": lambda *x: _of_rows(*x, of_floats=True),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "zero"), [("int8", -5), ("uint8", 117)])
def test_integers_are_multiplied(form: str, dtype: str, zero: int) -> None:
    weights = _weights(32)
    body = lambda x: op.matmul(FORMS[form](x, dtype, zero), const(weights))  # noqa: E731
    mod = module([((3, 5, DEPTH), "float32")], body)
    changed = block_products(mod, narrow=True)
    (product,) = (call for call in calls(changed) if str(call.op.name) == "relax.matmul")
    assert [str(operand.ty.dtype) for operand in product.args] == ["int8", "float32"]
    x = RNG.normal(size=(3, 5, DEPTH)).astype("f4")
    (want,), (got,) = run_by_tvm(mod, [x]), run_by_tvm(changed, [x])
    np.testing.assert_allclose(got, want, 1e-5, 2e-5)
    # Levels of uint8 that have just been quantised are quantised to int8 instead.
    assert dtype == "int8" or form != "static" or operators(changed).count("quantize") == 1


@pytest.mark.parametrize(
    "weights",
    [_weights(1, COLUMNS), RNG.normal(size=(DEPTH, COLUMNS)).astype("f4"), _weights(32)[None].repeat(2, 0)],
    ids=["a scale for each row", "no levels", "batched"],
)
def test_other_weights_stay(weights: Array) -> None:
    mod = module([((2, 4, DEPTH), "float32")], lambda x: op.matmul(_static(x, "int8", 3), const(weights)))
    (product,) = (
        call for call in calls(block_products(mod, narrow=True)) if str(call.op.name) == "relax.matmul"
    )
    assert str(product.args[0].ty.dtype) == "float32"


@pytest.mark.parametrize(("bits", "block"), [(8, 32), (4, 64)])
def test_levels_of_sixteen_bits(bits: int, block: int) -> None:
    weights = _weights(block, bits=bits)
    mod = module([((4, DEPTH), "float32")], lambda x: op.matmul(_static(x, "int16", 0), const(weights)))
    (product,) = (
        call for call in calls(block_products(mod, narrow=True)) if str(call.op.name) == "relax.matmul"
    )
    assert str(product.args[0].ty.dtype) == "int16"


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_bytes_that_fit_four_bits_are_stored_so(dtype: str) -> None:
    weights = RNG.integers(-8, 8, (DEPTH, COLUMNS)).astype("i1")
    mod = module([((2, 3, DEPTH), dtype)], lambda x: op.matmul(x, const(weights, "int8"), out_dtype="int32"))
    changed = block_products(mod, narrow=True)
    (product,) = (call for call in calls(changed) if str(call.op.name) == "relax.matmul")
    assert str(product.args[1].ty.dtype) == "float32"
    x = RNG.integers(0, 128, (2, 3, DEPTH)).astype(dtype)
    (want,), (got,) = run_by_tvm(mod, [x]), run_by_tvm(changed, [x])
    assert (got == want).all()
    (kept,) = calls(block_products(mod, narrow=False))
    assert str(kept.args[1].ty.dtype) == "int8"
