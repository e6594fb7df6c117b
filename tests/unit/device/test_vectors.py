"""Vector files: written tensors are read back, and a file that was cut short is refused."""

from __future__ import annotations

import numpy as np
import pytest
from kiln.device.vector_files import decode, encode
from kiln.errors import KilnError

VECTORS = [
    [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7, np.int64)],
    [np.zeros((0, 4), np.float32), np.array([True, False])],
]


def test_round_trip() -> None:
    first = [[vector[0]] for vector in VECTORS]
    assert [v[0].shape for v in decode(encode(first), ["float32"])] == [(2, 3), (0, 4)]
    ((matrix, scalar),) = decode(encode(VECTORS[:1]), ["float32", "int64"])
    np.testing.assert_array_equal(matrix, VECTORS[0][0])
    assert scalar.shape == () and scalar == 7


def test_layout_is_the_one_of_harness_h() -> None:
    content = encode([[np.array([[1, 2]], np.int16)]])
    assert content[:8] == b"KILNVEC1"
    assert [int(n) for n in np.frombuffer(content[8:24], "<u4")] == [1, 1, 2, 0]
    assert [int(n) for n in np.frombuffer(content[24:48], "<i8")] == [4, 1, 2]
    assert content[48:] == b"\1\0\2\0"


def test_big_endian_arrays_are_turned() -> None:
    assert encode([[np.array([1], ">i4")]]) == encode([[np.array([1], "<i4")]])


@pytest.mark.parametrize("cut", [0, 7, 20, 40, 55])
def test_cut_short(cut: int) -> None:
    content = encode(VECTORS[:1])
    with pytest.raises(KilnError, match="damaged"):
        decode(content[:cut], ["float32", "int64"])


def test_other_model() -> None:
    with pytest.raises(KilnError, match="damaged"):
        decode(encode(VECTORS[:1]), ["float32"])
