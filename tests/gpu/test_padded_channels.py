"""Images of few channels on GPUs: where channels of zeros are added, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from kiln.graph.bindings import operator
from kiln.lower.pipeline import fused
from tvm import relax

WEIGHTS = np.random.default_rng(0).standard_normal((5, 5, 3, 16), np.float32)


def _module(*, transposed: bool = True, twice: bool = False, outputs: int = 16) -> tvm.IRModule:
    """A convolution of an image of 3 channels; `twice`: the image is also an output."""
    shape = (1, 3, 20, 24) if transposed else (1, 20, 24, 3)
    x, builder = relax.Var("x", relax.TensorType(shape, "float32")), relax.BlockBuilder()
    with builder.function("main", [x], attrs={"num_input": 1, "kiln.dims": "{}"}):
        with builder.dataflow():
            image = builder.emit(relax.op.permute_dims(x, [0, 2, 3, 1])) if transposed else x
            weights = relax.const(np.ascontiguousarray(WEIGHTS[..., :outputs]))
            options: dict[str, Any] = {
                "strides": 2,
                "padding": 2,
                "data_layout": "NHWC",
                "kernel_layout": "HWIO",
            }
            result = builder.emit(relax.op.nn.conv2d(image, weights, **options))
            result = builder.emit(relax.op.nn.relu(result))
            results = [builder.emit_output(one) for one in ([result, image] if twice else [result])]
        builder.emit_func_output(relax.Tuple(results) if twice else results[0])
    return builder.get()


def _channels(mod: tvm.IRModule) -> list[int]:
    """Channels of the weights, by kernel of a convolution; each call is one kernel."""
    calls = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    calls = [call for call in calls if operator(call) == "relax.call_tir"]
    shapes = [[tuple(map(int, item.ty.shape)) for item in call.args[1].fields] for call in calls]
    return [len(calls), *(shape[2] for of_call in shapes for shape in of_call if shape[:2] == (5, 5))]


@pytest.mark.parametrize(
    ("options", "precision", "channels"),
    [
        ({}, "fp16", [2, 4]),
        ({}, "tf32", [2, 4]),
        ({}, "fp32", [2, 3]),  # no tensor cores
        ({"transposed": False}, "fp16", [1, 3]),  # another kernel would have to add them
        ({"outputs": 4}, "fp16", [2, 3]),  # too few for tensor cores
        ({"twice": True}, "fp16", [2, 3]),  # read as it is
    ],
)
def test_where_channels_are_added(options: dict[str, Any], precision: str, channels: list[int]) -> None:
    mod, params = fused(_module(**options), precision)
    assert _channels(mod) == channels
    (weights,) = (value for value in params.values() if value.shape[:2] == (5, 5))
    outputs = options.get("outputs", 16)
    np.testing.assert_allclose(weights[:, :, :3], WEIGHTS[..., :outputs], rtol=1e-3, atol=1e-3)
    assert not weights[:, :, 3:].any()
