"""Convolutions and dense layers against numpy, over shapes that do not divide into tiles."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.kernels.cpu import conv2d_schedule, gemm_tile
from kiln.lower.pipeline import Lowering, lower
from tvm import relax

from . import arithmetic
from .lowered import Compiled, close, const, module, run, runnable, runnable_alone

CHANNELS = (1, 2, 3, 7, 8, 16, 17, 24, 33)
KERNELS = (1, 2, 3, 5, 7)
KINDS = ("plain", "two", "depthwise")


@dataclass(frozen=True)
class Case:
    """One convolution."""

    batch: int
    height: int
    width: int
    channels: int
    outputs: int
    kernel: tuple[int, int]
    stride: int
    dilation: int
    groups: int
    padding: tuple[int, int, int, int]

    def __str__(self) -> str:
        size = "x".join(str(n) for n in (self.batch, self.height, self.width, self.channels))
        kernel = "x".join(str(n) for n in self.kernel)
        return (
            f"{size}-{self.outputs} k{kernel} s{self.stride} d{self.dilation} g{self.groups} p{self.padding}"
        )


def _cases() -> tuple[list[Case], list[Case]]:
    """Pairs of channel counts, and every kernel with every stride, dilation, groups and batch.

    Returns those of the gate, and the rest. In the gate, every channel count occurs for inputs and for
    outputs, and a sixth of the convolutions covers every pair of their properties.
    """
    gate, rest = list[Case](), list[Case]()
    rng = np.random.default_rng(7)

    def sizes(kernel: tuple[int, int], dilation: int) -> tuple[int, int]:
        least = [(size - 1) * dilation + 1 for size in kernel]
        return int(least[0] + rng.integers(0, 9)), int(least[1] + rng.integers(0, 9))

    def padding() -> tuple[int, int, int, int]:
        if rng.integers(2):
            return 0, 0, 0, 0
        top, left, bottom, right = (int(n) for n in rng.integers(0, 3, 4))
        return top, left, bottom, right

    def pair(channels: int, outputs: int) -> Case:
        kernel = (1, 1) if (channels + outputs) % 2 else (3, 3)
        return Case(1, *sizes(kernel, 1), channels, outputs, kernel, 1, 1, 1, padding())

    pairs = list(itertools.product(enumerate(CHANNELS), enumerate(CHANNELS)))
    for (row, channels), (column, outputs) in pairs:
        (rest if (row + column) % len(CHANNELS) else gate).append(pair(channels, outputs))
    for size, stride, dilation, batch, kind in itertools.product(KERNELS, (1, 2), (1, 2), (1, 2), KINDS):
        kernel = (size, size) if rng.integers(4) else (size, int(rng.choice(KERNELS)))
        channels, outputs = (int(rng.choice(CHANNELS)) for _ in range(2))
        groups = 1
        if kind == "two":
            groups, channels, outputs = 2, channels * 2, outputs * 2
        elif kind == "depthwise":
            channels = max(channels, 2)
            groups = outputs = channels
        height, width = sizes(kernel, dilation)
        case = Case(batch, height, width, channels, outputs, kernel, stride, dilation, groups, padding())
        number = KERNELS.index(size) + KINDS.index(kind) + stride + 2 * dilation + 4 * batch
        (rest if number % 6 else gate).append(case)
    # depthwise with every channel count; more outputs than groups; a group with one output of many inputs
    for number, channels in enumerate(CHANNELS[1:]):
        case = Case(1, 11, 13, channels, channels, (3, 3), 1, 1, channels, (1, 1, 1, 1))
        (rest if number % 2 else gate).append(case)
    # depthwise in chunks of channels: one that is narrower and single lanes, several alike, two images
    gate.append(Case(1, 5, 11, 155, 155, (3, 3), 1, 1, 155, (1, 1, 1, 1)))
    gate.append(Case(2, 7, 9, 320, 320, (3, 3), 1, 1, 320, (0, 0, 0, 0)))
    gate.append(Case(1, 9, 12, 203, 203, (5, 5), 2, 1, 203, (2, 1, 2, 1)))
    # a row of taps that leaves no registers for shared inputs
    gate.append(Case(1, 1, 37, 20, 20, (1, 31), 1, 1, 20, (0, 15, 0, 15)))
    gate.append(Case(1, 6, 5, 4, 8, (3, 3), 1, 1, 4, (1, 1, 1, 1)))
    gate.append(Case(1, 6, 5, 12, 4, (3, 3), 1, 1, 4, (0, 1, 1, 0)))
    return gate, rest


IN_GATE, REST = _cases()
CASES = IN_GATE + REST
BATCHES = [part[start : start + 12] for part in (IN_GATE, REST) for start in range(0, len(part), 12)]
GATE = -(-len(IN_GATE) // 12)  # batches


def _batches(step: int) -> list[Any]:
    """Numbers of every `step`th batch. Those after the gate's are heavy; with a step, all but the first."""
    return [
        pytest.param(number, marks=[pytest.mark.heavy] if number >= (GATE if step == 1 else step) else [])
        for number in range(0, len(BATCHES), step)
    ]


def _convolution(case: Case, x: Any, weights: Any) -> Any:
    return relax.op.nn.conv2d(
        x, const(weights), strides=case.stride, padding=list(case.padding), dilation=case.dilation,
        groups=case.groups, data_layout="NHWC", kernel_layout="HWIO",
    )  # fmt: skip


def _compare(cases: list[Case], target_name: str, folder: Path) -> None:
    rng = np.random.default_rng(11)
    images = [rng.uniform(-1, 1, (c.batch, c.height, c.width, c.channels)).astype("f4") for c in cases]
    kernels = [rng.uniform(-1, 1, (*c.kernel, c.channels // c.groups, c.outputs)).astype("f4") for c in cases]

    def body(*xs: Any) -> list[Any]:
        return [_convolution(case, x, w) for case, x, w in zip(cases, xs, kernels, strict=True)]

    mod = module([(image.shape, "float32") for image in images], body)
    results = run(mod, images, runnable(target_name), folder)
    for case, image, weights, result in zip(cases, images, kernels, results, strict=True):
        want = arithmetic.conv2d(image, weights, case.stride, case.padding, case.dilation, case.groups)
        try:
            close(result, want)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error


@pytest.mark.parametrize("index", _batches(1))
def test_convolutions_on_avx2(index: int, tmp_path: Path) -> None:
    _compare(BATCHES[index], "x86_64", tmp_path)


@pytest.mark.parametrize("index", _batches(5))
def test_convolutions_on_sse4(index: int, tmp_path: Path) -> None:
    _compare(BATCHES[index], "x86_64_v2", tmp_path)


@pytest.mark.heavy  # in the gate, test_kernels_variants.py has such panels on AVX-512 itself
@pytest.mark.parametrize("target_name", ["x86_64", "x86_64_v2"])
def test_half_empty_vectors_take_two_steps_at_a_time(
    target_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1x1 convolutions and sequences as on AVX-512: vectors before the last one, groups, one pixel."""
    monkeypatch.setattr(gemm_tile, "_PAIRS", ("avx2", "sse4"))
    taken: list[bool] = []

    def pairs_pay(*sizes: Any) -> bool:
        taken.append(gemm_tile.pairs_pay(*sizes))
        return taken[-1]

    monkeypatch.setattr(conv2d_schedule, "pairs_pay", pairs_pay)
    cases = [
        Case(1, 5, 7, depth, outputs, (1, 1), 1, 1, 1, (0, 0, 0, 0))
        for depth, outputs in itertools.product((8, 10, 36, 9), (1, 2, 4, 9, 12, 17, 20, 25, 41))
    ]
    cases += [Case(2, 9, 11, 48, 2 * outputs, (1, 1), 1, 1, 2, (0, 0, 0, 0)) for outputs in (1, 10, 17)]
    cases += [
        Case(1, 1, 1, 16, 9, (1, 1), 1, 1, 1, (0, 0, 0, 0)),
        Case(3, 8, 8, 64, 18, (1, 1), 1, 1, 1, (0,) * 4),
    ]
    cases += [
        Case(1, 1, 101, 36, outputs * groups, (1, 7), stride, dilation, groups, (0, 0, 3, 3))
        for outputs, (stride, dilation, groups) in itertools.product((1, 5, 9, 20), ((1, 1, 1), (2, 3, 2)))
    ]
    _compare(cases, target_name, tmp_path)
    assert sum(taken) > 20
    assert sum(taken) < len(taken)


# Padding so wide that kernels skip the taps that read it: strides, every side, several images, one line,
# pixels that read nothing else, two panels of weights, and more lines than fit a part.
WIDE = [
    Case(1, 16, 16, 5, 20, (3, 3), 1, 12, 1, (12, 12, 12, 12)),
    Case(2, 13, 17, 8, 33, (3, 3), 1, 9, 1, (9, 9, 9, 9)),
    Case(1, 20, 19, 3, 7, (3, 3), 2, 11, 1, (11, 11, 11, 11)),
    Case(1, 9, 14, 16, 24, (5, 4), 1, 5, 1, (20, 3, 0, 15)),
    Case(1, 1, 50, 7, 17, (1, 3), 1, 40, 1, (0, 40, 0, 40)),
    Case(1, 5, 6, 4, 9, (1, 1), 1, 1, 1, (7, 0, 8, 9)),
    Case(3, 33, 33, 48, 64, (3, 3), 1, 24, 1, (24, 24, 24, 24)),
]


@pytest.mark.parametrize("target_name", ["x86_64", "x86_64_v2"])
def test_wide_padding_is_skipped(target_name: str, tmp_path: Path) -> None:
    """With an epilogue, and beside a reader of the same image with narrow padding, which is in place."""
    rng = np.random.default_rng(12)
    images = [rng.uniform(-1, 1, (c.batch, c.height, c.width, c.channels)).astype("f4") for c in WIDE]
    kernels = [rng.uniform(-1, 1, (*c.kernel, c.channels, c.outputs)).astype("f4") for c in WIDE]
    narrow = rng.uniform(-1, 1, (3, 3, 5, 6)).astype("f4")
    beside = Case(1, 16, 16, 5, 6, (3, 3), 1, 1, 1, (1, 1, 1, 1))

    def body(*xs: Any) -> list[Any]:
        inputs = [relax.op.nn.relu(x) for x in xs]
        convolutions = [_convolution(*entry) for entry in zip(WIDE, inputs, kernels, strict=True)]
        results = [relax.op.nn.relu(relax.op.add(one, const(np.float32(0.5)))) for one in convolutions]
        return [*results, _convolution(beside, inputs[0], narrow)]

    mod = module([(image.shape, "float32") for image in images], body)
    compiled = Compiled(mod, runnable_alone(target_name), tmp_path).load()
    assert compiled.families.count("conv2d") == len(WIDE) + 1
    assert compiled.families.count("border") == 1  # the narrow padding
    *results, last = compiled.run(images)
    for case, image, weights, result in zip(WIDE, images, kernels, results, strict=True):
        sums = arithmetic.conv2d(np.maximum(image, 0), weights, case.stride, case.padding, case.dilation)
        close(result, np.maximum(sums + 0.5, 0))
    close(last, arithmetic.conv2d(np.maximum(images[0], 0), narrow, padding=beside.padding))


def test_groups_are_a_loop(tmp_path: Path) -> None:
    """Tasks are groups where there are as many as cores, else panels; a panel may be the last of several."""
    cases = [
        Case(1, 20, 20, 8 * groups, columns * groups, (3, 3), 1, 1, groups, (1, 1, 1, 1))
        for groups, columns in ((2, 64), (3, 40), (8, 5), (16, 24), (9, 17))
    ]
    _compare(cases, "x86_64", tmp_path)


def test_code_does_not_grow_with_the_number_of_groups() -> None:
    def lowered(groups: int) -> int:
        case = Case(1, 14, 14, 4 * groups, 4 * groups, (3, 3), 1, 1, groups, (0, 0, 0, 0))
        weights = np.ones((3, 3, 4, case.outputs), "f4")
        image = ((1, 14, 14, case.channels), "float32")
        mod = module([image], lambda x: [_convolution(case, x, weights)])
        functions = lower(mod, Lowering("m", load_target("aarch64"), "pthread", winograd="off")).functions
        return sum(len(function.script()) for function in functions.values())

    assert lowered(64) < 1.05 * lowered(8)


def test_the_grid_reaches_both_families() -> None:
    assert {case.channels for case in CASES} >= set(CHANNELS)
    assert {case.outputs for case in CASES} >= set(CHANNELS)
    assert {case.kernel[0] for case in CASES} == set(KERNELS)
    assert any(case.groups == case.channels == case.outputs for case in CASES)


@pytest.mark.parametrize(
    ("target_name", "first", "step"),
    [("x86_64", 0, 3), ("x86_64_v2", 1, 3), pytest.param("x86_64", 0, 1, marks=pytest.mark.heavy)],
)
def test_dense_layers(target_name: str, first: int, step: int, tmp_path: Path) -> None:
    """Every `step`th shape."""
    rng = np.random.default_rng(3)
    shapes = [
        ((rows, depth), columns)
        for rows, depth, columns in itertools.product((1, 2, 7, 13), (1, 3, 17, 64), (1, 7, 24, 33))
    ]
    shapes += [((1, 40), columns) for columns in (57, 64, 71, 200)]  # several panels at once, and a rest
    shapes += [((2, 3, 5), 9), ((1, 1, 1, 8), 10), ((3, 2, 2, 7), 17)]
    shapes = shapes[first::step]
    data = [rng.uniform(-1, 1, shape).astype("f4") for shape, _ in shapes]
    weights = [rng.uniform(-1, 1, (shape[-1], columns)).astype("f4") for shape, columns in shapes]
    bias = [rng.uniform(-1, 1, columns).astype("f4") for _, columns in shapes]

    def body(*xs: Any) -> list[Any]:
        return [
            relax.op.add(relax.op.matmul(x, const(w)), const(b))
            for x, w, b in zip(xs, weights, bias, strict=True)
        ]

    mod = module([(x.shape, "float32") for x in data], body)
    compiled = Compiled(mod, runnable(target_name), tmp_path).load()
    assert set(compiled.families) == {"conv2d"}
    for x, w, b, result in zip(data, weights, bias, compiled.run(data), strict=True):
        close(result, x.astype("f8") @ w + b)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_one_row_and_many_share_their_packed_weights(dtype: str, tmp_path: Path) -> None:
    """Buckets of one model store one copy."""
    rng = np.random.default_rng(4)
    sizes = rng.integers(-99, 100, (40, 150))
    weights = sizes.astype(dtype) if dtype == "int8" else rng.normal(0, 1, (40, 150)).astype(dtype)

    def packed(rows: int) -> Any:
        mod = module(
            [((rows, 40), dtype)],
            lambda x: relax.op.matmul(x, const(weights), out_dtype="int32" if dtype == "int8" else "float32"),
        )
        folder = tmp_path / str(rows)
        folder.mkdir()
        (only,) = Compiled(mod, runnable("x86_64"), folder).result.params.values()
        return only

    one = packed(1)
    assert one.nbytes >= weights.nbytes
    assert np.array_equal(one, packed(5)) and np.array_equal(one, packed(100))


def test_weights_larger_than_the_cache_make_tasks_of_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    x = rng.uniform(-1, 1, (20, 700)).astype("f4")
    weights = rng.uniform(-1, 1, (700, 301)).astype("f4")
    target = runnable("x86_64")
    mod = module([(x.shape, "float32")], lambda v: relax.op.matmul(v, const(weights)))
    compiled = Compiled(mod, target, tmp_path).load()
    assert weights.nbytes > target.cache.l2 // 2
    assert compiled.steps[0].extent == -(-301 // 16)
    close(compiled.run([x])[0], x.astype("f8") @ weights)


def test_weights_computed_from_an_input(tmp_path: Path) -> None:
    """No packing is possible; the general loops take it."""
    rng = np.random.default_rng(6)
    x = rng.uniform(-1, 1, (1, 6, 7, 3)).astype("f4")
    weights = rng.uniform(-1, 1, (3, 3, 3, 5)).astype("f4")

    def body(image: Any, kernel: Any) -> Any:
        return relax.op.nn.conv2d(image, kernel, data_layout="NHWC", kernel_layout="HWIO", padding=1)

    mod = module([(x.shape, "float32"), (weights.shape, "float32")], body)
    result = run(mod, [x, weights], runnable("x86_64"), tmp_path)[0]
    close(result, arithmetic.conv2d(x, weights, padding=(1, 1, 1, 1)))
