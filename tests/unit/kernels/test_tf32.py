"""tf32: which operands are rounded, how, and the values on this machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from kiln.config import Model
from kiln.kernels.gpu import half, tf32
from kiln.lower.pipeline import fused
from kiln.opinfo import attach
from kiln.precision.evaluate import Evaluator
from relaxed import module, rounded_to_tf32
from tvm import s_tir, tirx

from unit.kernels.test_half import WEIGHTS, network

Array = npt.NDArray[Any]
R = np.random.default_rng(5)


def reference(x: Array, of: Any) -> Array:
    """The output of `network` by NumPy; `of` rounds the operands of convolutions.

    The last product has one row, which is not rounded.
    """
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    first = np.einsum("nhwcij,ijco->nhwo", of(windows), of(WEIGHTS["first"])) + WEIGHTS["bias"]
    first = np.maximum(first, 0)
    second = of(first) @ of(WEIGHTS["second"][0, 0]) + first
    mean = second.reshape(1, 4, 2, 4, 2, 16).max((2, 4)).mean((1, 2))
    logits = mean @ WEIGHTS["dense"]
    power = np.exp(logits - logits.max(-1, keepdims=True))
    result: Array = power / power.sum(-1, keepdims=True)
    return result


@pytest.fixture(scope="module")
def made() -> tuple[tvm.IRModule, dict[str, Array]]:
    return fused(module([((1, 8, 8, 3), "float32")], network), "tf32")


def test_operands_of_large_products_are_rounded_and_all_is_float32(
    made: tuple[tvm.IRModule, dict[str, Array]],
) -> None:
    found = {}
    for func in made[0].functions.values():
        if ops := attach.of(func):
            found["+".join(op["name"].removeprefix("nn.") for op in ops)] = func.script().count("kiln_tf32(")
            assert {str(tensor.dtype) for tensor in attach.tensors(func)} == {"float32"}
    expected = {"conv2d+add+relu": 2, "conv2d+add": 2, "max_pool2d": 0, "mean": 0, "matmul": 0, "softmax": 0}
    assert found == expected
    assert {str(value.dtype) for value in made[1].values()} == {"float32"}


def test_values(made: tuple[tvm.IRModule, dict[str, Array]]) -> None:
    x = R.standard_normal((1, 8, 8, 3)).astype(np.float32)
    (got,) = Evaluator(*made).run([x], {})
    exact, wanted = reference(x, lambda value: value), reference(x, rounded_to_tf32)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert np.abs(got - exact).max() > 1e-5


def test_rounding_on_this_machine() -> None:
    """Ties go away from zero, numbers beyond the greatest to infinity, and a NaN of any bits stays one."""
    place = 2.0**-10
    greatest = float(np.finfo(np.float32).max)
    numbers = [1 + place / 2, 1 + place * 0.4999, -1 - place / 2, 1e-42, -0.0, greatest, np.inf, -np.inf]
    x = np.array(numbers * 8, np.float32)
    x[:3] = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    source, target = (tirx.decl_buffer([64], "float32", name) for name in ("source", "target"))
    nest = half.copy(source, target, tf32.round_one)
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", nest))
    schedule = s_tir.Schedule(tirx.PrimFunc([source, target], root).with_attr("global_symbol", "main"))
    (loop,) = schedule.get_loops(schedule.get_child_blocks(schedule.get_sblock("root"))[0])
    schedule.vectorize(schedule.split(loop, [None, 8])[1])
    given, got = tvm.runtime.tensor(x), tvm.runtime.empty((64,), "float32")
    tvm.compile(schedule.mod, target="llvm")["main"](given, got)
    assert np.isnan(got.numpy()[:3]).all()
    np.testing.assert_array_equal(got.numpy()[3:], rounded_to_tf32(x)[3:])
    assert got.numpy()[8] == 1 + place and got.numpy()[10] == -1 - place and got.numpy()[13] == np.inf


def test_limits() -> None:
    data = {"name": "m", "source": {"kind": "file", "path": "m.onnx"}, "format": "onnx", "precision": "tf32"}
    limits = Model.model_validate({**data, "tolerance": {"relative": 1e-4}}).tolerance_in_force()
    assert (limits["absolute"], limits["relative"]) == (1e-3, 5e-3)
    limits = Model.model_validate(
        {**data, "tolerance": {"tf32": {"relative": 0.1}, "relative": 1e-4}}
    ).tolerance_in_force()
    assert (limits["absolute"], limits["relative"]) == (1e-5, 0.1)
    assert not {"fp16", "bf16", "tf32"} & set(limits)
