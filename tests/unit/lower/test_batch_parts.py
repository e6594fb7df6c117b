"""Layers in parts of a batch: the values of the whole batch, which operators are divided, and the choice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import tvm
from kiln.extents import shape_of
from kiln.graph.bindings import operator
from kiln.lower.batch_parts import in_batch_parts
from kiln.lower.batch_rules import batch_rule
from kiln.lower.patches import divided, regions_along
from kiln.tir.builder import Machine
from relaxed import Array, const, module, operators, run_by_tvm
from tvm import relax

op = relax.op
RNG = np.random.default_rng(5)
IMAGES = (6, 3, 12, 10)


def weights(*shape: int) -> Any:
    return const(RNG.normal(0, 1, shape))


def emit(expr: Any) -> Any:
    return relax.BlockBuilder.current().emit(expr)


def convolved(x: Any, kernel: Any, **attributes: Any) -> Any:
    return emit(op.nn.conv2d(x, kernel, data_layout="NHWC", kernel_layout="HWIO", **attributes))


def network(x: Any) -> Any:
    """Convolutions, a residual block with squeeze and excitation, pools, and an attention of the pixels."""
    image = emit(op.permute_dims(x, [0, 2, 3, 1]))
    stem = emit(op.nn.relu(op.add(convolved(image, weights(3, 3, 3, 8), padding=1), weights(1, 1, 1, 8))))
    scale = emit(op.sigmoid(emit(op.mean(stem, [1, 2], True))))
    block = emit(op.add(emit(op.multiply(stem, scale)), stem))
    padded = emit(op.nn.pad(block, [0, 0, 1, 0, 0, 1, 0, 0]))
    pooled = emit(op.nn.max_pool2d(padded, (2, 2), (2, 2), layout="NHWC"))
    joined = emit(op.concat([pooled, emit(op.strided_slice(pooled, [3], [2], [6]))], 3))
    rows = emit(op.nn.layer_norm(emit(op.reshape(joined, [6, -1, 12])), weights(12), weights(12), [-1]))
    keys = emit(op.matmul(rows, weights(12, 12)))
    scores = emit(op.nn.softmax(emit(op.matmul(rows, emit(op.permute_dims(keys, [0, 2, 1])))), -1))
    mixed = emit(op.matmul(scores, rows))
    return op.matmul(emit(op.max(mixed, [1])), weights(12, 40))


def made(shape: tuple[int, ...] = IMAGES, body: Callable[[Any], Any] = network) -> Any:
    global RNG
    RNG = np.random.default_rng(5)
    return module([(shape, "float32")], body)


def regions_of(mod: tvm.IRModule) -> list[Any]:
    return regions_along(mod, 0, partial(batch_rule, functions=dict(mod.functions_items())))


def images(shape: tuple[int, ...] = IMAGES) -> Array:
    values: Array = RNG.normal(0, 1, shape).astype("float32")
    return values


def machine(l2_bytes: int, shared_bytes: int = 64 << 20) -> Machine:
    return Machine(256, 16, False, l2_bytes, False, shared_bytes=shared_bytes)


def test_values_are_those_of_the_whole_batch() -> None:
    mod, x = made(), images()
    (want,) = run_by_tvm(mod, [x])
    found = regions_of(mod)
    cuts = {operator(region.calls[-1][1]) for region in found}
    assert cuts >= {
        "relax.add",
        "relax.nn.max_pool2d",
        "relax.concat",
        "relax.reshape",
        "relax.nn.layer_norm",
    }
    assert "relax.max" in cuts, "the last layer before the result"
    for region, count in ((found[-1], 2), (found[-1], 6), (found[len(found) // 2], 3)):
        new = divided(mod, region, count)
        assert new is not None
        assert operators(new).count("nn.conv2d") == count
        np.testing.assert_allclose(run_by_tvm(new, [x])[0], want, rtol=1e-5, atol=1e-5)


MIXED = [
    lambda x: op.mean(x, [0]),
    lambda x: op.sum(x),
    lambda x: op.nn.softmax(x, 0),
    lambda x: op.permute_dims(x, [1, 0, 2, 3]),
    lambda x: op.permute_dims(x),
    lambda x: op.reshape(x, [3, -1]),
    lambda x: op.concat([x, x], 0),
    lambda x: op.strided_slice(x, [0], [1], [4]),
    lambda x: op.flip(x, 0),
    lambda x: op.nn.pad(x, [1, 0, 0, 0, 0, 0, 0, 0]),
    lambda x: op.add(x, const(np.ones(IMAGES))),
    lambda x: op.matmul(x, const(np.ones((6, 3, 10, 4)))),
    lambda x: op.matmul(const(np.ones((4, 12))), x),
    lambda x: op.nn.layer_norm(
        x, const(np.ones((6, 3, 12, 10))), const(np.ones((6, 3, 12, 10))), [0, 1, 2, 3]
    ),
]


@pytest.mark.parametrize("body", MIXED, ids=map(str, range(len(MIXED))))
def test_operators_that_mix_elements_of_the_batch_are_not_divided(body: Callable[[Any], Any]) -> None:
    """Nor those that take one constant for each of them."""
    mod = made(body=lambda x: op.nn.relu(emit(body(emit(op.exp(x))))))
    name = operators(made(body=body))[-1]
    assert not any(
        operator(call) == f"relax.{name}" for region in regions_of(mod) for _, call in region.calls[1:]
    )


def test_an_operand_without_a_batch_of_its_own_is_not_divided() -> None:
    """The rows of a matrix that all images share are as many as there are images."""
    mod = made((6, 6, 4), lambda x: op.add(emit(op.exp(x)), emit(op.max(emit(op.tanh(x)), [0]))))
    assert {operator(region.calls[-1][1]) for region in regions_of(mod)} == {"relax.exp", "relax.tanh"}


def layers(x: Any) -> Any:
    """Large feature maps and small weights, then the reverse."""
    wide = convolved(emit(op.nn.relu(convolved(x, weights(3, 3, 4, 16)))), weights(1, 1, 16, 16))
    small = emit(op.nn.max_pool2d(wide, (20, 20), (20, 20), layout="NHWC"))
    deep = convolved(emit(op.nn.relu(convolved(small, weights(1, 1, 16, 900)))), weights(1, 1, 900, 16))
    return op.nn.relu(deep)


def test_layers_of_large_feature_maps_are_divided_and_those_of_large_weights_are_not() -> None:
    shape = (8, 42, 42, 4)
    mod = made(shape, layers)
    image = 2 * 16 * 40 * 40 * 4  # bytes of two feature maps of one image
    new = in_batch_parts(mod, machine(2 * image))
    convolutions = [shape_of(call)[0] for call in _calls(new) if operator(call) == "relax.nn.conv2d"]
    parts = convolutions.count(2) // 2
    assert parts == 4 and convolutions.count(8) == 2, "as few parts as the cache holds"
    x = images(shape)
    np.testing.assert_allclose(run_by_tvm(new, [x])[0], run_by_tvm(mod, [x])[0], rtol=1e-5, atol=1e-4)
    for unchanged in (
        in_batch_parts(mod, machine(8 * image)),
        in_batch_parts(made((1, *shape[1:]), layers), machine(1)),
    ):
        assert operators(unchanged).count("nn.conv2d") == 4


def halved(x: Any) -> Any:
    return emit(op.nn.max_pool2d(x, (2, 2), (2, 2), layout="NHWC"))


@pytest.mark.parametrize(
    ("batch", "parts", "cache"), [(64, 16, 90), (128, 16, 45), (34, 2, 400), (37, 1, 400)]
)
def test_the_number_of_parts_is_limited_and_divides_the_batch(batch: int, parts: int, cache: int) -> None:
    """An image and what the first layer makes of it have 20 KiB; `cache`: KiB."""
    mod = made((batch, 32, 32, 4), lambda x: op.nn.relu(halved(halved(halved(x)))))
    new = in_batch_parts(mod, machine(cache << 10))
    sizes = [shape_of(call)[0] for call in _calls(new) if operator(call) == "relax.nn.max_pool2d"]
    assert sizes[0] == batch // parts and sizes.count(sizes[0]) % parts == 0


def test_one_layer_stays_whole() -> None:
    """What it reads and writes moves in any case."""
    mod = made((64, 32, 32, 4), lambda x: op.nn.relu(halved(x)))
    assert operators(in_batch_parts(mod, machine(90 << 10))).count("nn.max_pool2d") == 1


def _calls(mod: tvm.IRModule) -> list[Any]:
    return [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
