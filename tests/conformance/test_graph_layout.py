"""ChannelsLast and transposed convolutions against the graph as it was, both run by TVM's own code."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from kiln.graph.bindings import operator
from kiln.graph.layout import channels_last
from kiln.graph.transposes import cancel_transposes
from relaxed import virtual_machine
from tvm import relax

Emit = Callable[[Any, Any], Any]


def module(shape: list[Any], body: Emit) -> tvm.IRModule:
    """A module whose main takes x of `shape` and returns what `body` emits."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(body(builder, x))
        builder.emit_func_output(result)
    return builder.get()


def run(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    machine = virtual_machine(mod)
    return machine["main"](tvm.runtime.tensor(x)).numpy()


def operators(mod: tvm.IRModule) -> list[str]:
    return [
        str(operator(b.value)).removeprefix("relax.")
        for block in mod["main"].body.blocks
        for b in block.bindings
        if operator(b.value)
    ]


def after(mod: tvm.IRModule) -> tvm.IRModule:
    result = cancel_transposes(channels_last(mod))
    steps = (relax.transform.EliminateCommonSubexpr(), relax.transform.DeadCodeElimination())
    for step in (relax.transform.CanonicalizeBindings(), *steps):
        result = step(result)
    return result


def weights(*shape: int) -> Any:
    return relax.const(np.random.default_rng(7).standard_normal(shape).astype("float32"))


def check(shape: list[int], body: Emit, transposes: int) -> None:
    mod = module(shape, body)
    changed = after(mod)
    x = np.random.default_rng(3).standard_normal(shape).astype("float32")
    want, got = run(mod, x), run(changed, x)
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 2e-5 * max(1.0, np.abs(want).max())
    assert operators(changed).count("permute_dims") == transposes, operators(changed)


def conv(x: Any, channels_out: int, channels_in: int, size: int = 3, **options: Any) -> Any:
    return relax.op.nn.conv2d(x, weights(channels_out, channels_in, size, size), **options)


def parts(b: Any, x: Any) -> Any:
    """Halves of the channels, one reversed, sliced and padded by reflection with rows that are taken."""
    halves = b.emit(relax.op.split(b.emit(conv(x, 6, 5)), 2, 1))
    first, second = (b.emit(relax.TupleGetItem(halves, at)) for at in range(2))
    turned = b.emit(relax.op.flip(second, 3))
    inner = b.emit(relax.op.strided_slice(turned, [2, 3], [1, 0], [8, 8], [2, 1]))
    rows = relax.const(np.array([1, 0, 0, 1, 2, 3, 3, 2], np.int64))
    wide = b.emit(conv(b.emit(relax.op.take(inner, rows, 2, mode="clip")), 3, 3))
    part = b.emit(relax.op.strided_slice(first, [2, 3], [0, 0], [6, 6]))
    return relax.op.where(b.emit(relax.op.less_equal(wide, part)), b.emit(relax.op.sin(wide)), part)


def levels(b: Any, x: Any) -> Any:
    """Images of levels whose scale the run computes, between pools."""
    image = b.emit(relax.op.nn.max_pool2d(x, (3, 3), padding=(1, 1)))
    width = b.emit(relax.op.subtract(b.emit(relax.op.max(image)), b.emit(relax.op.min(image))))
    how = b.emit(relax.op.multiply(width, relax.const(np.float32(0.01)))), relax.const(np.uint8(128)), 0
    quantised = b.emit(relax.op.quantize(image, *how, "uint8"))
    return relax.op.nn.max_pool2d(b.emit(relax.op.dequantize(quantised, *how, "float32")), (2, 2))


BODIES: dict[str, tuple[Emit, int]] = {
    "levels of the run": (levels, 2),
    "one convolution": (lambda b, x: conv(x, 6, 5, padding=1), 2),
    "constants of every rank": (
        lambda b, x: relax.op.add(
            relax.op.multiply(
                relax.op.add(b.emit(conv(x, 6, 5)), weights(1)),
                b.emit(relax.op.add(weights(6, 1, 1), weights(1))),
            ),
            weights(1, 6, 1, 1),
        ),
        2,
    ),
    "residual": (
        lambda b, x: relax.op.add(b.emit(conv(y := b.emit(conv(x, 6, 5)), 6, 6, padding=1)), y),
        2,
    ),
    "gate": (
        lambda b, x: relax.op.multiply(
            y := b.emit(conv(x, 6, 5)),
            b.emit(relax.op.sigmoid(b.emit(conv(b.emit(relax.op.mean(y, [2, 3], True)), 6, 6, 1)))),
        ),
        2,
    ),
    "mean without its axes": (lambda b, x: relax.op.mean(b.emit(conv(x, 6, 5)), [2, 3], False), 1),
    "mean over channels": (lambda b, x: relax.op.mean(b.emit(conv(x, 6, 5)), [1], False), 1),
    "softmax over channels": (lambda b, x: relax.op.nn.softmax(b.emit(conv(x, 6, 5)), 1), 2),
    "concat over channels": (
        lambda b, x: relax.op.concat([b.emit(conv(x, 6, 5)), b.emit(conv(x, 4, 5))], 1),
        2,
    ),
    "padding": (lambda b, x: relax.op.nn.pad(b.emit(conv(x, 6, 5)), [0, 0, 1, 2, 3, 4, 5, 6]), 2),
    "pools": (
        lambda b, x: relax.op.nn.avg_pool2d(
            b.emit(relax.op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1))), (2, 2), (1, 1), (1, 1)
        ),
        2,
    ),
    "resize": (lambda b, x: relax.op.image.resize2d(x, (20, 14), method="nearest_neighbor"), 2),
    "parts and reversed, repeated and logical elements": (parts, 2),
    "a transpose of the model's own": (
        lambda b, x: relax.op.permute_dims(b.emit(conv(x, 6, 5)), [0, 2, 3, 1]),
        1,
    ),
    "a reshape in the way": (
        lambda b, x: relax.op.nn.relu(b.emit(relax.op.reshape(b.emit(conv(x, 6, 5)), (1, 3, 2, 72)))),
        2,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_results_stay_and_transposes_vanish(name: str) -> None:
    body, transposes = BODIES[name]
    check([1, 5, 11, 10], body, transposes)


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_an_image_is_transposed_before_it_is_padded(mode: str) -> None:
    """Once for both convolutions; the other order moves more elements, and no padding is in place."""

    def body(b: Any, x: Any) -> Any:
        padded = b.emit(relax.op.nn.pad(x, [0, 0, 0, 0, 1, 2, 3, 0], mode, 0.5 if mode == "constant" else 0))
        return relax.op.add(b.emit(conv(padded, 6, 5)), b.emit(conv(padded, 6, 5, dilation=1)))

    check([1, 5, 11, 10], body, 2)
    order = operators(after(module([1, 5, 11, 10], body)))
    assert order[:2] == ["permute_dims", "nn.pad"] and order.count("nn.pad") == 1


@pytest.mark.parametrize("every", [3, pytest.param(2, marks=pytest.mark.heavy)])
def test_transposed_convolutions(every: int) -> None:
    """Strides, sizes and paddings in pairs, in one module that returns one vector of all results."""
    grid = itertools.product((1, 2, 3), (1, 2, 3, 4, 5), (0, 1))
    cases = [case for case in grid if sum(case) % every == 0]

    def body(builder: Any, x: Any) -> Any:
        results = [
            relax.op.nn.conv2d_transpose(
                x, weights(3, 4, size, size), strides=(stride, stride), padding=(padding, padding)
            )
            for stride, size, padding in cases
        ]
        return relax.op.concat([builder.emit(relax.op.reshape(builder.emit(y), [-1])) for y in results], 0)

    mod = module([2, 3, 5, 6], body)
    changed = after(mod)
    assert operators(mod).count("nn.conv2d_transpose") == len(cases)
    assert "nn.conv2d_transpose" not in operators(changed)
    x = np.random.default_rng(3).standard_normal((2, 3, 5, 6)).astype("float32")
    want, got = run(mod, x), run(changed, x)
    first = 0
    for stride, size, padding in cases:
        height, width = (stride * (edge - 1) + size - 2 * padding for edge in (5, 6))
        part = slice(first, first := first + 2 * 4 * height * width)
        error = np.abs(got[part] - want[part]).max()
        assert error <= 1e-5 * np.abs(want[part]).max(), (stride, size, padding)
    assert want.shape == got.shape == (first,)


def test_transposed_convolutions_with_groups_and_dilation() -> None:
    """Of lines, images and volumes, in one module that returns one vector of all results."""
    lines = [case for case in itertools.product((1, 4), (1, 3, 8), (1, 2), (1, 2, 4)) if sum(case) % 4 == 0]
    images = [case for case in itertools.product((1, 2), (1, 3), (1, 2), (1, 2, 4)) if sum(case) % 4 == 1]
    made = 0

    def body(builder: Any, x: Any) -> Any:
        nonlocal made
        results = []
        for stride, size, dilation, groups in lines:
            line = builder.emit(relax.op.reshape(x, [2, 4, 15]))
            given = {"strides": stride, "dilation": dilation, "groups": groups}
            padding, after = (1, 0) if size > 1 else (0, 0), int(stride > 1)
            results.append(
                relax.op.nn.conv1d_transpose(
                    line, weights(4, 3, size), padding=padding, output_padding=after, **given
                )
            )
        for stride, size, dilation, groups in images:
            given = {"strides": (stride, 1), "dilation": (1, dilation), "groups": groups}
            results.append(relax.op.nn.conv2d_transpose(x, weights(4, 3, size, 2), **given))
        volume = builder.emit(relax.op.reshape(x, [2, 4, 3, 1, 5]))
        for stride, size, groups in ((1, 3, 1), (2, 1, 2), (2, 3, 1)):
            given = {"strides": (stride, 2, 1), "padding": (0, 0, size // 2), "groups": groups}
            results.append(relax.op.nn.conv3d_transpose(volume, weights(4, 3, 2, 2, size), **given))
        made = len(results)
        return relax.op.concat([builder.emit(relax.op.reshape(builder.emit(y), [-1])) for y in results], 0)

    mod = module([2, 4, 3, 5], body)
    changed = after(mod)
    found = [operators(one) for one in (mod, changed)]
    assert [sum("transpose" in name for name in names) for names in found] == [made, 0]
    x = np.random.default_rng(3).standard_normal((2, 4, 3, 5)).astype("float32")
    want, got = run(mod, x), run(changed, x)
    assert want.shape == got.shape
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_transposed_convolutions_of_dynamic_sizes() -> None:
    """The slice that drops the padding has a size that can be computed from those of the input."""
    length = tvm.tirx.Var("t", "int64")

    def body(_: Any, x: Any) -> Any:
        return relax.op.nn.conv1d_transpose(x, weights(4, 3, 8), strides=4, padding=2)

    mod = module([2, 4, length], body)
    changed = after(mod)
    assert "nn.conv1d_transpose" not in operators(changed)
    legal = relax.transform.LegalizeOps()(changed)
    slices = [function for name, function in legal.functions_items() if "slice" in name.name_hint]
    assert slices and "if_then_else" not in "".join(function.script() for function in slices)
    x = np.random.default_rng(3).standard_normal((2, 4, 9)).astype("float32")
    want, got = run(mod, x), run(changed, x)
    assert want.shape == got.shape and np.abs(got - want).max() <= 1e-5


def test_transposed_convolution_with_output_padding() -> None:
    def body(builder: Any, x: Any) -> Any:
        return relax.op.nn.conv2d_transpose(
            x, weights(3, 4, 3, 3), strides=(2, 2), padding=(1, 1), output_padding=(1, 1)
        )

    mod = module([1, 3, 5, 6], body)
    x = np.random.default_rng(3).standard_normal((1, 3, 5, 6)).astype("float32")
    assert np.abs(run(mod, x) - run(after(mod), x)).max() <= 1e-5


def test_transposed_convolutions_whose_phases_have_other_kernels() -> None:
    """Phases of 3 x 3 with stride 2 have 4, 2, 2 and 1 taps: each is a convolution of its own."""
    shapes = [
        ((3, 3), (2, 2), (1, 1)),
        ((5, 3), (2, 2), (0, 0)),
        ((3, 5), (1, 4), (0, 2)),
        ((7, 3), (2, 2), (2, 1)),
    ]

    def body(builder: Any, x: Any) -> Any:
        results = [
            relax.op.nn.conv2d_transpose(x, weights(3, 16, *size), strides=strides, padding=padding)
            for size, strides, padding in shapes
        ]
        return relax.op.concat([builder.emit(relax.op.reshape(builder.emit(y), [-1])) for y in results], 0)

    mod = module([2, 3, 5, 6], body)
    changed = after(mod)
    assert operators(changed).count("nn.conv2d") == 4 * len(shapes)
    x = np.random.default_rng(3).standard_normal((2, 3, 5, 6)).astype("float32")
    want, got = run(mod, x), run(changed, x)
    assert want.shape == got.shape and np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_transposed_convolutions_of_single_elements() -> None:
    """Of images of one pixel every tap is used once: they are matmuls."""
    options = [
        ((4, 4), (1, 1), (0, 0), (1, 1)),
        ((3, 5), (2, 3), (1, 1), (1, 1)),
        ((3, 2), (2, 2), (1, 0), (2, 3)),
    ]

    def body(builder: Any, x: Any) -> Any:
        results = [
            relax.op.nn.conv2d_transpose(
                x, weights(6, 4, *size), strides=strides, padding=padding, dilation=dilation
            )
            for size, strides, padding, dilation in options
        ]
        return relax.op.concat([builder.emit(relax.op.reshape(builder.emit(y), [-1])) for y in results], 0)

    mod = module([2, 6, 1, 1], body)
    changed = after(mod)
    assert operators(changed).count("matmul") == len(options)
    x = np.random.default_rng(3).standard_normal((2, 6, 1, 1)).astype("float32")
    want, got = run(mod, x), run(changed, x)
    assert want.shape == got.shape and np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
