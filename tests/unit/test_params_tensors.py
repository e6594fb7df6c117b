"""Tensors in a file: every type, and what is damaged."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import safetensors
from kiln.params import tensors

TYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64", ml_dtypes.bfloat16,
]  # fmt: skip


def test_every_type_comes_back() -> None:
    given = {str(np.dtype(kind)): np.arange(6).reshape(2, 3).astype(kind).T for kind in TYPES}
    given["none"] = np.zeros((0, 4), np.float32)
    given["scalar"] = np.array(3.5, np.float32)
    found = tensors.load(tensors.save(given))
    assert set(found) == set(given)
    for name, value in found.items():
        assert value.dtype == given[name].dtype and value.shape == given[name].shape, name
        np.testing.assert_array_equal(value, given[name])


def test_damaged_content() -> None:
    content = tensors.save({"a": np.ones(4, np.float32)})
    with pytest.raises(safetensors.SafetensorError):
        tensors.load(content[:-1])
