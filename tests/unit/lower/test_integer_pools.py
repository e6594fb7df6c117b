"""IntegerPools: average pools of quantised tensors read integers, and results stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.lower.integer_pools import integer_pools
from relaxed import const, module, operators, run_by_tvm
from tvm import relax

op = relax.op
RNG = np.random.default_rng(5)
SHAPE = (2, 7, 8, 3)
SHAPES = {"lines": (2, 11, 9), "volumes": (1, 5, 6, 7, 4)}
POOLS_OF_FLOATS = ("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")


def _real(x: Any, zero: int = 3) -> Any:
    return op.dequantize(x, const(0.25), const(zero, str(x.ty.dtype)), out_dtype="float32")


def _pool(x: Any, *, size: tuple[int, int] = (3, 2), **attributes: Any) -> Any:
    return op.nn.avg_pool2d(x, size, layout="NHWC", **attributes)


def _pool_lines(x: Any, layout: str = "NCW") -> Any:
    return op.nn.avg_pool1d(x, 3, 2, padding=1, ceil_mode=True, count_include_pad=True, layout=layout)


def _pool_volumes(x: Any, layout: str = "NCDHW") -> Any:
    padding = (1, 0, 1, 0, 1, 1)
    return op.nn.avg_pool3d(x, (2, 3, 3), (2, 1, 3), padding=padding, ceil_mode=True, layout=layout)


def _same(dtype: str, body: Any, shape: tuple[int, ...]) -> list[str]:
    """Assert that the pass changes results by rounding alone; return the operators that are left."""
    mod = module([(shape, dtype)], body)
    changed = integer_pools(mod)
    limits = np.iinfo(dtype)
    x = RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)
    (want,), (got,) = run_by_tvm(mod, [x]), run_by_tvm(changed, [x])
    np.testing.assert_allclose(got, want, 1e-6, 1e-6)
    return operators(changed)


POOLS: dict[str, Any] = {
    "plain": lambda x: _pool(_real(x)),
    "strided": lambda x: _pool(_real(x), strides=(2, 3)),
    "padding_does_not_count": lambda x: _pool(_real(x), padding=(1, 0, 2, 1)),
    "padding_counts": lambda x: _pool(_real(x), padding=(1, 0, 2, 1), count_include_pad=True),
    "transposed": lambda x: _pool(op.permute_dims(_real(x), [0, 2, 1, 3])),
    "reshaped_and_transposed": lambda x: op.nn.avg_pool1d(
        op.permute_dims(op.reshape(_real(x), [2, 56, 3]), [0, 2, 1]), 3, 2, layout="NCW"
    ),
    "unsigned": lambda x: _pool(_real(x, 200), padding=(1, 1, 1, 1)),
    "converted": lambda x: _pool(op.astype(x, "float32"), padding=(1, 1, 1, 1)),
    "rounded_up": lambda x: _pool(_real(x), strides=(2, 3), ceil_mode=True),
    "rounded_up_to_no_window_after_the_tensor": lambda x: _pool(
        _real(x), size=(1, 2), strides=(4, 3), ceil_mode=True
    ),
    "rounded_up_and_padded": lambda x: _pool(
        _real(x), size=(3, 3), strides=2, padding=(1, 1, 1, 1), ceil_mode=True, count_include_pad=True
    ),
    "gaps": lambda x: _pool(_real(x), dilation=(2, 1), padding=(2, 0, 1, 1)),
    "gaps_and_counted": lambda x: _pool(_real(x), dilation=2, padding=(2, 0, 1, 1), count_include_pad=True),
    "gaps_rounded_up": lambda x: _pool(_real(x), dilation=2, strides=2, padding=(1, 1, 1, 1), ceil_mode=True),
    "channels_first": lambda x: op.nn.avg_pool2d(_real(x), (2, 3), (2, 1), padding=1, layout="NCHW"),
    "lines": lambda x: _pool_lines(_real(x)),
    "lines_of_channels": lambda x: _pool_lines(_real(x), layout="NWC"),
    "volumes": lambda x: _pool_volumes(_real(x)),
    "volumes_of_channels": lambda x: _pool_volumes(_real(x), layout="NDHWC"),
    "of_16_bits": lambda x: _pool(_real(x)),
    "converted_of_16_bits": lambda x: _pool(op.astype(x, "float32"), padding=(1, 1, 1, 1)),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_reads_integers(name: str) -> None:
    dtype = "uint8" if name == "unsigned" else "int16" if name.endswith("16_bits") else "int8"
    left = _same(dtype, POOLS[name], SHAPES.get(name.split("_")[0], SHAPE))
    assert not {"dequantize", "astype", *POOLS_OF_FLOATS} & set(left)


STAY: dict[str, Any] = {
    "a_scale_for_each_channel": lambda x: _pool(
        op.dequantize(x, const([0.1, 0.2, 0.3]), const([0, 1, 2], "int8"), axis=3, out_dtype="float32")
    ),
}


def test_windows_of_16_bits_whose_sum_no_float_has_exactly_stay() -> None:
    mod = module([((1, 40, 40, 2), "int16")], lambda x: _pool(op.astype(x, "float32"), size=(32, 32)))
    assert "nn.avg_pool2d" in operators(integer_pools(mod))


@pytest.mark.parametrize("name", STAY)
def test_other_pools_stay(name: str) -> None:
    assert "nn.avg_pool2d" in operators(integer_pools(module([(SHAPE, "int8")], STAY[name])))


def test_converted_integers_stay_where_fixed_point_rounds_them() -> None:
    assert "nn.avg_pool2d" in operators(
        integer_pools(module([(SHAPE, "int8")], POOLS["converted"]), raw=False)
    )
