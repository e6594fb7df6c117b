"""float16 on processors with and without instructions that convert it: every number, tie and edge."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 by it
import numpy as np
import pytest
from kiln.config.library import load_variant
from kiln.emit.half_conversions import convert_halves
from kiln.emit.objects import compile_all
from kiln.lower.pipeline import Lowering, lower
from tvm import relax, te, tirx
from tvm.script import tirx as script

from .emulated import memory_of, opened
from .lowered import Array, module
from .programs import execute

op = relax.op


def _halves() -> Array:
    return np.arange(1 << 16, dtype="uint16").view("float16")


def _floats() -> Array:
    """float32 numbers at, below and above every float16 and every tie of two of them, and edges."""
    finite = np.unique(_halves()[np.isfinite(_halves())].astype("float32"))
    ties = (finite[1:] + finite[:-1]) / 2
    at = np.concatenate(
        [finite, ties, np.array([65519.996, 65520, 1e30, 2.0**-140, np.inf, -np.inf], "float32")]
    )
    return np.concatenate([at, np.nextafter(at, np.float32(np.inf)), np.nextafter(at, np.float32(-np.inf)),
                           np.array([np.nan, -0.0], "float32")])  # fmt: skip


def _doubles() -> Array:
    """float64 numbers next to ties of float16, which float32 cannot tell from the ties, and edges."""
    at = _floats().astype("float64")
    return np.concatenate([at * (1 + 2.0**-40), at * (1 - 2.0**-40), np.array([1e300, -1e300, np.nan])])


@pytest.mark.parametrize("name", ["x86_64", "x86_64_v2", "armv7", "riscv64"])
def test_halves_are_converted(name: str, tmp_path: Path) -> None:
    halves, floats, doubles = _halves(), _floats(), _doubles()
    integers = np.array([0, 1, -1, 2049, 2051, 65519, 65520, -(2**31), 2**31 - 1], "int32")
    rolled = np.roll(halves, 12345)
    arrays = [halves, floats, doubles, integers, rolled]

    def body(*inputs: relax.Var) -> list[relax.Expr]:
        half, single, double, integer, second = inputs
        return [
            op.astype(half, "float32"), op.astype(half, "float64"), op.astype(single, "float16"),
            op.astype(double, "float16"), op.astype(integer, "float16"), op.add(half, second),
            op.multiply(half, second), op.less(half, second), op.equal(half, second),
        ]  # fmt: skip

    with np.errstate(all="ignore"):
        wanted = [
            halves.astype("float32"), halves.astype("float64"), floats.astype("float16"),
            doubles.astype("float16"), integers.astype("float16"), halves + rolled, halves * rolled,
            halves < rolled, halves == rolled,
        ]  # fmt: skip
    target = load_variant(name)
    steps = lower(module([(x.shape, str(x.dtype)) for x in arrays], body), Lowering("m", target, "none"))
    path = tmp_path / "m.o"
    compile_all(steps.functions, target, path, "m", steps.kernels)
    with opened(target, path, [steps], tmp_path) as library:
        outputs = execute(steps, library, arrays, of_tensors=memory_of(library))
    for number, (ours, theirs) in enumerate(zip(outputs, wanted, strict=True)):
        assert ours.dtype == theirs.dtype
        agree = ours == theirs
        if ours.dtype.kind == "f":
            agree = agree & (np.signbit(ours) == np.signbit(theirs)) | np.isnan(ours) & np.isnan(theirs)
        where = np.flatnonzero(~agree)
        assert not len(where), f"result {number}: {ours[where][:4]}, expected {theirs[where][:4]}"


@pytest.mark.parametrize("name", ["x86_64", "armv7"])
def test_bfloat16_is_computed_in_float32(name: str, tmp_path: Path) -> None:
    """Tensors of a user's own operators; LLVM ended the process for nearly each function of them."""
    numbers = np.arange(1 << 16, dtype="uint16").view("bfloat16")
    rolled = np.roll(numbers, 12345)
    wide, second = numbers.astype("float32"), rolled.astype("float32")

    def body(x: relax.Var, y: relax.Var) -> list[relax.Expr]:
        return [op.astype(x, "float32"), op.add(x, y), op.less(x, y), op.tanh(x), op.exp(op.multiply(x, y))]

    with np.errstate(all="ignore"):
        product = (wide * second).astype("bfloat16").astype("float32")
        wanted = [wide, wide + second, wide < second, np.tanh(wide), np.exp(product)]
    target = load_variant(name)
    steps = lower(module([(numbers.shape, "bfloat16")] * 2, body), Lowering("m", target, "none"))
    path = tmp_path / "m.o"
    compile_all(steps.functions, target, path, "m", steps.kernels)
    with opened(target, path, [steps], tmp_path) as library:
        outputs = execute(steps, library, [numbers, rolled], of_tensors=memory_of(library))
    usual = np.isfinite(wide) & np.isfinite(second) & (np.abs(wide) >= 2.0**-126)
    for number, (ours, theirs) in enumerate(zip(outputs, wanted, strict=True)):
        if number < 3:
            np.testing.assert_array_equal(ours[usual], theirs.astype(ours.dtype)[usual])
        else:
            near = usual & (np.abs(theirs) < 1e38) & (np.abs(theirs) > 1e-37)
            np.testing.assert_allclose(ours.astype("float32")[near], theirs[near], rtol=2.0**-8)


@script.prim_func(s_tir=True)
def _to_bfloat16_and_back(a: script.handle, b: script.handle):  # type: ignore[no-untyped-def]
    x = script.match_buffer(a, (64,), "float32")
    y = script.match_buffer(b, (64,), "float32")
    for i in range(64):
        y[i] = script.Cast("float32", script.Cast("bfloat16", x[i]) * script.bfloat16(3))


def test_loops_of_a_user_round_to_bfloat16(tmp_path: Path) -> None:
    """Such loops have no blocks: TVM classifies them as elementwise, but cannot fuse them with the next
    function."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((64,), "float32"))
    with builder.function("main", [x]):
        rounded = builder.add_func(_to_bfloat16_and_back, "rounded")
        y = builder.emit(relax.call_tir(rounded, [x], relax.TensorType((64,), "float32")))
        builder.emit_func_output(builder.emit(op.negative(y)))
    target, path = load_variant("x86_64"), tmp_path / "m.o"
    steps = lower(builder.get(), Lowering("m", target, "none"))
    compile_all(steps.functions, target, path, "m", steps.kernels)
    given = np.random.default_rng(0).normal(size=64).astype("float32")
    with opened(target, path, [steps], tmp_path) as library:
        [output] = execute(steps, library, [given], of_tensors=memory_of(library))
    product = given.astype("bfloat16").astype("float32") * np.float32(3)
    np.testing.assert_array_equal(output, -product.astype("bfloat16").astype("float32"))


def test_a_chain_under_a_condition() -> None:
    """Sums of float16 that a condition guards: written out, each would be copied to uses of the next."""

    def element(i: tirx.Var, x: te.Tensor) -> tirx.Expr:
        value = x[i]
        for _ in range(24):
            value = value + x[i]
        return tirx.if_then_else(i < 5, value, tirx.const(0, "float16"))

    x = te.placeholder([8], "float16", name="x")
    func = te.create_prim_func([x, te.compute([8], lambda i: element(i, x), name="y")])
    text = convert_halves(func, by_instruction=False).script()
    assert "if_then_else" not in text and text.count('"float16"') < 200
