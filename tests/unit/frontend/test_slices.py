"""ONNX's Slice, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .test_onnx_ops import check, normal, write


@pytest.mark.parametrize(
    "limits", ["axes = [0], starts = [0], ends = [2]", "starts = [1, -2], ends = [99, -1]"]
)
def test_slices_of_old_opsets_have_attributes(tmp_path: Path, limits: str) -> None:
    text = f"g (float[4,3] x) => (float[r,c] y) {{ y = Slice<{limits}>(x) }}"
    check(write(tmp_path / "m.onnx", text, opset=9), normal(4, 3))


def test_slices_backwards_from_before_the_axis_have_its_first_element(tmp_path: Path) -> None:
    limits = {
        name: np.array([value], np.int64) for name, value in {"start": -8, "end": -9, "step": -2}.items()
    }
    text = "g (float[4,5] x) => (float[r,c] y) { y = Slice(x, start, end, axis, step) }"
    check(write(tmp_path / "m.onnx", text, **limits, axis=np.array([1], np.int64)), normal(4, 5))
