"""Symbols of objects in every format, as clang writes them for one source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kiln.emit.object_symbols import symbols
from kiln.toolchain import run

SOURCE = """
extern int needed_by_the_function_of_a_long_name(int x);
int table[100] = {1};
int k(int x) { return needed_by_the_function_of_a_long_name(x) + table[x]; }
"""
# Programs for them are not linked: these triples need no headers.
TARGETS = [
    "x86_64-linux-gnu",
    "arm-freestanding-eabi",
    "x86_64-windows-gnu",
    "aarch64-macos",
    "wasm32-freestanding",
]


@pytest.mark.parametrize("target", TARGETS)
def test_defined_and_undefined_symbols(target: str, tmp_path: Path) -> None:
    (tmp_path / "k.c").write_text(SOURCE)
    out = tmp_path / "k.o"
    run(
        [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-target",
            target,
            "-O1",
            "-c",
            str(tmp_path / "k.c"),
            "-o",
            str(out),
        ],
        "compiling",
    )
    found = {symbol.name: symbol for symbol in symbols(out.read_bytes())}
    assert found["k"].defined and found["k"].function
    assert found["table"].defined and not found["table"].function
    assert not found["needed_by_the_function_of_a_long_name"].defined


@pytest.mark.parametrize(
    "content", [b"", b"!<arch>\n", b"\x64\x86" + b"\xff" * 30, b"\xcf\xfa\xed\xfe" + b"\xff" * 60]
)
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        symbols(content)
