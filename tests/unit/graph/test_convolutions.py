"""Convolutions along one axis, and kernels in another order, become those that have kernels of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.graph.convolutions import plain_convolutions
from kiln.graph.pipeline import simplify
from relaxed import calls, const, module, operators, run_by_tvm
from tvm import relax, tirx

op = relax.op
RNG = np.random.default_rng(8)


def _close(made: Any, changed: Any, shape: tuple[int, ...]) -> None:
    x = RNG.uniform(-1, 1, shape).astype("f4")
    for want, got in zip(run_by_tvm(made, [x]), run_by_tvm(changed, [x]), strict=True):
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= 1e-5 * max(1.0, np.abs(want).max())


def _weights(*shape: int) -> Any:
    return const(RNG.standard_normal(shape).astype("f4"))


@pytest.mark.parametrize(
    ("stride", "dilation", "groups", "padding"),
    [(1, 1, 1, (0, 0)), (3, 1, 2, (1, 2)), (1, 2, 6, (2, 0)), (2, 2, 1, (3, 3))],
)
def test_a_convolution_along_one_axis(stride: int, dilation: int, groups: int, padding: Any) -> None:
    weights = _weights(12, 6 // groups, 5)

    def body(x: Any) -> Any:
        return op.nn.conv1d(x, weights, strides=stride, padding=padding, dilation=dilation, groups=groups)

    mod = module([((2, 6, 31), "float32")], body)
    changed = plain_convolutions(mod)
    assert "nn.conv2d" in operators(changed) and "nn.conv1d" not in operators(changed)
    _close(mod, changed, (2, 6, 31))


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: op.nn.max_pool1d(x, 3, 2, (1, 1)),
        lambda x: op.nn.max_pool1d(x, 3, 1, (2, 2), dilation=2),
        lambda x: op.nn.avg_pool1d(x, 4, 3, (1, 2), ceil_mode=True),
        lambda x: op.nn.avg_pool1d(x, 5, 1, (2, 2), count_include_pad=True),
    ],
)
def test_pools_along_one_axis(pool: Any) -> None:
    mod = module([((2, 6, 31), "float32")], lambda x: op.nn.relu(pool(x)))
    changed = plain_convolutions(mod)
    assert "permute_dims" in operators(changed) and not any("1d" in name for name in operators(changed))
    _close(mod, changed, (2, 6, 31))


def test_a_chain_of_convolutions_and_pools_has_no_transpose_between() -> None:
    def body(x: Any) -> Any:
        x = op.nn.max_pool1d(op.nn.conv1d(x, _weights(9, 4, 3), padding=1), 3, 2, (1, 1))
        return op.nn.avg_pool1d(op.nn.relu(op.nn.conv1d(x, _weights(7, 9, 3), padding=1)), 2, 2)

    mod = module([((1, 4, 20), "float32")], body)
    changed = simplify(mod)
    assert operators(changed).count("permute_dims") == 2
    _close(mod, changed, (1, 4, 20))


def test_a_chain_of_them_has_no_transpose_between() -> None:
    def body(x: Any) -> Any:
        for channels in ((4, 9), (9, 7), (7, 5)):
            y = op.nn.conv1d(x, _weights(*channels[::-1], 3), padding=1)
            x = op.nn.relu(op.add(y, _weights(1, channels[1], 1)))
        return x

    mod = module([((1, 4, 20), "float32")], body)
    changed = simplify(mod)
    assert operators(changed).count("permute_dims") == 2
    operators_left = operators(changed)
    # Nothing stands between a convolution and what can be fused with it.
    for at in (index for index, name in enumerate(operators_left) if name == "nn.conv2d"):
        assert operators_left[at + 1 : at + 3] == ["add", "nn.relu"]
    _close(mod, changed, (1, 4, 20))


@pytest.mark.parametrize(("layout", "shape"), [("HWOI", (3, 3, 8, 1)), ("OHWI", (8, 3, 3, 1))])
def test_kernels_in_another_order(layout: str, shape: tuple[int, ...]) -> None:
    weights = _weights(*shape)
    mod = module(
        [((1, 6, 7, 8), "float32")],
        lambda x: op.nn.conv2d(
            x, weights, padding=1, groups=8, data_layout="NHWC", kernel_layout=layout, out_layout="NHWC"
        ),
    )
    changed = plain_convolutions(mod)
    (call,) = calls(changed)
    assert str(call.attrs.kernel_layout) == "HWIO"
    _close(mod, changed, (1, 6, 7, 8))


def test_kernels_that_are_inputs_stay() -> None:
    mod = module([((1, 4, 9), "float32"), ((2, 4, 3), "float32")], op.nn.conv1d)
    assert operators(plain_convolutions(mod)) == ["nn.conv1d"]


# Kernel, strides, padding, dilation, groups.
VOLUMES = [
    ((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1),
    ((3, 2, 1), (2, 1, 3), (0, 1, 2), (1, 1, 1), 1),
    ((2, 3, 3), (1, 2, 1), (2, 0, 1, 0, 1, 3), (2, 1, 2), 1),
    ((1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1), 1),
    ((1, 1, 1), (2, 1, 1), (0, 0, 0), (1, 1, 1), 1),
    ((3, 1, 1), (2, 1, 1), (2, 0, 0), (2, 1, 1), 2),
    ((3, 1, 1), (1, 2, 1), (1, 0, 0), (1, 1, 1), 1),
    ((1, 1, 1), (3, 2, 2), (1, 1, 0), (1, 1, 1), 1),
    ((3, 3, 2), (1, 1, 1), (1, 1, 0), (1, 1, 1), 2),
    ((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1), 4),
]


def _in_one(builder: relax.BlockBuilder, results: list[Any]) -> Any:
    return op.concat([builder.emit(op.reshape(builder.emit(result), [-1])) for result in results], 0)


@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.heavy), True])
def test_convolutions_of_volumes(dynamic: bool) -> None:
    """In one module that returns one vector of all results; the batch and the depth are dynamic or not."""
    given = [tirx.Var("n", "int64"), 4, tirx.Var("d", "int64"), 6, 7] if dynamic else [2, 4, 5, 6, 7]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(given, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            results = [
                op.nn.conv3d(
                    x, _weights(8, 4 // groups, *kernel), strides=strides, padding=padding,
                    dilation=dilation, groups=groups,
                )
                for kernel, strides, padding, dilation, groups in VOLUMES
            ]  # fmt: skip
            channels_last = op.permute_dims(x, [0, 2, 3, 4, 1])
            results.append(
                op.nn.conv3d(
                    builder.emit(channels_last), _weights(3, 3, 3, 4, 5), padding=1,
                    data_layout="NDHWC", kernel_layout="DHWIO",
                )
            )  # fmt: skip
            out = builder.emit_output(_in_one(builder, results))
        builder.emit_func_output(out)
    mod = builder.get()
    changed = plain_convolutions(mod)
    assert "nn.conv3d" in operators(mod) and "nn.conv3d" not in operators(changed)
    _close(mod, changed, (2, 4, 5, 6, 7))
