"""Square roots without an instruction: all bits of the instruction's."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
from kiln.config import load_target
from kiln.emit import objects
from kiln.emit.run_time_library import missing_symbols
from kiln.emit.square_roots import root_in_software
from kiln.lower.target_check import without_root
from tvm.script import tirx

COUNT = 4096


@tirx.prim_func(private=True, s_tir=True)
def roots(
    x: tirx.handle("float32", "global"),  # type: ignore[valid-type]
    y: tirx.handle("float32", "global"),  # type: ignore[valid-type]
    u: tirx.handle("float64", "global"),  # type: ignore[valid-type]
    v: tirx.handle("float64", "global"),  # type: ignore[valid-type]
) -> None:
    single = tirx.decl_buffer((COUNT,), "float32", data=x)
    single_made = tirx.decl_buffer((COUNT,), "float32", data=y)
    double = tirx.decl_buffer((COUNT,), "float64", data=u)
    double_made = tirx.decl_buffer((COUNT,), "float64", data=v)
    for i in range(COUNT):
        single_made[i] = tirx.call_llvm_pure_intrin("float32", "llvm.sqrt", single[i])  # as TVM lowers it
        double_made[i] = tirx.sqrt(double[i])


def test_which_cores_lack_an_instruction() -> None:
    found = {
        name: set(without_root(load_target(name))) for name in ("cortex_m0plus", "cortex_m4", "cortex_m7")
    }
    assert found == {"cortex_m0plus": {"float32", "float64"}, "cortex_m4": {"float64"}, "cortex_m7": set()}
    assert without_root(load_target("riscv32_imafc")) == {"float64"} and not without_root(
        load_target("x86_64")
    )


def test_no_function_of_a_library_is_missing(tmp_path: Path) -> None:
    target, path = load_target("cortex_m0plus"), tmp_path / "roots.o"
    objects.compile_object({"roots": roots.with_attr("global_symbol", "roots")}, target, path)
    assert missing_symbols(path, target) == []


def test_results_are_those_of_the_instruction(tmp_path: Path) -> None:
    function = root_in_software(roots, {"float32", "float64"}).with_attr("global_symbol", "roots")
    objects.compile_object({"roots": function}, load_target("x86_64"), tmp_path / "roots.o")
    library = tmp_path / "roots.so"
    subprocess.run(["cc", "-shared", "-o", library, tmp_path / "roots.o"], check=True)
    run = ctypes.CDLL(str(library)).roots
    rng = np.random.default_rng(1)
    for dtype, most in (("float32", 38), ("float64", 307)):
        given = (10.0 ** rng.uniform(-most, most, COUNT)).astype(dtype)
        given[:6] = [0.0, -0.0, np.inf, -1.0, np.nan, -np.inf]
        about = np.finfo(dtype)
        given[6:12] = [about.tiny, about.smallest_subnormal, about.max, 1.0, 4.0, about.tiny / 3]
        tensors = {name: [np.ones(COUNT, name), np.zeros(COUNT, name)] for name in ("float32", "float64")}
        tensors[dtype][0] = given
        run(*(ctypes.c_void_p(array.ctypes.data) for pair in tensors.values() for array in pair))
        got = tensors[dtype][1]
        with np.errstate(invalid="ignore"):
            want = np.sqrt(given)
        assert np.array_equal(got, want, equal_nan=True), dtype
        assert np.signbit(got[1]) and not np.signbit(got[0])
