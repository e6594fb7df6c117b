"""Reductions that threads of a block share, run on the CPU: all kinds, axes, infinities, dynamic sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kiln.config.target import Cuda
from kiln.kernels.gpu import dlight
from kiln.lower.pipeline import fused
from tvm import relax, te, tirx, topi

from .launched import Kernels

Array = npt.NDArray[Any]
CUDA = Cuda(archs=["sm_75", "sm_90"], ptx=False)
OP = relax.op


def _floats(*shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def _infinite() -> Array:
    """Lines of -inf alone, of inf alone, and with one number among them."""
    x = np.full((4, 100), -np.inf, np.float32)
    x[1], x[2, 77] = np.inf, -3.0e38
    return x


def _windows(x: Array, edge: int) -> Array:
    """The windows of images (batch, height, width, channels), in two axes at the end."""
    return np.lib.stride_tricks.sliding_window_view(x, (edge, edge), (1, 2))


def _exponentials(x: Any) -> Any:
    return OP.sum(OP.exp(OP.subtract(x, OP.max(x, [1], keepdims=True))), [1])


# name → (input, the operator, the same by NumPy, threads of a block that share one result)
CASES: dict[str, tuple[Array, Callable[[Any], Any], Callable[[Array], Array], int]] = {
    "greatest": (_floats(8, 4096), lambda x: OP.max(x, [1]), lambda x: x.max(1), 1024),
    "least_odd": (_floats(5, 1001), lambda x: OP.min(x, [1]), lambda x: x.min(1), 512),
    "pooled": (_floats(1, 20, 20, 32), lambda x: OP.max(x, [1, 2]), lambda x: x.max((1, 2)), 32),
    "of_columns": (_floats(100, 48), lambda x: OP.max(x, [0]), lambda x: x.max(0), 64),
    "of_few_columns": (_floats(300, 7), lambda x: OP.min(x, [0]), lambda x: x.min(0), 256),
    "of_all": (_floats(33, 41), lambda x: OP.max(OP.abs(x)), lambda x: np.abs(x).max(), 1024),
    "product": (1 + _floats(6, 200) / 50, lambda x: OP.prod(x, [1]), lambda x: x.prod(1), 128),
    "of_infinities": (_infinite(), lambda x: OP.max(x, [1]), lambda x: x.max(1), 64),
    "least_of_infinities": (_infinite(), lambda x: OP.min(x, [1]), lambda x: x.min(1), 64),
    "integers": (
        np.random.default_rng(1).integers(-900, 900, (6, 500)).astype("int32"),
        lambda x: OP.max(x, [1]), lambda x: x.max(1), 256,
    ),
    "pooled_and_finished": (  # what follows the sum is computed with it
        _floats(1, 8, 9, 12), lambda x: OP.nn.relu(OP.nn.avg_pool2d(x, [3, 3], layout="NHWC")),
        lambda x: np.maximum(_windows(x, 3).mean((-1, -2)), 0), 256,
    ),
    "softmax_of_few_short_lines": (
        _floats(8, 9), lambda x: OP.nn.softmax(x),
        lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True), 256,
    ),
    "exponentials": (
        _floats(8, 2000), _exponentials, lambda x: np.exp(x - x.max(1, keepdims=True)).sum(1), 0,
    ),
}  # fmt: skip


def _function(op: Callable[[Any], Any], shape: Any, dtype: str) -> list[tirx.PrimFunc]:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    dims = {"n": {"dim": "n", "divide": 1, "min": 1, "max": 64}}
    with builder.function("main", [x], attrs={"num_input": 1, "kiln.dims": json.dumps(dims)}):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(op(x)))
        builder.emit_func_output(output)
    mod = fused(builder.get())[0]
    calls = [binding.value.args[0] for block in mod["main"].body.blocks for binding in block.bindings]
    return [mod[call] for call in calls if call in mod.functions]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    target, launches = dlight.tvm_target(CUDA), {}
    for name, (x, op, _, _) in CASES.items():
        for number, func in enumerate(_function(op, x.shape, str(x.dtype))):
            launches[f"{name}_f{number}"] = dlight.lower(func, target)
    rows = tirx.Var("n", "int64")
    (func,) = _function(lambda x: OP.max(x, [1]), (rows, 300), "float32")
    launches["open"] = dlight.lower(func, target, lambda _: 64)
    return Kernels(launches, CUDA, tmp_path_factory.mktemp("reductions"))


@pytest.mark.parametrize("name", [name for name in CASES if name != "exponentials"])
def test_threads_share_a_reduction(kernels: Kernels, name: str) -> None:
    x, _, reference, threads = CASES[name]
    want = np.asarray(reference(x))
    np.testing.assert_allclose(kernels.run(f"{name}_f0", [x], want.shape), want, rtol=1e-5)
    (launch,) = kernels.launches[f"{name}_f0"].launches
    assert threads in launch.block[:2], launch.block


def test_a_line_whose_greatest_is_subtracted(kernels: Kernels) -> None:
    """dlight's rule for products of a matrix and a vector asserts on its form; a later rule takes it."""
    x, _, reference, _ = CASES["exponentials"]
    most = kernels.run("exponentials_f0", [x], (8, 1))
    np.testing.assert_allclose(kernels.run("exponentials_f1", [x, most], (8,)), reference(x), rtol=1e-4)


def test_a_sum_is_read_twice_in_its_kernel(tmp_path: Path) -> None:
    """SiLU of the mean of each channel is one kernel, whatever the number of images."""
    x = te.placeholder((te.var("n", "int64"), 5, 7, 12), "float32", "x")
    mean = topi.divide(topi.sum(x, [1, 2]), 35.0)
    func = te.create_prim_func([x, topi.multiply(mean, topi.sigmoid(mean))])
    lowered = dlight.lower(func, dlight.tvm_target(CUDA), lambda _: 64)
    assert len(lowered.launches) == 1 and not lowered.scratch
    given = _floats(3, 5, 7, 12)
    got = Kernels({"images": lowered}, CUDA, tmp_path).run("images", [given], (3, 12), n=3)
    want = given.mean((1, 2))
    np.testing.assert_allclose(got, want / (1 + np.exp(-want)), rtol=1e-5, atol=1e-6)


def test_an_open_number_of_lines(kernels: Kernels) -> None:
    x = _floats(5, 300)
    np.testing.assert_array_equal(kernels.run("open", [x], (5,), n=5), x.max(1))


def test_many_short_lines_have_a_thread_each() -> None:
    (func,) = _function(lambda x: OP.nn.softmax(x), (4096, 9), "float32")
    greatest, *_ = dlight.lower(func, dlight.tvm_target(CUDA), multiprocessors=132).launches
    assert greatest.grid[0] * greatest.block[0] == 4096


def test_a_small_tensor_has_blocks_for_many_multiprocessors() -> None:
    (func,) = _function(lambda x: OP.mean(x, [1, 2]), (1, 7, 7, 2048), "float32")
    last = dlight.lower(func, dlight.tvm_target(CUDA), multiprocessors=132).launches[-1]
    assert last.grid[0] == 32 and last.block[0] == 64
