"""int64 to float32 on 32-bit processors: by instructions, and rounded as by the function of a library."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.emit import objects
from kiln.emit.long_conversions import convert_longs
from kiln.emit.object_symbols import symbols
from tvm.script import tirx

COUNT = 16384


@tirx.prim_func(private=True, s_tir=True)
def scaled(
    a: tirx.handle("int64", "global"),  # type: ignore[valid-type]
    b: tirx.handle("float32", "global"),  # type: ignore[valid-type]
) -> None:
    source = tirx.decl_buffer((COUNT,), "int64", data=a)
    output = tirx.decl_buffer((COUNT,), "float32", data=b)
    for i in range(COUNT // 2):
        output[i] = tirx.Cast("float32", source[i])
    for i in range(COUNT // 8):
        output[tirx.Ramp(COUNT // 2 + i * 4, 1, 4)] = tirx.Cast(
            "float32x4", source[tirx.Ramp(COUNT // 2 + i * 4, 1, 4)]
        )


def _compiled(function: Any, target: str, path: Path) -> set[str]:
    objects.compile_object(
        {"scaled": function.with_attr("global_symbol", "scaled")}, load_target(target), path
    )
    return {one.name for one in symbols(path.read_bytes()) if one.name and not one.defined}


@pytest.mark.parametrize("target", ["cortex_m4", "armv7", "riscv32_imafc"])
def test_no_function_of_a_library_converts(target: str, tmp_path: Path) -> None:
    assert _compiled(scaled, target, tmp_path / "made.o") <= {"memcpy", "memset"}


def test_results_are_those_of_a_conversion(tmp_path: Path) -> None:
    _compiled(convert_longs(scaled), "x86_64", tmp_path / "made.o")
    subprocess.run(["cc", "-shared", "-o", tmp_path / "made.so", tmp_path / "made.o"], check=True)
    rng = np.random.default_rng(3)
    x = rng.integers(-(2**63), 2**63 - 1, COUNT, "int64", endpoint=True) >> rng.integers(0, 63, COUNT)
    # Powers of two and their neighbours; the middle of two float32, and the numbers before and after it.
    powers = 2 ** np.arange(63, dtype="int64")
    middles = [(3 << shift) + (1 << shift >> 24) for shift in range(24, 61)]
    near = np.concatenate([powers, np.array(middles), -powers, -np.array(middles)])
    near = np.concatenate([near + offset for offset in (-1, 0, 1)])
    near = np.concatenate([near, [2**63 - 1, -(2**63), -(2**63) + 1, 0]])
    x[: near.size], x[COUNT // 2 : COUNT // 2 + near.size] = near, near
    found = np.zeros(COUNT, "float32")
    library = ctypes.CDLL(str(tmp_path / "made.so"))
    library.scaled(*(ctypes.c_void_p(array.ctypes.data) for array in (x, found)))
    np.testing.assert_array_equal(found, x.astype("float32"))
