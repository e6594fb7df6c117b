"""Values that are read more than once, in long chains: written out they would double at every step.

Many chains of static shape are one program, in memory and time that grow with their length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.golden.reference import open_reference
from symbolic import Array, write

from .programs import Program
from .rank_cases import Case, save

MATRIX = {"x": ("float", (4, 37))}
IMAGE = {"x": ("float", (1, 3, 9, 10))}
HALF: dict[str, Any] = {"half": np.float32(0.5)}
# One step of a chain, from {t} to {y}, whose values stay as they are.
DOUBLED = "{y}_s = Add({t}, {t})\n {y} = Mul({y}_s, half)"
DIAMOND = "{y}_a = Neg({t})\n {y}_b = Abs({t})\n {y}_c = Add({y}_a, {t})\n {y} = Sub({y}_b, {y}_c)"


def chain(start: str, end: str, length: int, step: str, name: str = "t") -> str:
    names = [start, *(f"{name}{index}" for index in range(length - 1)), end]
    return "\n".join(step.format(t=names[i], y=names[i + 1]) for i in range(length)) + "\n"


def cases() -> Iterator[Case]:
    rng = np.random.default_rng(0)
    full, deep = rng.normal(size=(8, 3, 3, 3)).astype("f4"), rng.normal(size=(3, 1, 3, 3)).astype("f4")
    weights = rng.normal(size=(37, 24)).astype("f4")
    before, behind = chain("x", "t", 16, DOUBLED), chain("c", "y", 16, DOUBLED, "u")
    images = {"Conv": "Conv<pads = [1, 1, 1, 1]>", "depthwise": "Conv<pads = [1, 1, 1, 1], group = 3>"}
    for name, value in {"Conv": full, "depthwise": deep}.items():
        yield Case(f"behind {name}", f"c = {images[name]}(x, w)\n{behind}", IMAGE, HALF | {"w": value})
    yield Case("around MatMul", f"{before} c = MatMul(t, w)\n{behind}", MATRIX, HALF | {"w": weights})
    yield Case(
        "around a product", f"{before} c = MatMul(t, v)\n{behind}", MATRIX | {"v": ("float", (37, 5))}, HALF
    )
    for name in (
        "Softmax<axis = -1>(t)", "LayerNormalization<axis = -1>(t, g, g)", "Transpose(t)", "Pad(t, p)",
        "Concat<axis = 1>(t, x, t)", "ReduceMean<axes = [1]>(t)", "ReduceMean<axes = [0]>(t)",
    ):  # fmt: skip
        known = {"g": np.ones(37, "f4"), "p": np.array([1, 2, 1, 3])}
        used = {key: value for key, value in known.items() if f", {key}" in name}
        yield Case(f"around {name}", f"{before} c = {name}\n{behind}", MATRIX, HALF | used)
    pool = "MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(t)"
    yield Case("before MaxPool", f"{before} y = {pool}", IMAGE, HALF)
    for length, step, name in (
        (64, "{y} = Add({t}, {t})", "doubled"),
        (100, "{y} = Mul({t}, {t})", "squared"),
        (16, DIAMOND, "diamonds"),
        (16, "{y}_c = Less({t}, half)\n {y}_a = Abs({t})\n {y} = Where({y}_c, {y}_a, {t})", "choices"),
        (16, "{y}_a = Add({t}, {t})\n {y}_b = Mul({t}, half)\n {y} = Where(c, {y}_a, {y}_b)", "branches"),
        (16, "{y}_n = Neg({t})\n {y} = Exp({y}_n)", "exponentials"),
        (6, "{y}_e = Softplus({t})\n {y}_p = Tanh({y}_e)\n {y} = Mul({y}_p, {t})", "mish"),
    ):  # fmt: skip
        condition = {"c": ("bool", (37,))} if "(c," in step else {}
        yield Case(name, chain("x", "y", length, step), MATRIX | condition, HALF if "half" in step else {})
    yield Case(
        "under a condition", chain("x", "t", 24, "{y} = Tanh({t})") + "y = Concat<axis = 1>(t, x)", MATRIX
    )
    flip = "{y}_b = Slice({t}, last, first, one, last)\n {y}_s = Add({t}, {y}_b)\n {y} = Mul({y}_s, half)"
    ends = {"last": np.array([-1]), "first": np.array([-(2**31)]), "one": np.array([1])}
    yield Case("read at two places", chain("x", "y", 12, flip), MATRIX, HALF | ends)
    turn = "{y}_b = Transpose<perm = [1, 0]>({t})\n {y}_s = Add({t}, {y}_b)\n {y} = Mul({y}_s, half)"
    yield Case("turned", chain("x", "y", 12, turn), {"x": ("float", (24, 24))}, HALF)
    yield Case("short rows", chain("x", "y", 24, DOUBLED), {"x": ("float", (40, 3))}, HALF)
    yield Case("a number", chain("x", "y", 24, DOUBLED), {"x": ("float", ())}, HALF)
    bools = chain("b", "y", 24, "{y}_n = Not({t})\n {y} = Xor({y}_n, {t})")
    yield Case("bools", "b = Less(x, half)\n" + bools, MATRIX, HALF)
    steps = chain("i", "j", 24, "{y}_n = Add({t}, {t})\n {y} = Min({y}_n, {t})")
    yield Case("indices", f"{steps} y = Gather(w, j)", {"i": ("int64", (5,))}, {"w": weights})


CASES = {case.name: case for case in cases()}
# Whose kernels are of the families of others.
HEAVY = (
    "behind depthwise", "around a product", "around LayerNormalization<axis = -1>(t, g, g)",
    "around Concat<axis = 1>(t, x, t)", "around ReduceMean<axes = [0]>(t)", "squared", "choices",
    "exponentials", "turned", "a number", "around Pad(t, p)", "around ReduceMean<axes = [1]>(t)", "diamonds",
    "mish", "short rows", "under a condition",
)  # fmt: skip
GATE = [name for name in CASES if name not in HEAVY]
Results = dict[str, tuple[Array, Array]]


def computed(names: Sequence[str], folder: Path) -> Results:
    """By name what Kiln computes, and what ONNX Runtime does."""
    inputs, expected = save([CASES[name] for name in names], folder / "m.onnx")
    outputs = Program(folder / "m.onnx").run(inputs)
    return dict(zip(names, zip(outputs, expected, strict=True), strict=True))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return computed(GATE, tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def results_of_heavy(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return computed(HEAVY, tmp_path_factory.mktemp("shared"))


def agree(ours: Array, theirs: Array) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("name", GATE)
def test_shared_values(name: str, results: Results) -> None:
    agree(*results[name])


@pytest.mark.heavy
@pytest.mark.parametrize("name", HEAVY)
def test_more_shared_values(name: str, results_of_heavy: Results) -> None:
    agree(*results_of_heavy[name])


@pytest.mark.parametrize(
    "step, length",
    [("{y} = Add({t}, {t})", 64), pytest.param("{y} = Add({t}, x)", 270, marks=pytest.mark.heavy)],
)
def test_chains_of_dynamic_shape(step: str, length: int, tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", "g (float[n,37] x) => (float[n,37] y) {" + chain("x", "y", length, step) + "}"
    )
    program, x = Program(path, {"n": (1, 9)}), np.random.default_rng(1).normal(size=(4, 37)).astype("f4")
    (ours,), (theirs,) = program.run([x], {"n": 4}), open_reference(path).run([x])
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.heavy
def test_a_long_chain(tmp_path: Path) -> None:
    """A kernel holds at most 256 operators, whatever the length of the chain."""
    text = "g (float[4,37] x) => (float[4,37] y) {" + chain("x", "y", 600, "{y} = Add({t}, x)") + "}"
    path = write(tmp_path / "m.onnx", text)
    program, x = Program(path), np.random.default_rng(1).normal(size=(4, 37)).astype("f4")
    np.testing.assert_allclose(program.run([x])[0], open_reference(path).run([x])[0], rtol=1e-5)
    assert len(program.steps.steps) == 3
