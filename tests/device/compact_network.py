"""A small network whose weights are in float16, int8 and int4, written as exporters write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(31)
# Bytes of the parameters in float32, and as they are stored (with the scales; blocks of zero points too).
FLOAT_BYTES = 4 * (60 * 64 + 64 * 96 + 96 * 64 + 64 * 48 + 3 * 3 * 8 * 16 + 3 * 3 * 1 * 128)


def _scales(*shape: int) -> Any:
    return RNG.uniform(0.004, 0.012, shape).astype("f4")


def write(path: Path) -> Path:
    """Write the network as an ONNX file: token ids and an image in, scores and an image out."""
    constants = {
        "table": RNG.integers(-128, 128, (60, 64)).astype("i1"),
        "table_scales": 10 * _scales(60, 1),
        "packed": RNG.integers(0, 256, (96, 2, 16)).astype("u1"),
        "packed_scales": _scales(96, 2),
        "w8": RNG.integers(-128, 128, (96, 64)).astype("i1"),
        "w8_scales": _scales(64) / 8,
        "w4": RNG.integers(0, 16, (64, 48)).astype("i1"),
        "w4_scales": _scales(2, 48),
        "w4_zeros": RNG.integers(0, 16, (2, 48)).astype("i1"),
        "kernel": (RNG.standard_normal((16, 8, 3, 3)) / 8).astype("f2"),
        "deep": (RNG.standard_normal((128, 1, 3, 3)) / 3).astype("f2"),
        "wide": (RNG.standard_normal((128, 16, 1, 1)) / 4).astype("f2"),
    }
    node = helper.make_node
    nodes = [
        node("Cast", ["table"], ["table_f"], to=TensorProto.FLOAT),
        node("Mul", ["table_f", "table_scales"], ["table_m"]),
        node("Gather", ["table_m", "ids"], ["x0"]),
        node("MatMulNBits", ["x0", "packed", "packed_scales"], ["x1"], domain="com.microsoft",
             K=64, N=96, bits=4, block_size=32),
        node("Relu", ["x1"], ["x2"]),
        node("DequantizeLinear", ["w8", "w8_scales"], ["w8_f"], axis=1),
        node("MatMul", ["x2", "w8_f"], ["x3"]),
        node("Tanh", ["x3"], ["x4"]),
        node("DequantizeLinear", ["w4", "w4_scales", "w4_zeros"], ["w4_f"], axis=0, block_size=32),
        node("MatMul", ["x4", "w4_f"], ["scores"]),
        *(node("Cast", [name], [f"{name}_f"], to=TensorProto.FLOAT) for name in ("kernel", "wide", "deep")),
        node("Conv", ["image", "kernel_f"], ["i1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Conv", ["i1", "wide_f"], ["i2"]),
        node("Relu", ["i2"], ["i3"]),
        node("Conv", ["i3", "deep_f"], ["out"], group=128, pads=[1, 1, 1, 1]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "compact",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 2]),
         helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 8, 6, 6])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 2, 48]),
         helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 128, 3, 3])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path
