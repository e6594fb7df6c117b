"""Weights in 16, 8 and 4 bits: stored as they are, widened by kernels, on processors of every kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config import Target, load_target
from kiln.config.library import load_variant
from kiln.emit.objects import compile_object
from kiln.lower.pipeline import Lowering, lower
from tvm import relax

from . import arithmetic, compact_cases
from .emulated import memory_of, opened
from .lowered import Array, Compiled, close, const, module, runnable
from .programs import execute

op = relax.op
ALL = 1 << 20  # larger than any matrix: one block
Make = Callable[[tuple[int, ...]], Array]


def _levels(bits: int, block: tuple[int, int], zero: bool = False, half_scales: bool = False) -> Make:
    return lambda shape: compact_cases.levels(shape, bits, block, zero, half_scales)


# By name: the values, and the bits of an element with all that belongs to it in a matrix of 200 x 72.
KINDS: dict[str, tuple[Make, float]] = {
    "float16": (compact_cases.half, 16),
    "bfloat16": (compact_cases.brain, 16),
    "int8": (_levels(8, (ALL, ALL)), 8.3),
    "int8 by column": (_levels(8, (ALL, 1), zero=True), 8.4),
    "int8 by row": (_levels(8, (1, ALL), zero=True), 8.8),
    "int8 in blocks": (_levels(8, (32, 1), zero=True, half_scales=True), 9.3),
    "int4 by column": (_levels(4, (ALL, 1)), 4.3),
    "int4 by row": (_levels(4, (1, ALL)), 4.6),
    "int4 in blocks": (_levels(4, (64, 1), zero=True, half_scales=True), 4.8),
    "int4 in odd blocks": (_levels(4, (25, 1), zero=True), 7.1),  # a block of 25 fills words of 32
}
# x86-64: SSE without conversions of float16, AVX2, AVX-512. In the gate AVX2 is lowered alone: with the other
# variants, whose last one packs the weights for all, it takes four times as long.
VARIANTS = [*(pytest.param(name, marks=pytest.mark.heavy) for name in ("base", "v3", "v4")), "v3 alone"]


def _runnable(variant: str) -> tuple[Target, str]:
    """A target and the name of its variant; skips where this machine cannot run that."""
    name = load_target("x86_64_v2").base if variant == "base" else variant.removesuffix(" alone")
    target = runnable("x86_64_v2", name)
    return target.for_variant(name) if variant.endswith("alone") else target, name


def _check(
    folder: Path, variant: str, shapes: list[tuple[int, ...]], cases: list[tuple[Any, Any]], kind: str
) -> Compiled:
    """Compile and run `cases`, pairs (expression of the inputs, result by NumPy) as one program."""
    target, name = _runnable(variant)
    inputs = [np.random.default_rng(3).normal(size=shape).astype("f4") for shape in shapes]
    mod = module([(shape, "float32") for shape in shapes], lambda *x: [case[0](*x) for case in cases])
    program = Compiled(mod, target, folder, variant=name).load()
    for index, (result, case) in enumerate(zip(program.run(inputs), cases, strict=True)):
        want = case[1](*(value.astype("f8") for value in inputs))
        scale = float(np.abs(want).max())
        assert np.isfinite(result).all(), f"{kind}, {index}"
        close(result / scale, want / scale, 3e-6)
    return program


@pytest.mark.parametrize("variant", VARIANTS)
def test_dense_layers_of_every_kind_and_number_of_rows(variant: str, tmp_path: Path) -> None:
    cases, shapes = [], [(1, 200), (3, 200), (40, 200), (5, 203)]
    for number, (make, _) in enumerate(KINDS.values()):
        weights = make((200, 72))
        rows = (0, 1, 2) if variant == "base" and number % 3 == 0 else (number % 3, 0)
        rows = rows[:1] if variant == "v3 alone" else rows  # in the gate
        for row in dict.fromkeys(rows):
            cases.append(
                (lambda *x, w=weights, r=row: op.nn.relu(op.matmul(x[r], const(w))),
                 lambda *x, w=weights, r=row: np.maximum(x[r] @ w.astype("f8"), 0))
            )  # fmt: skip
    odd = compact_cases.levels((203, 72), 4, (ALL, 1), zero=True)
    cases.append((lambda *x: op.matmul(x[3], const(odd)), lambda *x: x[3] @ odd.astype("f8")))
    outputs = _check(tmp_path, variant, shapes, cases, "dense")
    assert set(outputs.families) == {"compact_gemm"}


@pytest.mark.heavy
@pytest.mark.parametrize("variant", VARIANTS)
def test_convolutions(variant: str, tmp_path: Path) -> None:
    """3x3 of stride 2, grouped, depthwise, and of three channels, whose pairs would straddle positions."""
    cases = []
    attributes = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    forms: list[tuple[tuple[int, ...], int, int]] = [
        ((3, 3, 36, 72), 2, 1), ((3, 3, 12, 72), 1, 3), ((3, 3, 1, 36), 1, 36), ((1, 1, 36, 40), 1, 1),
        ((3, 5, 3, 48), 2, 12),
    ]  # fmt: skip
    kinds = ["float16", "bfloat16", "int8 by column", "int4 by column", "int8 by row"]
    for number, (shape, stride, groups) in enumerate(forms):
        for kind in (kinds[number % 5], kinds[(number + 2) % 5]):
            weights = KINDS[kind][0](shape)
            cases.append(
                (lambda x, w=weights, s=stride, g=groups:
                    op.nn.conv2d(x, const(w), strides=s, groups=g, **attributes),
                 lambda x, w=weights, s=stride, g=groups: arithmetic.conv2d(x, w.astype("f8"), s, groups=g))
            )  # fmt: skip
    blocks = compact_cases.levels((3, 3, 64, 24), 4, (32, 1))
    pick = lambda x: op.concat([x, op.strided_slice(x, [3], [0], [28])], 3)  # noqa: E731
    cases.append((
        lambda x: op.nn.conv2d(pick(x), const(blocks), **attributes),
        lambda x: arithmetic.conv2d(np.concatenate([x, x[..., :28]], 3), blocks.astype("f8")),
    ))  # fmt: skip
    _check(tmp_path, variant, [(1, 9, 8, 36)], cases, "conv")


@pytest.mark.heavy
def test_tables_and_constant_operands(tmp_path: Path) -> None:
    """Embeddings, tables in elementwise steps, and batched products with a constant."""
    cases: list[tuple[Any, Any]] = []
    for kind in ("float16", "bfloat16", "int8 by column", "int8 by row", "int4 in blocks", "int4 by row"):
        table, stack = KINDS[kind][0]((48, 100)), KINDS[kind][0]((2, 40, 48))
        cases.append((lambda x, y, t=table: op.multiply(op.add(x, const(t)), x),
                      lambda x, y, t=table: (x + t) * x))  # fmt: skip
        cases.append((lambda x, y, w=stack: op.matmul(y, op.permute_dims(const(w), [0, 2, 1])),
                      lambda x, y, w=stack: y @ w.astype("f8").transpose(0, 2, 1)))  # fmt: skip
    program = _check(tmp_path, "v3", [(48, 100), (2, 30, 48)], cases, "tables")
    floats = [v for v in program.result.params.values() if v.dtype == np.float32 and v.nbytes > 3000]
    assert not floats


def test_rows_of_embeddings(tmp_path: Path) -> None:
    tables = [KINDS[kind][0]((50, 96)) for kind in ("float16", "int8 by row", "int4 in blocks")]
    tables.append(compact_cases.levels((50, 100), 4, (1, 32), zero=True))
    mod = module([((3, 5), "int32")], lambda i: [op.take(const(t), i, 0, "clip") for t in tables])
    indices = np.random.default_rng(0).integers(0, 50, (3, 5)).astype("int32")
    program = Compiled(mod, _runnable("v3")[0], tmp_path, variant="v3").load()
    for table, result in zip(tables, program.run([indices]), strict=True):
        close(result, table[indices], 1e-6)
    stored = sum(value.nbytes for value in program.result.params.values())
    assert stored < 0.29 * sum(table.nbytes for table in tables)


def test_open_numbers_of_rows_share_the_weights(tmp_path: Path) -> None:
    """Kernels for one row and for many read the same bytes."""
    weights = compact_cases.levels((96, 80), 4, (32, 1))
    target = load_target("aarch64")
    packed = []
    for rows in (1, 200):
        mod = module([((rows, 96), "float32")], lambda x: op.matmul(x, const(weights)))
        result = Compiled(mod, target, tmp_path / str(rows)).result
        packed.append(sorted(value.tobytes() for value in result.params.values()))
    assert packed[0] == packed[1]


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_weights(kind: str, tmp_path: Path) -> None:
    make, bits = KINDS[kind]
    weights = make((200, 72))
    mod = module([((4, 200), "float32")], lambda x: op.matmul(x, const(weights)))
    result = Compiled(mod, load_target("cortex_m4"), tmp_path).result
    assert sum(value.nbytes for value in result.params.values()) <= bits / 8 * weights.size


def _rows_by_bytes() -> list[tuple[Any, Any]]:
    """Products of rows of 203 numbers with weights of 8 and 4 bits: expressions, and results by NumPy."""
    kinds = [kind for kind in KINDS if "int" in kind and "row" not in kind]
    weights = [KINDS[kind][0]((203, 136 + 33 * number)) for number, kind in enumerate(kinds)]
    return [
        (lambda *x, w=w, r=number % 2: op.nn.relu(op.matmul(x[r], const(w))),
         lambda *x, w=w, r=number % 2: np.maximum(x[r] @ w.astype("f8"), 0))
        for number, w in enumerate([*weights, *weights[:3]])
    ]  # fmt: skip


@pytest.mark.parametrize(
    "variant",
    [
        *(pytest.param(name, marks=pytest.mark.heavy) for name in ("base", "v3", "v4", "v4_vnni")),
        "v3 alone",
        "v4_vnni alone",
    ],
)
def test_one_row_by_sums_of_bytes(variant: str, tmp_path: Path) -> None:
    """Blocks that words of weights do not divide, a large value of x, and zeros; without VNNI of 4 bits."""
    cases = _rows_by_bytes()
    program = _check(tmp_path, variant, [(1, 203), (1, 203)], cases, "row")
    assert len({name for name, value in program.result.params.items() if value.dtype == np.int32}) >= 6
    if variant.startswith("v4_vnni"):
        inputs = [np.zeros((1, 203), "f4"), np.full((1, 203), 1e-38, "f4")]
        for result in program.separate(inputs):
            assert np.isfinite(result).all() and np.abs(result).max() < 1e-33
        for value in inputs:
            value[0, 7] = np.inf
        with np.errstate(invalid="ignore"):  # infinity times a weight of 0
            expected = [case[1](*inputs) for case in cases]
        for result, want in zip(program.separate(inputs), expected, strict=True):
            assert (np.isinf(result) == np.isinf(want)).all()


@pytest.mark.parametrize(
    "name", ["aarch64:dotprod", *(pytest.param(name, marks=pytest.mark.heavy) for name in
                                  ("aarch64:i8mm", "aarch64_sve:sve256", "aarch64_sve:sve512"))]
)  # fmt: skip
def test_one_row_by_dot_products_of_arm(name: str, tmp_path: Path) -> None:
    cases, target = _rows_by_bytes(), load_variant(name)
    mod = module([((1, 203), "float32")] * 2, lambda *x: [case[0](*x) for case in cases])
    steps = lower(mod, Lowering("m", target, "none"))
    code = compile_object(steps.functions, target, tmp_path / "rows.o")
    assert "sdot" in code or "partial.reduce.add" in code
    inputs = [np.random.default_rng(4).normal(size=(1, 203)).astype("f4") for _ in range(2)]
    with opened(target, tmp_path / "rows.o", [steps], tmp_path) as library:
        results = execute(steps, library, inputs, None, None, memory_of(library))
    for result, case in zip(results, cases, strict=True):
        want = case[1](*(value.astype("f8") for value in inputs))
        close(result / np.abs(want).max(), want / np.abs(want).max(), 3e-6)
