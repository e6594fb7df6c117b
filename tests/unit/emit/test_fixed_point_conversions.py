"""Integers times a power of two on a core with Helium: no VCVT with fraction bits: some are wrong."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from kiln.config import load_target
from kiln.emit import objects
from tvm.script import tirx

ELEMENTS = 12


@tirx.prim_func(private=True, s_tir=True)
def dequantise(x: tirx.handle("int8", "global"), y: tirx.handle("float32", "global")) -> None:  # type: ignore[valid-type]
    operand = tirx.decl_buffer((ELEMENTS,), "int8", data=x)
    output = tirx.decl_buffer((ELEMENTS,), "float32", data=y)
    for i in range(3):
        wide = tirx.Cast("int32x4", operand[tirx.Ramp(i * 4, 1, 4)]) + tirx.Broadcast(128, 4)
        output[i * 4 : i * 4 + 4] = tirx.Cast("float32x4", wide) * tirx.Broadcast(tirx.float32(0.00390625), 4)


def fraction_bits(path: Path) -> set[int]:
    """Fraction bits of the conversions (MVE's VCVT between floats and fixed point) in an object's code."""
    target = load_target("cortex_m55")
    objects.compile_object({"dequantise": dequantise.with_attr("global_symbol", "dequantise")}, target, path)
    with path.open("rb") as stream:
        code = ELFFile(stream).get_section_by_name(".text").data()
    words = struct.unpack(f"<{len(code) // 2}H", code)
    return {
        64 - (first & 0x3F)
        for first, second in itertools.pairwise(words)
        if first & 0xEFA0 == 0xEFA0 and second & 0x1CF1 == 0x0C50
    }


def test_no_conversion_with_fraction_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fraction_bits(tmp_path / "right.o") == set()
    # The fault is still there: 2^-8 has 8 fraction bits.
    monkeypatch.setattr(objects, "hide_powers_of_two", lambda function: function)
    found = fraction_bits(tmp_path / "wrong.o")
    assert found and found != {8}
