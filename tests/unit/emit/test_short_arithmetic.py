"""Index divisions and 64-bit products on cores with 32-bit products alone: equal to those of long ones."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
from kiln.config import load_target
from kiln.emit import objects
from kiln.emit.bounded_division import divide_by_multiplying
from kiln.emit.long_products import multiply_by_halves
from kiln.emit.object_symbols import symbols
from kiln.lower.target_check import divides_in_software
from tvm.script import tirx

ROWS, COLUMNS, COUNT = 251, 5, 4096
LONG = {"__aeabi_lmul", "__aeabi_uidiv", "__aeabi_idiv", "__aeabi_uidivmod", "__aeabi_idivmod"}


@tirx.prim_func(private=True, s_tir=True)
def computed(
    a: tirx.handle("int32", "global"),  # type: ignore[valid-type]
    b: tirx.handle("int32", "global"),  # type: ignore[valid-type]
    c: tirx.handle("int8", "global"),  # type: ignore[valid-type]
    product: tirx.handle("int64", "global"),  # type: ignore[valid-type]
    narrow: tirx.handle("int64", "global"),  # type: ignore[valid-type]
    places: tirx.handle("int32", "global"),  # type: ignore[valid-type]
) -> None:
    left = tirx.decl_buffer((COUNT,), "int32", data=a)
    right = tirx.decl_buffer((COUNT,), "int32", data=b)
    small = tirx.decl_buffer((COUNT,), "int8", data=c)
    output = tirx.decl_buffer((COUNT,), "int64", data=product)
    made_of_small = tirx.decl_buffer((COUNT,), "int64", data=narrow)
    indices = tirx.decl_buffer((ROWS * COLUMNS * 4,), "int32", data=places)
    for i in range(COUNT):
        output[i] = tirx.Cast("int64", left[i]) * tirx.Cast("int64", right[i])
        made_of_small[i] = tirx.Cast("int64", small[i]) * tirx.Cast("int64", right[i])
    for i, j in tirx.grid(ROWS, COLUMNS):
        indices[(i * 5 + j) * 4] = tirx.Div(i * 5 + j, 7) * 1000 + tirx.truncmod(i * 5 + j, 7)
        indices[(i * 5 + j) * 4 + 1] = tirx.Div(i * 40 + j, 96)
        indices[(i * 5 + j) * 4 + 2] = tirx.truncmod(i + 1000, 251)
        indices[(i * 5 + j) * 4 + 3] = tirx.Div(i - 4, 3)  # may be negative: stays


def test_which_cores() -> None:
    found = {
        name: divides_in_software(load_target(name)) for name in ("cortex_m0plus", "cortex_m3", "x86_64")
    }
    assert found == {"cortex_m0plus": True, "cortex_m3": False, "x86_64": False}


def test_code_calls_no_library(tmp_path: Path) -> None:
    function = computed.with_attr("global_symbol", "computed")
    objects.compile_object({"computed": function}, load_target("cortex_m0plus"), tmp_path / "made.o")
    called = {one.name for one in symbols((tmp_path / "made.o").read_bytes()) if not one.defined}
    assert called & LONG == {"__aeabi_idiv"}  # of the index that may be negative


def test_results_are_equal(tmp_path: Path) -> None:
    function = multiply_by_halves(divide_by_multiplying(computed)).with_attr("global_symbol", "computed")
    objects.compile_object({"computed": function}, load_target("x86_64"), tmp_path / "made.o")
    library = tmp_path / "made.so"
    subprocess.run(["cc", "-shared", "-o", library, tmp_path / "made.o"], check=True)
    rng = np.random.default_rng(3)
    ends = np.array([-(2**31), 2**31 - 1, -1, 0, 1, 0xFFFF, -0x10000, 0x10000, -0x8000, 0x7FFF], "int32")
    a, b = (rng.integers(-(2**31), 2**31, COUNT).astype("int32") for _ in range(2))
    a[:100], b[:100] = np.repeat(ends, 10), np.tile(ends, 10)
    a[2000:3000] >>= 12
    c = rng.integers(-128, 128, COUNT).astype("int8")
    product, narrow = np.empty(COUNT, "int64"), np.empty(COUNT, "int64")
    places = np.empty((ROWS * COLUMNS, 4), "int32")
    given = (a, b, c, product, narrow, places)
    ctypes.CDLL(str(library)).computed(*(ctypes.c_void_p(array.ctypes.data) for array in given))
    np.testing.assert_array_equal(product, a.astype("int64") * b)
    np.testing.assert_array_equal(narrow, c.astype("int64") * b)
    i, j = (index.reshape(-1) for index in np.indices((ROWS, COLUMNS)))
    flat = i * 5 + j
    expected = [flat // 7 * 1000 + flat % 7, (i * 40 + j) // 96, (i + 1000) % 251, np.trunc((i - 4) / 3)]
    np.testing.assert_array_equal(places, np.stack(expected, axis=1).astype("int32"))
