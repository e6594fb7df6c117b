"""Nodes whose sizes ONNX infers otherwise than ONNX Runtime computes them, and what is computed from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from .test_onnx_ops import check, write

# Windows that would begin after the tensor, also with an axis whose last window ends there, or in a chain.
POOLS = """
    a = MaxPool<kernel_shape=[1], strides=[2], ceil_mode=1>(row)
    b = AveragePool<kernel_shape=[2], strides=[3], pads=[1,1], ceil_mode=1>(row)
    c = MaxPool<kernel_shape=[1,3], strides=[2,2], ceil_mode=1>(image)
    d = MaxPool<kernel_shape=[1,1], strides=[3,3], ceil_mode=1>(c)
    h = AveragePool<kernel_shape=[1,3], strides=[2,2], ceil_mode=1, count_include_pad=1>(image)
    e = LpPool<kernel_shape=[2,1], strides=[4,2], ceil_mode=1, p=1>(image)
    i = LpPool<kernel_shape=[1,3], strides=[2,3], ceil_mode=1, p=1, auto_pad: string="SAME_LOWER">(image)
    j = MaxPool<kernel_shape=[1,2], strides=[5,3], ceil_mode=1, auto_pad: string="VALID">(image)
    length = Shape(d)
"""
# 0.7 is less than 7/10 in float64, and its product with 10 is 7 in float32.
RESIZES = """
    scales = Constant<value = float[4] {1, 1, 0.7, 0.7}>()
    a = Resize<mode="nearest">(square, , scales)
    b = Resize<mode="linear", coordinate_transformation_mode="asymmetric">(square, , scales)
    c = MaxPool<kernel_shape=[3,3]>(a)
    d = Relu(b)
    length = Shape(a)
"""


@pytest.mark.parametrize("opset", [18, 20, 22])
def test_pools_without_a_window_behind_the_tensor(tmp_path: Path, opset: int) -> None:
    results = ["float[s0,s1,s2] a", "float[s3,s4,s5] b"]
    results += [f"float[{name}0,{name}1,{name}2,{name}3] {name}" for name in "dehij"]
    text = (
        f"g (float[1,2,5] row, float[1,2,6,8] image) => ({', '.join(results)}, int64[4] length) {{{POOLS}}}"
    )
    write(tmp_path / "m.onnx", text, opset)
    random = np.random.default_rng(0)
    given = [random.standard_normal(shape).astype("float32") for shape in ((1, 2, 5), (1, 2, 6, 8))]
    check(tmp_path / "m.onnx", *given)


@pytest.mark.parametrize("opset", [11, 13, 19])
def test_resizes_by_scales_within_rounding_of_a_size(tmp_path: Path, opset: int) -> None:
    results = [f"float[{name}0,{name}1,{name}2,{name}3] {name}" for name in "cd"]
    text = f"g (float[1,2,10,10] square) => ({', '.join(results)}, int64[4] length) {{{RESIZES}}}"
    if opset < 13:
        text = text.replace("square, , scales", "square, none, scales")
        text = text.replace("scales = ", "none = Constant<value = float[0] {}>()\n scales = ", 1)
    write(tmp_path / "m.onnx", text, opset)
    inferred = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "m.onnx"), data_prop=True)
    a = next(value for value in inferred.graph.value_info if value.name == "a")
    assert a.type.tensor_type.shape.dim[2].dim_value == 6, (
        "ONNX infers the sizes of ONNX Runtime: Resize needs no repair any more"
    )
    check(tmp_path / "m.onnx", np.arange(200, dtype="float32").reshape(1, 2, 10, 10))
