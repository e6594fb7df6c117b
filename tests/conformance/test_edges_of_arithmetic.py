"""Results at the edges of element types: comparisons of NaN, divisions without a quotient, extreme levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from .drawn_operators.case import DrawnCase, compare_case, fixed_case, load_case
from .drawn_operators.draw import Input, Node, Step
from .drawn_operators.quantised_products import compare_products
from .lowered import Array, Compiled, module, runnable_alone
from .onnx_nodes.results import HOST
from .random_graphs.agreement import agree

op = relax.op
SIZE = 37  # more than one vector, and not whole ones
INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64")


def _floats() -> tuple[Array, Array]:
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], "float32")
    pairs = np.array(np.meshgrid(special, special)).reshape(2, -1)
    return tuple(np.resize(row, SIZE).astype("float32") for row in pairs)  # type: ignore[return-value]


def _integers(dtype: str) -> tuple[Array, Array]:
    limits = np.iinfo(dtype)
    numbers = [limits.min, limits.max, 0, 1, 7, *([-1, -7] if limits.min else [2, 3])]
    pairs = np.array(np.meshgrid(numbers, numbers)).reshape(2, -1)
    return tuple(np.resize(row, SIZE).astype(dtype) for row in pairs)  # type: ignore[return-value]


def _divided(x: Array, y: Array) -> list[Array]:
    """The quotient towards zero, the floored one and their remainders; 0 for a divisor of 0."""
    wide, by = x.astype(object), y.astype(object)
    safe = np.where(y == 0, 1, by)
    floored, rest = wide // safe, wide % safe
    towards_zero = np.where((wide * safe < 0) & (rest != 0), floored + 1, floored)
    found = [towards_zero, floored, wide - towards_zero * safe, rest]
    return [np.where(y == 0, 0, value).astype(object) for value in found]


def _wrapped(value: Array, dtype: str) -> Array:
    """Integers of any size in `dtype`, as in two's complement."""
    bits = np.iinfo(dtype).bits
    modulus = np.array([int(item) % (1 << bits) for item in value], f"uint{bits}")
    return modulus.astype(dtype)


def test_comparisons_of_nan_and_divisions_without_a_quotient(tmp_path: Path) -> None:
    given, expected = [*_floats()], []
    a, b = given
    with np.errstate(invalid="ignore", divide="ignore"):
        expected += [a == b, a != b, a < b, a <= b, ~(a == b), ~(a < b), ~(a <= b)]
        expected += [a == a, a != a, a <= a, ~(a == a), ~(np.abs(a) >= np.abs(a)), a - a, a * 0, 0 / a]
    for dtype in INTEGERS:
        x, y = _integers(dtype)
        given += [x, y]
        expected += [_wrapped(value, dtype) for value in _divided(x, y)]
        sign = 1 << (np.iinfo(dtype).bits - 1)
        expected += [_wrapped(x.astype(object) + sign, dtype)] * 3
        for end in (np.iinfo(dtype).min, np.iinfo(dtype).max):
            expected += [x == end, x != end, x < end, x <= end, x > end, x >= end]
        lower = _wrapped(x.astype(object) - (x < 0), dtype)
        expected.append(_wrapped(_divided(lower, y)[3], dtype))

    def body(*inputs: relax.Var) -> list[relax.Expr]:
        first, second = inputs[:2]
        found = [
            op.equal(first, second), op.not_equal(first, second), op.less(first, second),
            op.less_equal(first, second), op.logical_not(op.equal(first, second)),
            op.logical_not(op.less(first, second)), op.logical_not(op.less_equal(first, second)),
        ]  # fmt: skip
        size, zero = op.abs(first), relax.const(0.0, "float32")
        found += [op.equal(first, first), op.not_equal(first, first), op.less_equal(first, first)]
        found += [op.logical_not(op.equal(first, first)), op.logical_not(op.greater_equal(size, size))]
        found += [op.subtract(first, first), op.multiply(first, zero), op.divide(zero, first)]
        for x, y in zip(inputs[2::2], inputs[3::2], strict=True):
            found += [op.divide(x, y), op.floor_divide(x, y), op.mod(x, y), op.floor_mod(x, y)]
            dtype = x.ty.dtype
            sign = relax.const(np.array(1 << (np.iinfo(str(dtype)).bits - 1)).astype(str(dtype)), str(dtype))
            found += [op.add(x, sign), op.add(sign, x), op.subtract(x, sign)]
            for end in (np.iinfo(str(dtype)).min, np.iinfo(str(dtype)).max):
                limit = relax.const(np.array(end, str(dtype)), str(dtype))
                found += [op.equal(x, limit), op.not_equal(limit, x), op.less(x, limit)]
                found += [op.greater_equal(limit, x), op.less(limit, x), op.greater_equal(x, limit)]
            is_below = op.astype(op.less(x, relax.const(0, dtype)), dtype)  # as in quotients of PyTorch
            found.append(op.floor_mod(op.subtract(x, is_below), y))
        return found

    compiled = Compiled(
        module([(value.shape, str(value.dtype)) for value in given], body), runnable_alone("x86_64"), tmp_path
    )
    for number, (got, want) in enumerate(zip(compiled.load().separate(given), expected, strict=True)):
        assert got.dtype == want.dtype
        same = (got == want) | ((got != got) & (want != want))
        assert same.all(), f"result {number}: {got[got != want]}, not {want[got != want]}"


_EDGES = [
    np.nan,
    np.inf,
    -np.inf,
    0,
    -0.0,
    1e-45,
    -1e-45,
    3.4e38,
    -3.4e38,
    1e30,
    -1e30,
    0.5,
    1.5,
    -2.5,
    2**31,
]


class _Graph:
    """A graph that is being made."""

    def __init__(self) -> None:
        self.inputs: list[Input | None] = []
        self.steps: list[Step] = []

    def given(self, value: object, dtype: str = "float32", constant: bool = True) -> str:
        self.inputs.append(Input(np.array(value, dtype), constant))
        return f"x{len(self.inputs) - 1}"

    def step(self, operator: str, *operands: str, **attributes: Any) -> str:
        self.steps.append(Step(operator, list(operands), [f"t{len(self.steps)}"], attributes))
        return self.steps[-1].outputs[0]

    def case(self, name: str, results: list[str]) -> DrawnCase:
        node = Node(name, self.inputs, {}, len(results), 21, steps=self.steps, results=results)
        case = fixed_case(name, node)
        assert case is not None
        return case


def _levels() -> DrawnCase:
    """One graph that quantises special numbers, and computes between levels at the ends of their types."""
    graph = _Graph()
    given, step = graph.given, graph.step

    def real(value: object, dtype: str, scale: float, zero: int, constant: bool = False) -> str:
        pair = given(scale), given(zero, dtype)
        return step("DequantizeLinear", given(value, dtype, constant), *pair)

    numbers, results = given(_EDGES * 3, constant=False), []
    for dtype in ("int8", "uint8", "int16", "uint16"):
        info = np.iinfo(dtype)
        for zero, scale in zip(
            (info.min, info.max) * 3, (1e-30, 1e30, 1e-45, 1e-45, 0.1, 3.4e38), strict=True
        ):
            results.append(step("QuantizeLinear", numbers, given(scale), given(zero, dtype)))
        for operator in ("Sqrt", "Log"):  # of negative numbers, too
            value = step(operator, real(np.arange(info.min, info.max + 1, info.max // 90), dtype, 0.1, 3))
            results.append(step("QuantizeLinear", value, given(0.1), given(3, dtype)))
        # The greatest sums, and sums of 0 whose factor is beyond float32.
        left = real(np.full((2, 700), info.min), dtype, 0.01, info.max)
        sums = step("MatMul", left, real(np.full((700, 3), -128), "int8", 0.01, 127, constant=True))
        results.append(step("QuantizeLinear", sums, given(1e6), given(3, dtype)))
        nothing = real(np.full((2, 4), 3), dtype, 1e30, 3)
        sums = step("MatMul", nothing, real(np.full((4, 3), 7), "int8", 1, 0, constant=True))
        results.append(step("QuantizeLinear", sums, given(1e-30), given(3, dtype)))
    return graph.case("levels", results)


def _not_numbers() -> DrawnCase:
    """One graph of functions of NaN, infinities and zeros, whose results are NaN where ONNX Runtime's are."""
    graph = _Graph()
    given, step = graph.given, graph.step
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -1.0, 1.0, 2.5, -3.0], "float32")
    pairs = np.array(np.meshgrid(special, special)).reshape(2, -1)[:, :-3]  # 61: not whole vectors
    x, y = (given(row, constant=False) for row in pairs)
    results = [step(name, x) for name in ("Relu", "Elu", "Celu", "Selu", "HardSigmoid", "HardSwish", "Sign")]
    low, high = (given(bound, constant=False) for bound in (-0.5, 0.5))
    low_constant, high_constant = given(-0.5), given(0.5)
    results += [step("Clip", x, low, high), step("Clip", x, low_constant, high_constant)]
    results += [step("Clip", x, given(np.inf), given(-np.inf))]
    results += [step(name, *pair) for name in ("Max", "Min") for pair in ((x, y), (x, high_constant))]
    results += [step("Pow", x, y)]
    results += [step("Pow", x, given(number)) for number in (np.nan, np.inf, -np.inf, 0.3)]
    results += [step("Pow", given(number), y) for number in (np.nan, np.inf, -np.inf, 1.0, -1.0)]
    wide = given(pairs[0], "float64", constant=False)
    results += [step(name, wide) for name in ("Relu", "Exp", "Log", "Sigmoid", "Tanh", "Sign")]
    results += [step("Max", wide, given(pairs[1], "float64", constant=False))]
    # Of infinities alone, the first is the extreme.
    lines = np.full((2, 40), -np.inf, "float32")
    lines[1] = np.inf
    for operator in ("ArgMax", "ArgMin"):
        results.append(step(operator, given(lines, constant=False), axis=1))
    graph.steps.append(Step("TopK", [given(lines, constant=False), given([1], "int64")], ["v", "i"], {}))
    return graph.case("special", [*results, "v", "i"])


_TARGETS = [HOST, *(pytest.param(name, marks=pytest.mark.heavy) for name in ("aarch64", "armv7", "riscv64"))]


@pytest.mark.parametrize("target", _TARGETS)
def test_levels_of_extreme_numbers(target: str) -> None:
    agree([_levels()], (load_case, compare_products), [target])


def test_positions_of_nan_are_inside(tmp_path: Path) -> None:
    values = np.full((5, 7), np.nan, "float32")
    values[:, ::3] = np.arange(3, dtype="float32")

    def body(x: relax.Var) -> list[relax.Expr]:
        both = op.topk(x, 3, axis=1, ret_type="both")
        return [both[1], op.argmax(x, 1)]

    found = Compiled(module([(values.shape, "float32")], body), runnable_alone("x86_64"), tmp_path)
    for positions in found.load().separate([values]):
        assert ((positions >= 0) & (positions < 7)).all()


@pytest.mark.parametrize("target", [*_TARGETS, pytest.param("x86_64:v4", marks=pytest.mark.heavy)])
def test_nan_stays_nan(target: str) -> None:
    agree([_not_numbers()], (load_case, compare_case), [target])
