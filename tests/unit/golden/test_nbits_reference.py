"""Products with weights of 4 bits, which ONNX Runtime may compute with rounded activations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from kiln.golden.reference import open_reference
from onnx import TensorProto, helper, numpy_helper

DEPTH, COLUMNS, BLOCK = 64, 16, 32


def model(path: Path, *, outside: bool) -> np.ndarray:
    """One MatMulNBits with `accuracy_level` 4; returns its matrix. `outside`: data are in another file."""
    generator = np.random.default_rng(3)
    levels = generator.integers(0, 16, (COLUMNS, DEPTH // BLOCK, BLOCK)).astype(np.uint8)
    scales = generator.uniform(0.01, 0.1, (COLUMNS, DEPTH // BLOCK)).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=DEPTH, N=COLUMNS, bits=4,
        block_size=BLOCK, accuracy_level=4,
    )  # fmt: skip
    value, floats = helper.make_tensor_value_info, TensorProto.FLOAT
    packed = levels[..., ::2] | (levels[..., 1::2] << 4)
    graph = helper.make_graph(
        [node], "net", [value("x", floats, [2, DEPTH])], [value("y", floats, [2, COLUMNS])],
        [numpy_helper.from_array(packed, "w"), numpy_helper.from_array(scales, "s")],
    )  # fmt: skip
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(
        helper.make_model(graph, opset_imports=domains, ir_version=10), str(path), location="weights.bin",
        save_as_external_data=outside, size_threshold=0,
    )  # fmt: skip
    real = (levels.astype(np.float32) - 8) * scales[..., None]
    return real.reshape(COLUMNS, DEPTH).T


@pytest.mark.parametrize("outside", [False, True])
def test_the_reference_computes_with_floats(tmp_path: Path, outside: bool) -> None:
    """With activations of 8 bits it is 1 % off, on CPUs whose kernels use them."""
    matrix = model(tmp_path / "net.onnx", outside=outside)
    assert (tmp_path / "weights.bin").exists() == outside
    x = np.random.default_rng(4).normal(size=(2, DEPTH)).astype(np.float32)
    got = open_reference(tmp_path / "net.onnx").run([x])[0]
    np.testing.assert_allclose(got, x @ matrix, rtol=1e-4, atol=1e-5)
