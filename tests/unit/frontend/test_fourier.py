"""Fourier transforms of known lengths: one matrix for the short ones, two factors for the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.frontend.fourier import transform
from kiln.graph.bindings import constant
from relaxed import calls, module, operators, run_by_tvm
from symbolic import imported
from tflite_files import Node, Tensor, write_graph
from tvm import relax

OP = schema.BuiltinOperator


def made(
    shape: tuple[int, ...], length: int, frequencies: int, inverse: bool = False, dtype: str = "float32"
) -> Any:
    """The module of a transform over the axis of `shape` before the last one."""

    def body(x: Any) -> Any:
        builder = relax.BlockBuilder.current()
        return transform(builder.emit, x, shape[:-2], shape[-2:], length, frequencies, inverse)

    return module([(shape, dtype)], body)


@pytest.mark.parametrize(
    ("shape", "length", "frequencies"),
    [
        ((2, 3, 64, 1), 64, 33),
        ((96, 2), 96, 96),
        ((1, 100, 1), 128, 65),  # zeros after the elements
        ((2, 130, 2), 100, 51),  # elements beyond the length are ignored
        ((1, 67, 1), 67, 34),  # a prime number: one matrix
        ((2, 12, 2), 12, 12),
        ((1, 512, 1), 512, 257),
    ],
)
@pytest.mark.parametrize("inverse", [False, True])
def test_as_numpy(shape: tuple[int, ...], length: int, frequencies: int, inverse: bool) -> None:
    x = np.random.default_rng(1).normal(size=shape).astype("float32")
    numbers = x[..., 0] + (1j * x[..., 1] if shape[-1] == 2 else 0)
    want = (np.fft.ifft if inverse else np.fft.fft)(numbers, length)[..., :frequencies]
    [got] = run_by_tvm(made(shape, length, frequencies, inverse), [x])
    np.testing.assert_allclose(
        got[..., 0] + 1j * got[..., 1], want, rtol=1e-4, atol=1e-5 * np.abs(want).max()
    )


def constants_of(mod: Any) -> int:
    """The elements of all constants."""
    held = [constant(argument) for call in calls(mod) for argument in call.args]
    return sum(array.size for array in held if array is not None)


def test_two_factors_have_few_constants() -> None:
    assert constants_of(made((1, 512, 1), 512, 257)) < 5000 < 512 * 514
    assert constants_of(made((1, 67, 1), 67, 34)) == 67 * 68
    assert constants_of(made((300, 512, 1), 512, 257)) == 512 * 514  # many at once
    # Numbers of float16 between two factors would be too coarse.
    assert constants_of(made((1, 512, 1), 512, 257, dtype="float16")) == 512 * 514


@pytest.mark.parametrize(("length", "step"), [(64, 24), (64, 64), (64, 80), (66, 2)])
def test_windows_of_an_stft_need_no_table_of_positions(length: int, step: int, tmp_path: Path) -> None:
    """But for more windows over each sample than slices pay for."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2,500,1] x) => (float[2,f,k,2] y)
        <int64 step = {{{step}}}, int64 length = {{{length}}}> {{ y = STFT(x, step, , length) }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "stft.onnx")
    mod, _ = imported(tmp_path / "stft.onnx", {})
    x = np.random.default_rng(1).normal(size=(2, 500, 1)).astype("float32")
    [got] = run_by_tvm(mod, [x])
    frames = np.lib.stride_tricks.sliding_window_view(x[..., 0], length, 1)[:, ::step]
    want = np.fft.rfft(frames)
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], want, atol=1e-4)
    assert ("take" in operators(mod)) == (step == 2)


def test_a_frame_of_a_tflite_file(tmp_path: Path) -> None:
    tensors = [
        Tensor("x", (2, 1, 120)), Tensor("sizes", (2,), "int32", data=np.array([1, 128], np.int32)),
        Tensor("f", (2, 1, 65), "complex64"), Tensor("y", (2, 1, 65)),
    ]  # fmt: skip
    nodes = [
        Node(OP.RFFT2D, schema.Rfft2dOptionsT(), [0, 1], [2]),
        Node(OP.COMPLEX_ABS, None, [2], [3]),
    ]
    mod, _ = imported(write_graph(tmp_path / "frame.tflite", tensors, nodes, [0], [3]), {})
    x = np.random.default_rng(1).normal(size=(2, 1, 120)).astype("float32")
    [got] = run_by_tvm(mod, [x])
    np.testing.assert_allclose(got, np.abs(np.fft.rfft(x, 128)), atol=1e-4)
    assert constants_of(mod) < 2000 < 128 * 130
