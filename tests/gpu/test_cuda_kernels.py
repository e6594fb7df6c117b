"""Kernels for a GPU: the result of each schedule, run on the CPU, and machine code for each architecture."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kiln.config import load_target
from kiln.config.target import Cuda
from kiln.emit import cuda_ptx
from kiln.emit.cuda_objects import image_of, source_of
from kiln.kernels.gpu import dlight, grid_limits, warp_masks
from tvm import te, tirx, topi

from .graphs import placeholders
from .launched import Kernels, evaluate

Array = npt.NDArray[Any]
ARCHS = ["sm_75", "sm_87", "sm_90"]
CUDA = Cuda(archs=ARCHS, ptx=False)


def _softmax(x: Array) -> Array:
    power = np.exp(x - x.max(-1, keepdims=True))
    result: Array = power / power.sum(-1, keepdims=True)
    return result


def _conv(x: Array, w: Array, stride: int, pad: int, depthwise: bool = False) -> Array:
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    height, width = w.shape[:2]
    windows = np.lib.stride_tricks.sliding_window_view(x, (height, width), (1, 2))[:, ::stride, ::stride]
    if depthwise:
        return np.einsum("nhwcij,ijc->nhwc", windows, w[:, :, :, 0])
    return np.einsum("nhwcij,ijco->nhwo", windows, w)


def _norm(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def _te_norm(x: Any) -> Any:
    mean = topi.divide(topi.sum(x, -1, True), float(int(x.shape[-1])))
    apart = topi.subtract(x, mean)
    spread = topi.divide(topi.sum(topi.multiply(apart, apart), -1, True), float(int(x.shape[-1])))
    return topi.multiply(apart, topi.rsqrt(topi.add(spread, 1e-5)))


# name → (shapes of the inputs, the computation, the same by NumPy)
CASES: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any], Callable[..., Array]]] = {
    "conv": (
        [(1, 9, 9, 5), (3, 3, 5, 7)],
        lambda x, w: topi.nn.relu(topi.nn.conv2d_nhwc(x, w, 2, [1, 1, 1, 1], 1)),
        lambda x, w: np.maximum(_conv(x, w, 2, 1), 0),
    ),
    "depthwise": (
        [(1, 8, 8, 6), (3, 3, 6, 1)],
        lambda x, w: topi.nn.depthwise_conv2d_nhwc(x, w, 1, [1, 1, 1, 1], 1),
        lambda x, w: _conv(x, w, 1, 1, depthwise=True),
    ),
    "grouped": (  # no schedule of dlight for long sums fits: TVM refuses what they make of it
        [(1, 6, 6, 32), (3, 3, 16, 32)],
        lambda x, w: topi.multiply(topi.nn.group_conv2d_nhwc(x, w, 1, [0, 0, 0, 0], 1, 2), 0.5),
        lambda x, w: np.concatenate(
            [_conv(x[..., i : i + 16], w[..., i : i + 16], 1, 0) / 2 for i in (0, 16)], -1
        ),
    ),
    "product": ([(33, 70), (70, 41)], topi.matmul, lambda a, b: a @ b),
    "of_depth_one": (
        [(9, 1), (1, 20), (9, 20)],
        lambda a, b, c: topi.add(c, topi.matmul(a, b)),
        lambda a, b, c: c + a @ b,
    ),
    "over_one": (
        [(6, 1, 5), (6, 5)],
        lambda x, y: topi.subtract(y, topi.multiply(topi.min(topi.exp(x), 1), 3.0)),
        lambda x, y: y - 3 * np.exp(x[:, 0]),
    ),
    "row": ([(1, 300), (300, 50)], topi.matmul, lambda a, b: a @ b),
    "mean": (
        [(2, 14, 14, 24)],
        lambda x: topi.divide(topi.sum(x, [1, 2]), 196.0),
        lambda x: x.mean((1, 2)),
    ),
    "softmax_short": ([(40, 10)], lambda x: topi.nn.softmax(x, -1), _softmax),
    "softmax_long": ([(3, 500)], lambda x: topi.nn.softmax(x, -1), _softmax),
    "norm": ([(6, 200)], _te_norm, _norm),
    "transpose": (
        [(1, 3, 20, 30)],
        lambda x: topi.transpose(x, [0, 2, 3, 1]),
        lambda x: x.transpose(0, 2, 3, 1),
    ),
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    lowered = {}
    for name, (shapes, compute, _) in CASES.items():
        tensors = placeholders(*shapes)
        func = te.create_prim_func([*tensors, compute(*tensors)])
        lowered[name] = dlight.lower(func, dlight.tvm_target(CUDA))
    return Kernels(lowered, CUDA, tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("order", ["0", "1"])
def test_a_kernel_computes_what_numpy_does(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, name: str, order: str
) -> None:
    monkeypatch.setenv("KILN_CUDA_REVERSED", order)
    shapes, _, reference = CASES[name]
    random = np.random.default_rng(7)
    inputs = [random.standard_normal(shape, dtype=np.float32) for shape in shapes]
    want = reference(*inputs)
    np.testing.assert_allclose(kernels.run(name, inputs, want.shape), want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("count", [1, 33, 70])
def test_dynamic_sizes(dynamic_kernels: Kernels, count: int) -> None:
    """A product, and a row-wise sum, of as many rows as a run has."""
    random = np.random.default_rng(count)
    x, w = random.standard_normal((count, 40), np.float32), random.standard_normal((40, 24), np.float32)
    for name, inputs, want in (("product", [x, w], x @ w), ("softmax", [x], _softmax(x))):
        got = dynamic_kernels.run(name, inputs, want.shape, n=count)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.fixture(scope="module")
def dynamic_kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """Kernels over n rows, 1 to 70."""
    n = te.var("n", "int64")
    x, w = te.placeholder((n, 40), "float32", "x"), te.placeholder((40, 24), "float32", "w")
    outputs = {"product": [x, w, topi.matmul(x, w)], "softmax": [x, topi.nn.softmax(x, -1)]}
    lowered = {
        name: dlight.lower(
            te.create_prim_func(tensors), dlight.tvm_target(CUDA), lambda size: evaluate(size, {"n": 70})
        )
        for name, tensors in outputs.items()
    }
    return Kernels(lowered, CUDA, tmp_path_factory.mktemp("open"))


def test_short_sums_are_not_shared_among_threads(kernels: Kernels) -> None:
    """A depthwise convolution has a thread for each element, a long sum a block."""
    (depthwise,) = kernels.launches["depthwise"].launches
    threads = depthwise.block[0] * depthwise.block[1]
    assert depthwise.grid[0] * threads < 8 * 8 * 6 + threads
    (long,) = kernels.launches["softmax_long"].launches
    assert long.grid == (3, 1, 1)


def test_shuffles_name_the_whole_warp(kernels: Kernels) -> None:
    """The active threads are not known to be all of a warp after a branch."""
    assert "__shfl_down_sync(" in kernels.source
    assert "__activemask" not in kernels.source
    assert str(warp_masks.WHOLE) in kernels.text("softmax_long_0")


@pytest.mark.parametrize(("threads", "most"), [(64, 64), (64, 8), (48, 48)])
def test_a_shuffle_that_some_lanes_do_not_reach(threads: int, most: int) -> None:
    thread = tirx.IterVar(None, tirx.Var("thread", "int32"), tirx.IterVar.ThreadIndex, "threadIdx.x")
    shuffle: Any = tirx.Evaluate(tirx.call_intrin("uint32", "tirx.tvm_warp_activemask"))
    if most < threads:
        shuffle = tirx.IfThenElse(thread.var < most, shuffle, None)
    func = tirx.PrimFunc([], tirx.AttrStmt(thread, "thread_extent", threads, shuffle))
    assert (warp_masks.whole_warps(func) is None) == ((threads, most) != (64, 64))


@pytest.mark.heavy
@pytest.mark.parametrize("names", [["softmax_long"], pytest.param(list(CASES), marks=pytest.mark.heavy)])
def test_machine_code_for_every_architecture(kernels: Kernels, names: list[str], tmp_path: Path) -> None:
    source = Kernels({name: kernels.launches[name] for name in names}, CUDA, tmp_path).source
    image = image_of(source, Cuda(archs=ARCHS, ptx=True), tmp_path)[0]
    assert images_of(image) == [(2, 75), (2, 87), (2, 90), (1, 90)]
    again = image_of(source, Cuda(archs=ARCHS, ptx=True), tmp_path / "other")[0]
    assert image == again, "two compilations differ"


@pytest.mark.parametrize(
    ("instruction", "version"), [("add.f32 %f1, %f1, %f1;", "9.0"), ("no.such %f1;", "9.5")]
)
def test_ptx_is_of_the_oldest_version_that_has_its_instructions(instruction: str, version: str) -> None:
    head = ".target sm_90\n.address_size 64\n.visible .entry k()\n{\n.reg .f32 %f<2>;\n"
    text = f"// made up\n.version 9.5\n{head}{instruction}\nret;\n}}\n"
    expected = text.replace(".version 9.5", f".version {version}")
    assert cuda_ptx.for_old_drivers(text, "sm_90") == expected
    older = text.replace("9.5", "8.4")
    assert cuda_ptx.for_old_drivers(older, "sm_90") == older


def images_of(fatbinary: bytes) -> list[tuple[int, int]]:
    """Kind (1: PTX, 2: machine code) and architecture of each entry of a fatbin."""
    magic, _, header, size = struct.unpack_from("<IHHQ", fatbinary)
    assert magic == 0xBA55ED50
    images, at = [], header
    while at < header + size:
        kind, _, entry, payload = struct.unpack_from("<HHIQ", fatbinary, at)
        (arch,) = struct.unpack_from("<I", fatbinary, at + 28)
        images.append((kind, arch))
        at += entry + payload
    return sorted(images, key=lambda item: (-item[0], item[1]))


def test_what_no_schedule_maps_is_refused() -> None:
    x = te.placeholder((4, 50), "float32", "x")
    func = te.create_prim_func([x, topi.argsort(x, axis=1)])
    with pytest.raises(ValueError, match=r"it calls tvm\.contrib\.sort\.argsort, a function of"):
        dlight.lower(func, dlight.tvm_target(CUDA))


def test_names_of_targets_with_a_dash() -> None:
    assert load_target("cuda-sm90").name == "cuda_sm90"


def _products(*shape: int | tirx.Var) -> tirx.PrimFunc:
    """Products of as many matrices as the first size says; `shape`: of the first operand, and columns."""
    count, rows, depth, columns = shape
    a = te.placeholder((count, rows, depth), "float32", "a")
    b = te.placeholder((count, depth, columns), "float32", "b")
    return te.create_prim_func([a, b, topi.nn.batch_matmul(a, b, transpose_b=False)])


def test_more_blocks_than_an_axis_takes_are_along_the_other() -> None:
    """CUDA launches 65,535 blocks along y and z, and 2^31 - 1 along x."""
    (few,) = dlight.lower(_products(65535, 16, 16, 16), dlight.tvm_target(CUDA)).launches
    (many,) = dlight.lower(_products(65536, 16, 16, 16), dlight.tvm_target(CUDA)).launches
    assert (few.grid, many.grid) == ((1, 65535, 1), (65536, 1, 1))
    with pytest.raises(ValueError, match=r"needs \[65537, 65537, 1\] blocks"):
        grid_limits.within_limits(many.func, (65537, 65537, 1), int)


def test_exchanged_axes_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_limits, "MOST_ALONG", (9, 2, 2))
    launches = dlight.lower(_products(3, 16, 16, 70), dlight.tvm_target(CUDA))
    assert launches.launches[0].grid == (6, 1, 1)
    a, b = (np.random.default_rng(0).standard_normal(s, np.float32) for s in ((3, 16, 16), (3, 16, 70)))
    got = Kernels({"exchanged": launches}, CUDA, tmp_path).run("exchanged", [a, b], (3, 16, 70))
    np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("most", "index"), [(1 << 12, "int n"), (1 << 25, "int64_t n")])
def test_indices_are_as_wide_as_the_greatest_tensor_needs(most: int, index: str) -> None:
    x = te.placeholder((te.var("n", "int64"), 1 << 10), "float32", "x")
    func = te.create_prim_func([x, topi.exp(x)])
    (launch,) = dlight.lower(func, dlight.tvm_target(CUDA), lambda e: evaluate(e, {"n": most})).launches
    assert f"{index})" in source_of({"kernel": launch.func.with_attr("global_symbol", "kernel")}, CUDA)
