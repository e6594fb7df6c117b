"""Conversions of float16 and of two numbers on a core with Helium: no calls, and the same results."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
from kiln.config import load_target
from kiln.emit.helium_conversions import convert_in_words
from kiln.emit.object_symbols import symbols
from kiln.emit.objects import compile_object
from tvm.script import tirx

COUNT = 32


@tirx.prim_func(private=True, s_tir=True)
def conversions(
    x: tirx.handle("float16", "global"),  # type: ignore[valid-type]
    y: tirx.handle("int64", "global"),  # type: ignore[valid-type]
    z: tirx.handle("float16", "global"),  # type: ignore[valid-type]
    u: tirx.handle("int32", "global"),  # type: ignore[valid-type]
) -> None:
    half = tirx.decl_buffer((COUNT,), "float16", data=x)
    long = tirx.decl_buffer((COUNT,), "int64", data=y)
    rounded = tirx.decl_buffer((COUNT,), "float16", data=z)
    word = tirx.decl_buffer((COUNT,), "int32", data=u)
    for i in range(COUNT // 2):
        rounded[i * 2 : i * 2 + 2] = tirx.Cast("float16x2", long[tirx.Ramp(i * 2, 1, 2)])
    for i in range(COUNT // 2):
        word[i * 2 : i * 2 + 2] = tirx.Cast("int32x2", tirx.Cast("float32x2", half[tirx.Ramp(i * 2, 1, 2)]))
    for i in range(COUNT // 4):
        long[i * 4 : i * 4 + 4] = tirx.Cast("int64x4", half[tirx.Ramp(i * 4, 1, 4)])


def test_no_function_is_called(tmp_path: Path) -> None:
    path = tmp_path / "conversions.o"
    function = conversions.with_attr("global_symbol", "conversions")
    compile_object({"conversions": function}, load_target("cortex_m55"), path)
    assert not [one.name for one in symbols(path.read_bytes()) if one.name and not one.defined]


def test_results(tmp_path: Path) -> None:
    path, library = tmp_path / "conversions.o", tmp_path / "conversions.so"
    function = convert_in_words(conversions).with_attr("global_symbol", "conversions")
    compile_object({"conversions": function}, load_target("x86_64").for_variant("v3"), path)
    subprocess.run(["cc", "-shared", "-o", library, path], check=True)
    rng = np.random.default_rng(3)
    half = np.float16(rng.uniform(-65504, 65504, COUNT) * 10.0 ** rng.integers(-5, 1, COUNT))
    long = rng.integers(-70000, 70000, COUNT)
    long[:8] = [65519, 65520, -65519, -65520, 2**62, -(2**63), 2**33 + 5, -(2**32)]
    with np.errstate(over="ignore"):
        expected = long.astype("float16")
    rounded, word = np.zeros(COUNT, "float16"), np.zeros(COUNT, "int32")
    run = ctypes.CDLL(str(library)).conversions
    run(*(ctypes.c_void_p(array.ctypes.data) for array in (half, long, rounded, word)))
    assert (rounded == expected).all()
    assert (word == half.astype("int32")).all() and (long == half.astype("int64")).all()
