"""Operators whose results have a size that is in the data, against ONNX Runtime; one program for all."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from kiln.emit.objects import compile_object, missing_symbols
from kiln.frontend.importer import import_model
from kiln.frontend.options import from_config
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import lower
from kiln.lower.steps import Steps
from symbolic import configuration, dynamic

from .lowered import runnable_alone
from .programs import TooManyError, execute

Array = npt.NDArray[Any]
HEADER = '<ir_version: 8, opset_import: ["" : {opset}]>\n'
BATCH = {"b": (1, 4)}


@dataclass(frozen=True)
class Graph:
    """An ONNX graph as text. `dims`: ranges of its dynamic dimensions; `bounds`: as in a model's YAML."""

    text: str
    weights: Mapping[str, Any] = field(default_factory=dict)
    dims: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    opset: int = 17


GRAPHS = {
    "non_zero": Graph("g (float[4,6] x) => (int64[2,n] y) { y = NonZero(x) }"),
    "non_zero_bool": Graph("g (bool[3,2,5] x) => (int64[3,n] y) { y = NonZero(x) }"),
    "non_zero_bounded": Graph("g (float[4,6] x) => (int64[2,n] y) { y = NonZero(x) }", bounds={"y": 5}),
    "non_zero_open": Graph("g (float[b,6] x) => (int64[2,n] y) { y = NonZero(x) }", dims=BATCH),
    # What PyTorch's exporter writes for nonzero and masked_select.
    "masked_select": Graph(
        """g (float[b,6] x) => (float[n] y, int64[n,2] t) {
          m = Greater(x, zero) k = NonZero(m) t = Transpose<perm = [1, 0]>(k) y = GatherND(x, t) }""",
        {"zero": np.float32(0)},
        BATCH,
    ),
    "compress": Graph(
        "g (float[3,5,2] x, bool[4] c) => (float[3,n,2] y) { y = Compress<axis = 1>(x, c) }"
    ),
    "compress_flat": Graph("g (float[3,5] x, bool[15] c) => (float[n] y) { y = Compress(x, c) }"),
    # Readers of a counted axis: arithmetic, movement, reductions along it and across it, its size as a value.
    "readers": Graph(
        """g (float[8,3] x, float[8] s) => (float[n,3] y, float[3,n] z, float[3] m, float[3] sum, int64[1] c,
                                             int64[n] r, float[k,3] two, float[n] soft) {
          high = Greater(s, zero) y = Compress<axis = 0>(x, high)
          e = Exp(y) z = Transpose<perm = [1, 0]>(e)
          sum = ReduceSum<keepdims = 0>(y, first)
          m = ReduceMean<axes = [0], keepdims = 0>(y)
          shape = Shape(y) c = Gather(shape, first)
          one = Squeeze(c) r = Range(start, one, step)
          two = Concat<axis = 0>(y, x)
          rows = ReduceSum<keepdims = 0>(y, last) soft = Softmax<axis = 0>(rows) }""",
        {
            "zero": np.float32(0), "first": np.array([0]), "last": np.array([1]), "start": np.int64(0),
            "step": np.int64(1),
        },
    ),
    "twice": Graph(
        """g (float[9,3] x) => (int64[1,k] y) {
          a = Greater(x, zero) n = NonZero(a) first = Gather<axis = 0>(n, top) v = Cast<to = 1>(first)
          far = Greater(v, two) y = NonZero(far) }""",
        {"zero": np.float32(0), "top": np.int64(0), "two": np.float32(2)},
    ),
}  # fmt: skip


class Built:
    """All of GRAPHS, imported and lowered, and their kernels in one library."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.steps = folder, dict[str, Steps]()
        target = runnable_alone("x86_64")
        functions: dict[str, Any] = {}
        for name, graph in GRAPHS.items():
            text = HEADER.format(opset=graph.opset) + graph.text
            model = onnx.parser.parse_model(text)
            for key, value in graph.weights.items():
                model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), key))
            onnx.save(model, folder / f"{name}.onnx")
            options = from_config(
                {**configuration(graph.dims), "bounds": dict(graph.bounds)},
                dynamic(graph.dims) if graph.dims else None,
            )
            module, _ = import_model(folder / f"{name}.onnx", options)
            self.steps[name] = lower(simplify(module), "m", target, "pthread")
            functions |= self.steps[name].functions
        compile_object(functions, target, folder / "all.o")
        assert not missing_symbols(folder / "all.o", target)
        subprocess.run(["cc", "-shared", "-o", folder / "all.so", folder / "all.o"], check=True)
        self.library = ctypes.CDLL(str(folder / "all.so"))
        self._sessions: dict[str, Any] = {}

    def check(self, name: str, *inputs: Array, absolute: float = 1e-6, **dims: int) -> list[Array]:
        """Compare a run with ONNX Runtime: shapes, types and elements; returns the outputs."""
        if name not in self._sessions:
            self._sessions[name] = onnxruntime.InferenceSession(self.folder / f"{name}.onnx")
        session = self._sessions[name]
        names = [value.name for value in session.get_inputs()]
        wanted = session.run(None, dict(zip(names, inputs, strict=True)))
        found = execute(self.steps[name], self.library, inputs, dims)
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            if ours.dtype.kind == "f":
                np.testing.assert_allclose(ours, theirs, atol=absolute, rtol=1e-5)
            else:
                np.testing.assert_array_equal(ours, theirs)
        return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("counted"))


def sparse(seed: int, shape: Sequence[int], share: float) -> Array:
    """Normal numbers, of which about `share` are not 0."""
    random = np.random.default_rng(seed)
    values = random.normal(size=shape).astype(np.float32)
    return np.where(random.random(shape) < share, values, np.float32(0)).astype(np.float32)


SHARES = (0.0, 0.3, 0.7, 1.0)


@pytest.mark.parametrize("share", SHARES)
def test_positions_of_what_is_not_zero(built: Built, share: float) -> None:
    built.check("non_zero", sparse(1, (4, 6), share))
    built.check("non_zero_bool", sparse(2, (3, 2, 5), share) != 0)
    for batch in (1, 4):
        built.check("non_zero_open", sparse(3, (batch, 6), share), b=batch)
        built.check("masked_select", sparse(4, (batch, 6), share), b=batch)
    built.check("twice", sparse(5, (9, 3), share))


def test_nan_and_negative_zero(built: Built) -> None:
    x = np.zeros((4, 6), np.float32)
    x[0, 1], x[2, 2], x[3, 5] = np.nan, -0.0, -np.inf
    assert built.check("non_zero", x)[0].shape == (2, 2)


@pytest.mark.parametrize("share", SHARES)
def test_slices_by_a_condition(built: Built, share: float) -> None:
    random = np.random.default_rng(6)
    built.check("compress", sparse(7, (3, 5, 2), 1), random.random(4) < share)
    built.check("compress_flat", sparse(8, (3, 5), 1), random.random(15) < share)


@pytest.mark.parametrize("kept", [1, 3, 8])
def test_readers_of_a_counted_axis(built: Built, kept: int) -> None:
    scores = np.where(np.arange(8) < kept, 1, -1).astype(np.float32)
    built.check("readers", sparse(9, (8, 3), 1), np.random.default_rng(kept).permutation(scores))


def test_nothing_is_written_beyond_a_bound(built: Built) -> None:
    x = np.zeros((4, 6), np.float32)
    x[1, :5] = 1
    assert built.check("non_zero_bounded", x)[0].shape == (2, 5)
    x[3, 3] = 1
    with pytest.raises(TooManyError, match="y: 6"):
        execute(built.steps["non_zero_bounded"], built.library, [x])
