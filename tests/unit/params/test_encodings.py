"""Encodings of parameters: found whatever the block, never where values are lost."""

from __future__ import annotations

import numpy as np
import pytest
from conformance import compact_cases
from kiln.arrays import Array
from kiln.params.encodings import find, levels, restored

ALL = 1 << 20


def _error(value: Array) -> float:
    """Greatest difference of a tensor restored from its encoding, relative to its greatest magnitude."""
    encoding = find(value)
    assert encoding is not None and not encoding.is_float
    made = restored(levels(value, encoding), encoding).reshape(value.shape)
    size = np.abs(value).max()
    return float(np.abs(made - value).max() / size)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("length", [16, 24, 32, 100, 256, ALL])
def test_blocks_of_any_length_along_both_axes(bits: int, zero: bool, length: int) -> None:
    value = compact_cases.levels((300, 48), bits, (length, 1), zero)
    for matrix in (value, np.ascontiguousarray(value.T)):
        encoding = find(matrix)
        assert encoding is not None and encoding.kind == f"int{bits}" and encoding.has_zero == zero
        block = max(encoding.rows, encoding.columns)
        assert block == min(length, max(matrix.shape))
        assert _error(matrix) < 3e-7


def test_an_element_that_fills_up_a_last_block_does_not_move_its_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """300 rows in blocks of 256: the last block repeats its first element, whose rounding counts often."""
    with monkeypatch.context() as patch:
        patch.setattr(compact_cases, "_generator", lambda *seed: np.random.default_rng((48, *map(int, seed))))
        value = compact_cases.levels((300, 48), 4, (256, 1), True)
    for matrix in (value, np.ascontiguousarray(value.T)):
        encoding = find(matrix)
        assert (
            encoding is not None and encoding.kind == "int4" and max(encoding.rows, encoding.columns) == 256
        )
        assert _error(matrix) < 3e-7


def test_one_scale_for_all_and_a_scale_for_each_index_of_the_last_axis() -> None:
    assert find(compact_cases.levels((3, 3, 8, 16), 8, (ALL, ALL))).rows == 72  # type: ignore[union-attr]
    encoding = find(compact_cases.levels((3, 3, 8, 16), 8, (ALL, 1), half_scales=True))
    assert encoding is not None and (encoding.rows, encoding.columns, encoding.half_scales) == (72, 1, True)


def test_a_folded_factor_for_each_channel_leaves_levels() -> None:
    value = compact_cases.levels((64, 32), 8, (ALL, 1)) * np.linspace(0.3, 1.7, 32, dtype="f4")
    assert find(value).kind == "int8" and _error(value) < 3e-7  # type: ignore[union-attr]


def test_blocks_of_zeros_and_of_one_value() -> None:
    value = compact_cases.levels((64, 32), 4, (32, 1))
    value[:32, 3] = 0
    value[32:, 4] = value[32, 4]
    encoding = find(value)
    assert encoding is not None and encoding.kind == "int4" and _error(value) < 3e-7
    # Kernels subtract zero points from sums, whose rounding a scale of 0 leaves out of the result.
    assert levels(value, encoding).scales[0, 3] == 0


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_numbers_of_16_bits(kind: str) -> None:
    value = (compact_cases.half if kind == "float16" else compact_cases.brain)((40, 50))
    assert find(value).kind == kind  # type: ignore[union-attr]


def test_other_numbers_stay() -> None:
    rng = np.random.default_rng(4)
    plain = rng.standard_normal((64, 64)).astype("f4")
    assert find(plain) is None
    nearly = compact_cases.half((64, 64))
    nearly[50, 3] = 1.0001
    assert find(nearly) is None
    almost = compact_cases.levels((64, 64), 4, (32, 1))
    almost[50, 3] *= 1.003
    assert find(almost) is None
    sparse = np.where(rng.uniform(size=(64, 64)) < 0.1, plain, 0).astype("f4")
    assert find(sparse) is None


def test_numbers_that_are_not_finite_and_small_tensors_stay() -> None:
    value = compact_cases.half((40, 50))
    value[3, 4] = np.inf
    assert find(value) is None
    assert find(compact_cases.half((4, 4))) is None
    assert find(np.zeros((64, 64), "i4")) is None
