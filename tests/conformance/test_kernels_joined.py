"""Concats without a kernel: results, and which operands are written in place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.graph.pipeline import simplify
from relaxed import const, module, run_by_tvm
from tvm import relax

from .lowered import Compiled, close, runnable

op = relax.op
RNG = np.random.default_rng(21)


def conv(x: Any, inputs: int, outputs: int, size: int = 1, groups: int = 1) -> Any:
    weights = const(RNG.standard_normal((outputs, inputs // groups, size, size)) / (inputs * size))
    return op.nn.conv2d(x, weights, padding=size // 2, groups=groups)


def _branches(x: Any) -> Any:
    """Of every family, odd widths; after it a 1x1 convolution."""
    a = op.nn.relu(conv(x, 7, 5))
    b = op.nn.silu(conv(a, 5, 17, 3))
    c = conv(x, 7, 7, 3, groups=7)
    d = op.nn.max_pool2d(x, 3, 1, 1)
    return conv(op.concat([a, b, c, d], 1), 36, 9)


def _padded(x: Any) -> Any:
    """The result is stored in the larger tensor of the padding after it."""
    return op.nn.relu(conv(op.concat([conv(x, 7, 8), op.nn.relu(conv(x, 7, 3, 3))], 1), 11, 6, 3))


def _read_again(x: Any) -> Any:
    """Operands that others read too, as a residual and through a padding."""
    a, b = conv(x, 7, 6), op.nn.relu(conv(x, 7, 6))
    joined = conv(op.concat([a, b], 1), 12, 6)
    return op.add(op.add(joined, a), op.nn.avg_pool2d(b, 3, 1, 1))


def _twice(x: Any) -> Any:
    a = op.nn.relu(conv(x, 7, 9))
    return conv(op.concat([a, conv(x, 7, 9), a], 1), 27, 5)


def _lines(x: Any) -> Any:
    """Along the height; a padding of the second operand looks like the way to its place."""
    a, b = conv(x, 7, 8), op.nn.relu(conv(x, 7, 8))
    joined = conv(op.concat([a, b], 2), 8, 3)
    padded = op.nn.pad(b, [0, 0, 0, 0, 11, 0, 0, 0], "constant", 0.0)
    return op.add(joined, conv(padded, 8, 3))


def _resized(x: Any) -> Any:
    """One kernel resizes two operands and joins them, which is one copy too."""
    small = [op.nn.max_pool2d(conv(x, 7, 8), 2, 2) for _ in range(2)]
    big = [op.image.resize2d(one, (11, 10), method="nearest_neighbor") for one in small]
    return conv(op.concat([*big, conv(x, 7, 4)], 1), 20, 4, 3)


def _read_by_a_convolution(x: Any) -> Any:
    """A convolution reads the first operand, which is copied; the result is stored in a padded tensor."""
    y = op.nn.silu(conv(x, 7, 24))
    z = op.nn.silu(conv(conv(y, 24, 5), 5, 24))
    weights = const(RNG.standard_normal((6, 48, 1, 3)) / 48)
    return op.nn.conv2d(op.concat([y, z], 1), weights, padding=[0, 1, 0, 1])


# name → (what it computes, kernels that are left of its concats)
BODIES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "branches": (_branches, 0),
    "padded": (_padded, 0),
    "read_again": (_read_again, 0),
    "read_by_a_convolution": (_read_by_a_convolution, 0),
    "twice": (_twice, 1),
    "lines": (_lines, 0),
    "resized": (_resized, 1),
}


def _steps(compiled: Compiled, name: str) -> int:
    return sum(name in step.label.split("+") for step in compiled.steps)


# With two images, as one shows them.
_HEAVY = tuple(name for name in BODIES if name != "lines")
RUNS = [
    *(pytest.param(n, 1, "off", marks=[pytest.mark.heavy] if n == "lines" else []) for n in BODIES),
    *(pytest.param(n, 2, "off", marks=[pytest.mark.heavy] if n in _HEAVY else []) for n in BODIES),
]


@pytest.mark.parametrize(
    ("name", "batch", "winograd"),
    [*RUNS, pytest.param("branches", 1, "f4", marks=pytest.mark.heavy), ("padded", 1, "f4")],
)
def test_the_result_is_the_concats(name: str, batch: int, winograd: str, tmp_path: Path) -> None:
    body, left = BODIES[name]
    mod = module([((batch, 7, 11, 10), "float32")], body)
    compiled = Compiled(simplify(mod), runnable("x86_64"), tmp_path, winograd=winograd).load()
    assert ("winograd" in compiled.families) == (winograd != "off")
    assert _steps(compiled, "concat") == left
    x = RNG.standard_normal((batch, 7, 11, 10)).astype("f4")
    for got, want in zip(compiled.run([x]), run_by_tvm(mod, [x]), strict=True):
        close(got, want, 2e-4 if winograd == "f4" else 2e-5)


def test_it_may_be_the_models_output(tmp_path: Path) -> None:
    def body(x: Any) -> Any:
        a, b = (
            op.nn.relu(op.nn.conv2d(x, weights, data_layout="NHWC", kernel_layout="HWIO")) for weights in both
        )
        return op.concat([a, b], 3)

    both = [const(RNG.standard_normal((1, 1, 7, width)) / 7) for width in (3, 8)]
    mod = module([((1, 5, 6, 7), "float32")], body)
    compiled = Compiled(simplify(mod), runnable("x86_64"), tmp_path).load()
    assert _steps(compiled, "concat") == 0 and len(compiled.steps) == 2
    x = RNG.standard_normal((1, 5, 6, 7)).astype("f4")
    close(compiled.run([x])[0], run_by_tvm(mod, [x])[0])


def test_an_input_is_copied_to_its_place(tmp_path: Path) -> None:
    weights = const(RNG.standard_normal((1, 1, 7, 12)) / 7)

    def body(x: Any) -> Any:
        return op.concat([x, op.nn.conv2d(x, weights, data_layout="NHWC", kernel_layout="HWIO")], 3)

    mod = module([((2, 5, 6, 7), "float32")], body)
    compiled = Compiled(simplify(mod), runnable("x86_64"), tmp_path).load()
    assert sorted(step.label for step in compiled.steps) == ["conv2d", "copy"]
    x = RNG.standard_normal((2, 5, 6, 7)).astype("f4")
    close(compiled.run([x])[0], run_by_tvm(mod, [x])[0])


def test_not_where_more_would_be_alive(tmp_path: Path) -> None:
    """A small operand long before a large one: the whole would be alive while the peak is reached."""

    def body(x: Any) -> Any:
        builder = relax.BlockBuilder.current()
        early = builder.emit(conv(x, 8, 8))
        y = builder.emit(op.nn.relu(conv(x, 8, 40)))
        y = builder.emit(op.nn.relu(conv(y, 40, 40)))
        late = builder.emit(conv(y, 40, 8))
        return conv(op.concat([early, late], 1), 16, 4)

    mod = module([((1, 8, 12, 12), "float32")], body)
    assert _steps(Compiled(simplify(mod), runnable("x86_64"), tmp_path), "concat") == 1


def test_a_part_of_a_split_behind_another_operand(tmp_path: Path) -> None:
    """A cache and the newest values, a part of one product: fusion passes the part to the concat first."""
    shapes = [(2, 1, 4, 9, 16), (1, 4, 1, 48)]

    def body(past: Any, x: Any) -> Any:
        parts = op.split(x, 3, 3)
        chances, key, value = (parts[number] for number in range(3))
        old = op.take(past, relax.const(1, "int64"), 0, mode="clip")
        values = op.concat([old, value], 2)
        return op.multiply(op.matmul(values, op.permute_dims(chances, [0, 1, 3, 2])), op.sum(key, 3, True))

    mod = module([(shape, "float32") for shape in shapes], body)
    compiled = Compiled(simplify(mod), runnable("x86_64"), tmp_path).load()
    assert _steps(compiled, "concat") == 0
    inputs = [RNG.standard_normal(shape).astype("f4") for shape in shapes]
    close(compiled.run(inputs)[0], run_by_tvm(mod, inputs)[0], 1e-5)
