"""Pools whose windows are larger than the tensor, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from kiln.golden.reference import open_reference
from onnx.reference import ReferenceEvaluator
from symbolic import imported, runner

from .test_onnx_ops import check, normal, write

POOLS = """
    a = AveragePool<kernel_shape=[1280,1280], strides=[1280,1280], ceil_mode=1>(image)
    b = MaxPool<kernel_shape=[1280,3], strides=[1280,1], ceil_mode=1>(image)
    c = AveragePool<kernel_shape=[1281,3], strides=[1,2], pads=[600,0,675,1]>(image)
    d = LpPool<kernel_shape=[1280,1280], strides=[1280,1280], ceil_mode=1, p=2>(image)
    f = AveragePool<kernel_shape=[1280,1280], strides=[1280,1280], ceil_mode=1, count_include_pad=1>(image)
    e = AveragePool<kernel_shape=[8,8], strides=[3,3], pads=[1,1,1,1], count_include_pad=1>(image)
"""


def test_windows_are_cut_to_the_tensor(tmp_path: Path) -> None:
    results = ", ".join(f"float[{name}0,{name}1,{name}2,{name}3] {name}" for name in "abcdef")
    text = f"g (float[1,2,6,7] image) => ({results}) {{{POOLS}}}"
    found = check(write(tmp_path / "m.onnx", text, 18), normal(1, 2, 6, 7))
    assert "1280" not in found and "1281" not in found, "loops over elements that are not there"


def test_one_window_over_an_open_size_is_a_reduction(tmp_path: Path) -> None:
    window = "kernel_shape=[64,64], strides=[64,64], ceil_mode=1"
    nodes = f"y = AveragePool<{window}, count_include_pad=1>(x) z = MaxPool<{window}>(x)"
    text = f"g (float[1,2,h,w] x) => (float[1,2,p,q] y, float[1,2,r,s] z) {{{nodes}}}"
    path = write(tmp_path / "m.onnx", text)
    for most, reduced in ((64, True), (65, False)):
        module, _ = imported(path, {"h": (1, most), "w": (3, 40)})
        assert ("R.mean" in module.script()) == ("R.max(" in module.script()) == reduced


def test_count_includes_the_elements_around_the_tensor(tmp_path: Path) -> None:
    text = (
        "g (float[1,1,2,2] x) => (float[1,1,1,1] y) "
        "{ y = AveragePool<kernel_shape=[4,4], pads=[1,1,1,1], count_include_pad=1>(x) }"
    )
    check(write(tmp_path / "m.onnx", text), np.ones((1, 1, 2, 2), np.float32))


@pytest.mark.parametrize("sizes", ["6,9", "h,w"])
def test_windows_further_apart_than_they_are_long(tmp_path: Path, sizes: str) -> None:
    """The pads of ONNX's formula are negative then: the first elements are in no window.

    ONNX Runtime 1.31 refuses such a MaxPool; of one element it is the LpPool of positive numbers.
    """
    upper, lower = (f'strides=[3,4], auto_pad: string="SAME_{end}"' for end in ("UPPER", "LOWER"))
    lp, most = (f"{name}<kernel_shape=[1,1]" for name in ("LpPool", "MaxPool"))
    results = [f"float[?,?,?,?] {name}" for name in "abcd"]
    text = f"""g (float[1,2,{sizes}] x) => ({", ".join(results)}) {{
      a = {lp}, {upper}>(x) b = {lp}, {lower}>(x) c = LpPool<kernel_shape=[2,5], p=1, {upper}>(x)
      d = AveragePool<kernel_shape=[3,1], ceil_mode=1, {lower}>(x) }}"""
    path = write(tmp_path / "m.onnx", text, 20)
    text = text.replace(lp, most).replace(
        "c = LpPool", "e, i = MaxPool<kernel_shape=[2,1], " + upper + ">(x) c = LpPool"
    )
    text = text.replace("=> (", "=> (float[?,?,?,?] e, int64[?,?,?,?] i, ")
    module, _ = imported(
        write(tmp_path / "own.onnx", text, 20), {"h": (2, 9), "w": (2, 9)} if "h" in sizes else {}
    )
    run, reference = runner(module), open_reference(path)
    for h, w in ((6, 9), (7, 6), (2, 8)) if "h" in sizes else ((6, 9),):
        x = np.abs(normal(1, 2, h, w))
        maxima, places, *found = run([x], {"h": h, "w": w} if "h" in sizes else {})
        np.testing.assert_array_equal(x.reshape(-1)[places], maxima)
        for output, expected in zip(found, reference.run([x]), strict=True):
            np.testing.assert_allclose(output, expected, 1e-5, 1e-6)


def test_constants_of_unequal_pads(tmp_path: Path) -> None:
    """ONNX 1.23's reference implementation makes such a pool one element shorter."""
    text = (
        "g (float[1,1,3,11] x) => (float[1,1,3,11] y) { p = MaxPool<kernel_shape=[2,3], pads=[0,1,0,0]>(c) "
        "y = Add(p, x) }"
    )
    path = write(tmp_path / "m.onnx", text, c=normal(1, 1, 4, 12))
    check(path, normal(1, 1, 3, 11))
    with pytest.raises(TypeError, match="Issues with types"):  # else _MISCOMPUTED of predict.py can go
        ReferenceEvaluator(onnx.load(path)).run(None, {"x": normal(1, 1, 3, 11)})
