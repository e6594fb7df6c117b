"""The error of every mathematical function, against float64, on vectors and on single elements."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kiln.tir.math import lower_math
from tvm import tirx
from tvm.script import tirx as script

from .elements import elements_of

Array = npt.NDArray[Any]
Function = Callable[[Any], Any]


def evaluate(function: Function, x: Array, folder: Path) -> Array:
    """function(x) for each element, by a kernel of its own for x86_64_v2."""
    return compute(lambda data, i: function(data[i]), x, folder)


def compute(element: Callable[[Any, Any], Any], x: Array, folder: Path) -> Array:
    """element(x, i) for each i, by a kernel of its own for x86_64_v2."""
    return elements_of(element, [x], 128, folder)


def ulps(got: Array, want: Array) -> float:
    """The largest error in units of the last place of the float32 result."""
    unit = np.spacing(np.maximum(np.abs(want), np.finfo("float32").tiny).astype("float32"))
    return float((np.abs(got.astype("f8") - want) / unit).max())


def line(low: float, high: float, count: int = 100_003) -> Array:
    """A count that is no multiple of a vector: the last elements are computed one by one."""
    return np.linspace(low, high, count).astype("float32")


erf = np.vectorize(math.erf, otypes=["f8"])


def away(x: Array) -> Array:
    """Nearest, ties away from zero."""
    return np.asarray(np.trunc(x + np.where(x < 0, -0.5, 0.5)))


MAGNITUDES = np.logspace(3, 38.5, 50_001).astype("f4") * (-1) ** np.arange(50_001, dtype="f4")
ABSOLUTE: dict[str, tuple[Function, Callable[[Array], Array], Array, float]] = {
    "tanh": (tirx.tanh, np.tanh, line(-20, 20), 3e-7),
    "sigmoid": (tirx.sigmoid, lambda x: 1 / (1 + np.exp(-x)), line(-20, 20), 2e-7),
    "erf": (tirx.erf, erf, line(-6, 6), 4e-7),
    "sin": (tirx.sin, np.sin, line(-100, 100), 2e-7),
    "cos": (tirx.cos, np.cos, line(-100, 100), 2e-7),
    "sin_far": (tirx.sin, np.sin, line(-8000, 8000), 2e-6),
    "sin_great": (tirx.sin, np.sin, MAGNITUDES, 2e-7),
    "cos_great": (tirx.cos, np.cos, MAGNITUDES, 2e-7),
}
RELATIVE: dict[str, tuple[Function, Callable[[Array], Array], Array, float]] = {
    "exp": (tirx.exp, np.exp, line(-87, 88), 2.0),
    "log": (tirx.log, np.log, np.logspace(-44.8, 38, 100_003).astype("f4"), 2.0),
    "sqrt": (tirx.sqrt, np.sqrt, line(0, 1e6), 0.51),
    "rsqrt": (tirx.rsqrt, lambda x: x**-0.5, line(1e-3, 1e6), 1.6),
    "cube": (lambda x: tirx.pow(x, tirx.FloatImm("float32", 3.0)), lambda x: x**3, line(-9, 9), 1.6),
    "root": (lambda x: tirx.pow(x, tirx.FloatImm("float32", 0.5)), lambda x: x**0.5, line(0, 9), 0.51),
    "inverse_square": (
        lambda x: tirx.pow(x, tirx.FloatImm("float32", -2.0)), lambda x: x**-2.0, line(0.1, 9), 2.1,
    ),
}  # fmt: skip
# Of the functions in tir/inverse_functions.py, in units of the last place.
RELATIVE |= {
    "tan": (tirx.tan, np.tan, line(-1.5, 1.5), 4.0),
    "log1p": (tirx.log1p, np.log1p, np.logspace(-37, 38, 100_003).astype("f4"), 70.0),
    "log_of_sum": (
        lambda x: tirx.log(tirx.FloatImm("float32", 1.0) + x),
        np.log1p,
        np.logspace(-37, 38, 100_003).astype("f4"),
        70.0,
    ),
    "tan_great": (tirx.tan, np.tan, MAGNITUDES, 5.0),
    "atan": (tirx.atan, np.arctan, line(-50, 50), 4.0),
    "asin": (tirx.asin, np.arcsin, line(-1, 1), 4.0),
    "acos": (tirx.acos, np.arccos, line(-1, 1), 4.0),
    "sinh": (tirx.sinh, np.sinh, line(-80, 80), 8.0),
    "cosh": (tirx.cosh, np.cosh, line(-80, 80), 8.0),
    "asinh": (tirx.asinh, np.arcsinh, line(-1e4, 1e4), 4.0),
    "acosh": (tirx.acosh, np.arccosh, line(1, 1e4), 6.0),
    "atanh": (tirx.atanh, np.arctanh, line(-0.999, 0.999), 6.0),
}
WHOLE: dict[str, tuple[Function, Callable[[Array], Array]]] = {
    "floor": (tirx.floor, np.floor),
    "ceil": (tirx.ceil, np.ceil),
    "trunc": (tirx.trunc, np.trunc),
    "round": (tirx.round, away),
    "nearbyint": (tirx.nearbyint, np.round),
}


@pytest.mark.parametrize("name", ABSOLUTE)
def test_absolute_error(name: str, tmp_path: Path) -> None:
    function, exact, x, limit = ABSOLUTE[name]
    error = np.abs(evaluate(function, x, tmp_path) - exact(x.astype("f8"))).max()
    print(f"{name}: {error:.3g}")
    assert error <= limit


def test_angles_that_are_not_finite(tmp_path: Path) -> None:
    x = np.resize(np.array([1, np.inf, -np.inf, np.nan, 1e9], "f4"), 37)
    for function in (tirx.sin, tirx.cos, tirx.tan):
        assert (np.isnan(evaluate(function, x, tmp_path)) == ~np.isfinite(x)).all()


@pytest.mark.parametrize("name", RELATIVE)
def test_relative_error(name: str, tmp_path: Path) -> None:
    function, exact, x, limit = RELATIVE[name]
    got = evaluate(function, x, tmp_path)
    error = ulps(got, exact(x.astype("f8")))
    print(f"{name}: {error:.2f} ulp")
    assert error <= limit


@pytest.mark.parametrize("name", WHOLE)
def test_rounding_is_exact(name: str, tmp_path: Path) -> None:
    function, exact = WHOLE[name]
    x = np.concatenate([line(-100, 100, 801), [2.0**22 + 0.5, 2.0**23 - 0.5, -(2.0**30), 1e30, 0.49999997]])
    x = x.astype("f4")
    got, want = evaluate(function, x, tmp_path), exact(x.astype("f8"))
    assert (got == want).all(), x[got != want]


@pytest.mark.parametrize("exponent", [0.0, 1.5, -0.25, 9.0, -11.0, 2.4])
def test_power(exponent: float, tmp_path: Path) -> None:
    x = line(0.05, 40, 1003)
    got = compute(_power_by(exponent), x, tmp_path)
    want = x.astype("f8") ** np.float32(exponent)
    size = 1 + np.abs(np.float32(exponent) * np.log(x.astype("f8")))
    assert (np.abs(got / want - 1) / size).max() < 2e-7


def test_power_of_what_is_not_positive(tmp_path: Path) -> None:
    x = np.array([-2, -2, -2, -0.5, 0, 0, 0, 5], "f4")
    y = [3.0, 2.0, 0.5, -3.0, 2.5, 0.0, -1.0, 0.0]
    want = [-8, 4, np.nan, -8, 0, 1, np.inf, 1]

    for exponent in sorted(set(y)):
        got = compute(_power_by(exponent), x, tmp_path / str(exponent))
        chosen = [at for at, value in enumerate(y) if value == exponent]
        assert np.allclose(got[chosen], np.array(want)[chosen], rtol=1e-6, equal_nan=True), exponent


def _power_by(exponent: float) -> Callable[[Any, Any], Any]:
    """x to the power of a number that the compiler does not know to be constant."""
    tiny, number = tirx.FloatImm("float32", 1e-30), tirx.FloatImm("float32", exponent)
    return lambda data, i: tirx.pow(data[i], data[i] * tiny + number)


def test_float16_is_computed_in_float32(tmp_path: Path) -> None:
    x = line(-5, 5, 37)
    got = compute(lambda data, i: tirx.Cast("float32", tirx.exp(tirx.Cast("float16", data[i]))), x, tmp_path)
    want = np.exp(x.astype("f2").astype("f4")).astype("f2")
    assert (np.abs(got - want) <= np.spacing(want)).all()


def test_at_the_ends_of_the_range(tmp_path: Path) -> None:
    x = np.array([-np.inf, -1e30, -104, -88, 0, 88.3, 88.5, 88.7, 88.73, 1e30, np.inf, np.nan], "f4")
    got = evaluate(tirx.exp, x, tmp_path / "exp")
    assert got[4] == 1 and (got[:4] < 2e-38).all() and (got[:4] >= 0).all() and (got[:2] == 0).all()
    assert np.allclose(got[5:8], np.exp(x[5:8].astype("f8")), rtol=1e-5)
    assert (got[8:11] == np.inf).all() and np.isnan(got[11])
    got = evaluate(tirx.log, np.array([0, 1, -1], "f4"), tmp_path / "log")
    assert got[0] == -np.inf and got[1] == 0 and np.isnan(got[2])
    for name, function in {"tanh": tirx.tanh, "erf": tirx.erf}.items():
        got = evaluate(function, np.array([-1e30, -50, 0, 50, 1e30], "f4"), tmp_path / name)
        assert (got == [-1, -1, 0, 1, 1]).all()
    got = evaluate(tirx.sigmoid, np.array([-1e30, 0, 1e30], "f4"), tmp_path / "sigmoid")
    assert got[0] < 1e-37 and got[1] == 0.5 and got[2] == 1


def test_a_chain_of_functions_stays_small(tmp_path: Path) -> None:
    """Each function uses its argument several times; written out, five of them fill gigabytes."""

    def chain(x: Any) -> Any:
        for function in (tirx.sigmoid, tirx.tanh, tirx.exp, tirx.erf, tirx.log):
            x = function(x)
        return x

    x = line(-3, 3, 1001)
    got = evaluate(chain, x, tmp_path)
    want = np.log(erf(np.exp(np.tanh(1 / (1 + np.exp(-x.astype("f8")))))))
    assert np.abs(got - want).max() < 2e-6
    assert (tmp_path / "kernel.o").stat().st_size < 16_000


def test_what_a_condition_guards_is_not_computed_before_it(tmp_path: Path) -> None:
    """The tensor ends where its page ends: reading an element more is a fault."""
    page = mmap.PAGESIZE
    pages = mmap.mmap(-1, 2 * page)
    size = 37
    x = np.frombuffer(pages, "float32", size, page - 4 * size)
    x[:] = line(-1, 1, size)
    start = x.ctypes.data + x.nbytes
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start), ctypes.c_size_t(page), 0) == 0
    zero = tirx.FloatImm("float32", 0.0)

    def element(data: Any, i: Any) -> Any:
        return tirx.if_then_else(i + 1 < size, tirx.exp(data[i + 1]), zero)

    got = compute(element, x, tmp_path)
    assert got[-1] == 0
    assert ulps(got[:-1], np.exp(x[1:].astype("f8"))) < 2


@pytest.mark.parametrize("name", ["asin", "acos", "acosh", "atanh", "asinh", "atan", "sinh"])
def test_ends_of_the_domain(name: str, tmp_path: Path) -> None:
    x = np.array([-1, 1, 0, -2, 2, 1e20, -1e20, 0.5, -0.5], "f4")
    with np.errstate(all="ignore"):
        want = RELATIVE[name][1](x.astype("f8")).astype("f4")
    np.testing.assert_allclose(evaluate(RELATIVE[name][0], x, tmp_path), want, rtol=1e-6)


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sigmoid"])
def test_float64(name: str, tmp_path: Path) -> None:
    x = np.logspace(-300, 300, 1003) if name == "log" else np.linspace(-700, 700, 10_003)
    exact = {"exp": np.exp, "log": np.log, "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x))}[name]
    np.testing.assert_allclose(evaluate(getattr(tirx, name), x, tmp_path), exact(x), rtol=2e-15)
    ends = np.array([0.0, -1.0, np.inf, 1.0, 1e-3, 800.0, -800.0])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(
            evaluate(getattr(tirx, name), ends, tmp_path / "ends"), exact(ends), rtol=2e-15
        )


# By name: the exact function, numbers, its ends, and the relative error.
WIDE: dict[str, tuple[Any, Array, list[float], float]] = {
    "sin": (np.sin, np.linspace(-1e4, 1e4, 10_003), [0.0, 1e-9, math.pi, np.inf], 2e-15),
    "cos": (np.cos, np.linspace(-1e4, 1e4, 10_003), [0.0, 1e-9, math.pi / 2, 1e6, np.nan], 2e-15),
    "tan": (np.tan, np.linspace(-1e4, 1e4, 10_003), [0.0, 1e-9, math.pi / 2, -np.inf], 2e-15),
    "asin": (np.arcsin, np.linspace(-1, 1, 1003), [0.0, 1e-9, 1 - 1e-9, 1.5, -2.0], 2e-15),
    "acos": (np.arccos, np.linspace(-1, 1, 1003), [0.0, 1e-9, 1 - 1e-9, 1.5, -2.0], 2e-15),
    "atan": (np.arctan, np.linspace(-20, 20, 1003), [0.0, 1e-9, 1e300, np.inf, -np.inf, np.nan], 2e-15),
    "sinh": (np.sinh, np.linspace(-700, 700, 1003), [0.0, 1e-9, 0.5, 1.5, 800.0, -np.inf], 3e-15),
    "cosh": (np.cosh, np.linspace(-700, 700, 1003), [0.0, 1e-9, 0.5, 1.5, 800.0, -np.inf], 3e-15),
    "asinh": (np.arcsinh, np.linspace(-20, 20, 1003), [0.0, 1e-9, 1e200, np.inf, -np.inf, np.nan], 2e-15),
    "acosh": (np.arccosh, np.linspace(1, 20, 1003), [1 + 1e-9, 0.5, 1e200, np.inf, np.nan], 2e-15),
    "atanh": (np.arctanh, np.linspace(-0.99, 0.99, 1003), [0.0, 1e-9, 1.0, -1.0, 1.5, np.nan], 2e-15),
    "erf": (erf, np.linspace(-7, 7, 1003), [0.0, 1e-9, 30.0, np.inf, -np.inf, np.nan], 2e-15),
    "log1p": (np.log1p, np.logspace(-20, 20, 1003), [0.0, -1.0, -2.0, np.inf, np.nan, -1e-9], 2e-15),
}


@pytest.mark.parametrize("name", WIDE)
def test_functions_of_float64(name: str, tmp_path: Path) -> None:
    exact, x, ends, relative = WIDE[name]
    x = np.concatenate([x, ends])
    with np.errstate(all="ignore"):
        want = exact(x)
    np.testing.assert_allclose(evaluate(getattr(tirx, name), x, tmp_path), want, rtol=relative)


def test_powers_of_float64(tmp_path: Path) -> None:
    x, y = np.meshgrid([-3.0, -1.5, 0.0, 0.3, 1.0, 7.25], [-3.0, -2.0, -0.5, 0.0, 0.5, 1.0, 3.0, 60.0])
    pairs = np.stack([x.reshape(-1), y.reshape(-1)], 1).astype("f8")
    flat = pairs.reshape(-1)

    def element(data: Any, i: Any) -> Any:
        return tirx.pow(data[i // 2 * 2], data[i // 2 * 2 + 1])

    with np.errstate(all="ignore"):
        want = np.repeat(pairs[:, 0] ** pairs[:, 1], 2)
    np.testing.assert_allclose(compute(element, flat, tmp_path), want, rtol=1e-14)


@pytest.mark.parametrize(
    ("name", "function", "want"),
    [
        ("exp", tirx.exp, [np.nan, np.inf, 0.0]),
        ("log", tirx.log, [np.nan, np.inf, np.nan]),
        ("tanh", tirx.tanh, [np.nan, 1.0, -1.0]),
        ("sigmoid", tirx.sigmoid, [np.nan, 1.0, 0.0]),
        ("erf", tirx.erf, [np.nan, 1.0, -1.0]),
    ],
)
def test_nan_and_infinities(name: str, function: Function, want: list[float], tmp_path: Path) -> None:
    """On vectors and on the elements after them; the greatest result of exp stands for infinity."""
    x = np.array([np.nan, np.inf, -np.inf] * 7, np.float32)
    got = evaluate(function, x, tmp_path).reshape(7, 3)
    if name == "exp":
        assert (got[:, 1] > 2e38).all()
        got[:, 1] = np.inf
    assert np.allclose(got, [want] * 7, atol=1e-6, equal_nan=True), got[0]


@script.prim_func(private=True, s_tir=True)
def bounded(
    x: script.handle("float32", "global"),  # type: ignore[valid-type]
    y: script.handle("float32", "global"),  # type: ignore[valid-type]
) -> None:
    given = script.decl_buffer((8,), "float32", data=x)
    found = script.decl_buffer((8,), "float32", data=y)
    for i in range(script.Cast("int32", script.ceil(given[0]))):
        if script.exp(given[i]) > script.float32(1.0):
            found[i] = given[i]


def test_functions_in_conditions_and_numbers_of_rounds() -> None:
    names = {"T.ceil(", "T.exp("}
    assert {name for name in names if name in bounded.script()} == names
    assert not {name for name in names if name in lower_math(bounded).script()}
