"""Reasons for `cannot` are the peer's own messages; an output that is not a number is an error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.worker import largest_error
from benchmarks.workers import with_reason

PRINTED = "loading\n\x1b[1mlayer Tensor.to not exists or registered\x1b[0m\nI0000 done\n\n"


def test_a_peer_that_printed_why_is_quoted() -> None:
    want = "ncnn cannot load it: layer Tensor.to not exists or registered"
    assert with_reason("ncnn cannot load it:", PRINTED) == want
    assert with_reason("TypeError: 3", PRINTED) == "TypeError: 3"
    assert with_reason("no:", "") == "no: nothing is said"
    assert with_reason("no:", "a\nb  c\n") == "no: b c"


def test_no_numbers_are_not_a_small_error(tmp_path: Path) -> None:
    want = np.array([1.0, -2.0], np.float32)
    want.tofile(tmp_path / "out")
    interface = {
        "outputs": [{"name": "y", "dtype": "float32", "shape": [2], "file": str(tmp_path / "out")}],
    }
    assert largest_error([want + np.float32(0.5)], interface) == pytest.approx(0.25)
    with pytest.raises(RuntimeError, match="y: what comes out is no number"):
        largest_error([np.array([1.0, np.nan], np.float32)], interface)
