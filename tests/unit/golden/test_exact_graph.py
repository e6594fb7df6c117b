"""Operators that ONNX Runtime computes too coarsely for a reference: 4-bit products, Fourier transforms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from kiln.golden.exact_graph import exact_content
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


def test_experts_with_packed_weights_compute_with_floats() -> None:
    value, floats = helper.make_tensor_value_info, TensorProto.FLOAT
    node = helper.make_node(
        "QMoE", ["x", "r", "w", "s", "", "v", "t"], ["y"], domain="com.microsoft", accuracy_level=4
    )
    given = [value(name, floats, None) for name in ("x", "r", "w", "s", "v", "t")]
    graph = helper.make_graph([node], "net", given, [value("y", floats, None)])
    content = exact_content(Path("net.onnx"), helper.make_model(graph))
    assert content is not None
    assert onnx.load_from_string(content).graph.node[0].attribute[0].i == 1


def test_transforms_are_as_exact_as_float32_allows(tmp_path: Path) -> None:
    """ONNX Runtime's own result of 400 samples in float32 is off by a hundred times as much."""
    samples = np.random.default_rng(0).uniform(-1, 1, (1, 8000)).astype(np.float32)
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"])
    value, floats = helper.make_tensor_value_info, TensorProto.FLOAT
    constants = {"step": np.array(160), "window": np.hanning(400).astype(np.float32)}
    graph = helper.make_graph(
        [node], "net", [value("x", floats, [1, 8000])], [value("y", floats, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    frames = np.lib.stride_tricks.sliding_window_view(samples[0].astype(np.float64), 400)[::160]
    want = np.fft.rfft(frames * constants["window"])
    got = open_reference(path).run([samples])[0]
    assert got.dtype == np.float32 and got.shape == (1, *want.shape, 2)
    assert np.abs(got[0, ..., 0] + 1j * got[0, ..., 1] - want).max() < 4e-6


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_layers_of_types_that_onnx_runtime_lacks(kind: str, gates: int, dtype: str, tmp_path: Path) -> None:
    """As of float32, with the attributes that ONNX's evaluator ignores, lengths and an omitted result."""
    generator, units = np.random.default_rng(2), 3
    shapes = {"w": (1, gates * units, 2), "r": (1, gates * units, units), "b": (1, 2 * gates * units)}
    weights = {name: generator.normal(0, 2, shape).astype("float16") for name, shape in shapes.items()}
    x, found = generator.normal(0, 2, (4, 2, 2)).astype("float16"), []
    for kept in ("float32", dtype):
        real = helper.np_dtype_to_tensor_dtype(np.dtype(kept))
        node = helper.make_node(
            kind, ["x", "w", "r", "b", "n"], ["", "h"], hidden_size=units, clip=0.5, direction="reverse"
        )
        value = helper.make_tensor_value_info
        held = {"n": np.int32([4, 2]), **{name: value.astype(kept) for name, value in weights.items()}}
        graph = helper.make_graph(
            [node], "net", [value("x", real, x.shape)], [value("h", real, [1, 2, units])],
            [numpy_helper.from_array(array, name) for name, array in held.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 14)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "net.onnx")
        reference = open_reference(tmp_path / "net.onnx")
        found += reference.run([x.astype(kept)])
        assert reference.about["name"] == "onnxruntime" and found[-1].dtype == kept
    np.testing.assert_allclose(found[1], found[0].astype(dtype), rtol=1e-3 if dtype == "float16" else 1e-6)
