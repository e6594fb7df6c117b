"""Products of 8-bit integers on matrix units: exact sums, by an emulation of wmma, and machine code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from kiln.config.target import Cuda
from kiln.graph.bindings import const
from kiln.kernels.gpu import dlight
from kiln.lower.integer_weights import integer_weights
from relaxed import virtual_machine
from tvm import relax, te, tirx, topi

from .launched import Kernels
from .test_cuda_kernels import _conv

Array = npt.NDArray[Any]
ARCHS = ["sm_75", "sm_80", "sm_87", "sm_90"]
CUDA = Cuda(archs=ARCHS, ptx=False)
S, U = "int8", "uint8"
Shape = tuple[int, ...]


def _convolution(stride: int, pad: int) -> Callable[..., Any]:
    return lambda x, w: topi.nn.conv(x, w, stride, [pad] * 4, 1, 1, "NHWC", "OHWI", "int32")


def _product(x: Any, w: Any) -> Any:
    k = te.reduce_axis((0, x.shape[-1]), "k")
    return te.compute(
        [*x.shape[:-1], w.shape[0]],
        lambda *i: te.sum(tirx.Cast("int32", x(*i[:-1], k)) * tirx.Cast("int32", w(i[-1], k)), axis=k),
    )


# name → type, shapes of activations and weights, multiprocessors, the sums, the same by NumPy
CASES: dict[str, tuple[str, Shape, Shape, int, Callable[..., Any], Callable[..., Array]]] = {
    "conv": (S, (1, 9, 9, 64), (24, 3, 3, 64), 1, _convolution(1, 1), lambda x, w: _conv(x, w, 1, 1)),
    "odd": (S, (2, 9, 9, 5), (17, 3, 3, 5), 1, _convolution(2, 1), lambda x, w: _conv(x, w, 2, 1)),
    "first": (U, (1, 20, 20, 3), (16, 7, 7, 3), 1, _convolution(2, 3), lambda x, w: _conv(x, w, 2, 3)),
    "parts": (S, (1, 7, 7, 256), (40, 3, 3, 256), 100, _convolution(1, 1), lambda x, w: _conv(x, w, 1, 1)),
    "product": (S, (33, 192), (70, 192), 1, _product, lambda x, w: x @ w[:, 0, 0].T),
    "short": (U, (2, 9, 20), (41, 20), 1, _product, lambda x, w: x @ w[:, 0, 0].T),
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    lowered = {}
    for name, (dtype, x, w, multiprocessors, compute, _) in CASES.items():
        tensors = [te.placeholder(shape, dtype, f"x{i}") for i, shape in enumerate((x, w))]
        bias = te.placeholder((w[0],), "int32", "bias")
        scaled = topi.multiply(topi.cast(topi.add(compute(*tensors), bias), "float32"), 1.0 / 64)
        out = topi.cast(topi.clip(scaled, -128, 127), "int8")
        func = te.create_prim_func([*tensors, bias, out])
        lowered[name] = dlight.lower(func, dlight.tvm_target(CUDA), multiprocessors=multiprocessors)
    return Kernels(lowered, CUDA, tmp_path_factory.mktemp("integer"))


@pytest.mark.parametrize("order", ["0", "1"])
def test_sums_are_exact(kernels: Kernels, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """Sums of 8-bit products, with extreme numbers among them, are exact, as is the epilogue."""
    monkeypatch.setenv("KILN_CUDA_REVERSED", order)
    random = np.random.default_rng(7)
    for name, (dtype, x_shape, w_shape, _, _, reference) in CASES.items():
        limits = np.iinfo(dtype)
        x, w = (
            random.integers(limits.min, limits.max + 1, shape).astype(dtype) for shape in (x_shape, w_shape)
        )
        x.reshape(-1)[:40], w.reshape(-1)[:40] = limits.max, limits.min
        bias = random.integers(-(1 << 20), 1 << 20, w_shape[:1], np.int32)
        weights = w.reshape(w_shape[0], *(w_shape[1:] if len(w_shape) == 4 else (1, 1, -1))).astype(np.int64)
        filters = weights.transpose(1, 2, 3, 0) if len(w_shape) == 4 else weights
        total = reference(x.astype(np.int64), filters) + bias
        want = np.clip(total.astype(np.float32) / 64, -128, 127).astype(np.int8)
        np.testing.assert_array_equal(kernels.run(name, [x, w, bias], want.shape), want, err_msg=name)


def test_all_use_the_matrix_units(kernels: Kernels) -> None:
    for name in CASES:
        assert "wmma::mma_sync" in kernels.text(f"{name}_0"), name
    assert len(kernels.launches["parts"].launches) == 2 and "int" in kernels.launches["parts"].scratch[0][0]


def test_copies_of_later_steps_are_under_way(kernels: Kernels) -> None:
    """Copies have 16 bytes; a step waits for its own copies, not for those of the next two steps."""
    text = kernels.text("conv_0")
    assert "kiln_copy_if<16>(" in text
    loop = text[text.index("kiln_copies_wait<2>()") :]
    assert loop.index("mma_sync") < loop.index("kiln_copies_wait<1>()") < loop.index("kiln_copies_wait<0>()")
    assert "kiln_copies_done" not in text


@pytest.mark.heavy  # sessions of the gate compile such kernels for sm_90
def test_ptxas_compiles_all_kernels_for_every_architecture(kernels: Kernels, tmp_path: Path) -> None:
    usage_of_kernels = kernels.check_machine_code(ARCHS, tmp_path)
    assert all(usage["stack_bytes"] == 0 for usage in usage_of_kernels)


@pytest.mark.parametrize(("kind", "weights"), [pytest.param(S, S, marks=pytest.mark.heavy), (U, S), (U, U)])
def test_constant_weights_are_stored_as_fragments_need_them(kind: str, weights: str) -> None:
    """uint8 activations with int8 weights are moved by 128, and the sums of the weights make up for it."""
    random = np.random.default_rng(3)
    limits = np.iinfo(weights)
    filters, matrix = (
        random.integers(limits.min, limits.max + 1, shape).astype(weights)
        for shape in ((3, 3, 4, 9), (9, 10))
    )
    image = relax.Var("image", relax.TensorType((1, 6, 6, 4), kind))
    builder = relax.BlockBuilder()
    with builder.function("main", [image]):
        with builder.dataflow():
            conv = relax.op.nn.conv2d(
                image, const(filters, weights), padding=[1, 1, 1, 1], data_layout="NHWC",
                kernel_layout="HWIO", out_dtype="int32",
            )  # fmt: skip
            low = relax.op.astype(relax.op.clip(builder.emit(conv), -100, 27), "int8")
            levels = builder.emit(low if kind == S else relax.op.astype(low, kind))
            product = relax.op.matmul(levels, const(matrix, weights), out_dtype="int32")
            out = builder.emit_output(builder.emit(product))
        builder.emit_func_output(out)
    before = builder.finalize()
    after = integer_weights(before)
    text = after.script()
    assert 'kernel_layout="OHWI"' in text and "R.matmul" not in text
    assert ("R.subtract" in text) == (kind != weights)
    given = random.integers(0, 127, (1, 6, 6, 4)).astype(kind)
    got, want = (virtual_machine(mod)["main"](tvm.runtime.tensor(given)).numpy() for mod in (after, before))
    np.testing.assert_array_equal(got, want)
