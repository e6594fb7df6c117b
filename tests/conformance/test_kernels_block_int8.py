"""Products of integer rows by weights in blocks of 8 and 4 bits, on processors of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config import Target, load_target
from kiln.config.library import load_variant
from kiln.emit.objects import compile_object
from kiln.lower.pipeline import Lowering, lower
from tvm import relax

from . import compact_cases
from .emulated import memory_of, opened
from .lowered import Array, Compiled, close, const, module, runnable
from .programs import execute

op = relax.op
ALL = 1 << 20
# Bits, block, and whether blocks have zero points.
WEIGHTS = [
    (8, (ALL, 1), True), (8, (50, 1), False), (8, (32, 1), True), (4, (ALL, 1), False), (4, (64, 1), True),
    (4, (25, 1), False),
]  # fmt: skip
# One row, and so many that they are more than one tile; the last block has 203 - 192 = 11 terms of k, or 3.
SHAPES = [(1, 203), (3, 203), (35, 203)]


def _cases(weights: list[tuple[int, tuple[int, int], bool]], rows: list[int]) -> list[tuple[int, Array]]:
    """By case, the number of the operand and the weights: of 100 columns, which end within a panel, or 64."""
    return [
        (row, compact_cases.levels((203, 100 - 36 * (number % 2)), bits, block, zero))
        for number, (bits, block, zero) in enumerate(weights)
        for row in rows
    ]


def _inputs(dtype: str) -> list[Array]:
    """Rows of all levels, of which some are the least one."""
    limits, generator = np.iinfo(dtype), np.random.default_rng(5)
    inputs = [generator.integers(limits.min, limits.max + 1, shape).astype(dtype) for shape in SHAPES]
    for value in inputs:
        value[0, :9] = limits.min
    return inputs


def _module(cases: list[tuple[int, Array]], dtype: str) -> Any:
    def body(*x: Any) -> list[Any]:
        return [op.nn.relu(op.matmul(x[row], const(w), out_dtype="float32")) for row, w in cases]

    return module([(shape, dtype) for shape in SHAPES], body)


def _check(results: list[Array], cases: list[tuple[int, Array]], inputs: list[Array]) -> None:
    for result, (row, weights) in zip(results, cases, strict=True):
        want = np.maximum(inputs[row].astype("f8") @ weights.astype("f8"), 0)
        close(result / want.max(), want / want.max(), 4e-7)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize(
    "variant", [*(pytest.param(name, marks=pytest.mark.heavy) for name in ("base", "v4", "v4_vnni")), "v3"]
)
def test_x86(variant: str, dtype: str, tmp_path: Path) -> None:
    """In the gate, AVX2 and half of the weights alone: each is a kernel."""
    name = load_target("x86_64_v2").base if variant == "base" else variant
    target: Target = runnable("x86_64_v2", name).for_variant(name)
    weights = [each for each in WEIGHTS if dtype == "int8" or each[0] == 4 or each[1][0] < ALL]
    gate = variant == "v3"
    cases = _cases(weights[1::2] if gate else weights, [0, 2] if gate and dtype == "int8" else [1])
    inputs = _inputs(dtype)
    program = Compiled(_module(cases, dtype), target, tmp_path).load()
    assert set(program.families) == {"block_int8"}
    _check(program.separate(inputs, seed=1), cases, inputs)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "name",
    ["aarch64:dotprod", "aarch64:i8mm", "aarch64", "aarch64_sve:sve256", "armv7", "riscv64:rvv128"],
)
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_other_processors(name: str, dtype: str, tmp_path: Path) -> None:
    target = load_variant(name) if ":" in name else load_target(name).for_variant(load_target(name).base)
    weights = [each for each in WEIGHTS if dtype == "int8" or each[0] == 4 or each[1][0] < ALL]
    cases, inputs = _cases(weights, [0, 2] if dtype == "int8" else [1]), _inputs(dtype)
    steps = lower(_module(cases, dtype), Lowering("m", target, "none"))
    compile_object(steps.functions, target, tmp_path / "rows.o")
    with opened(target, tmp_path / "rows.o", [steps], tmp_path) as library:
        _check(execute(steps, library, inputs, None, None, memory_of(library)), cases, inputs)
