"""Symbols and sizes of WebAssembly, as zig's clang and linker write it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kiln.config import load_target
from kiln.config.systems import system_of
from kiln.emit import wasm
from kiln.emit.objects import missing_symbols
from kiln.errors import KilnError
from kiln.report.archive import function_members
from kiln.report.elf import read_program
from kiln.toolchain import archiver_command

SOURCE = """
extern int needed(int x);
extern int memcpy_like;
static const char table[1000] = {1, 2, 3};
__attribute__((noinline)) int small(int x) { return needed(x) + memcpy_like; }
__attribute__((export_name("large"))) int large(int x) {
    int sum = 0;
    for (int i = 0; i < x; i++) sum += small(table[i] * i) ^ x;
    return sum;
}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an object o.o, a static library lib.a and a linked module m.wasm of SOURCE."""
    folder = tmp_path_factory.mktemp("wasm")
    (folder / "o.c").write_text(SOURCE)
    (folder / "memory.c").write_text("int memcpy_like = 1;\nint needed(int x) { return x * 3; }\n")
    cc = [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-freestanding", "-O1", "-g"]
    for command in (
        [*cc, "-c", "o.c", "-o", "o.o"],
        [*cc, "-c", "memory.c", "-o", "memory.o"],
        [*archiver_command(), "rcsD", "lib.a", "o.o", "memory.o"],
        [*cc, "-nostdlib", "-Wl,--no-entry", "o.o", "memory.o", "-o", "m.wasm"],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder


def test_symbols_of_an_object(made: Path) -> None:
    found = {one.name: one for one in wasm.symbols((made / "o.o").read_bytes())}
    assert {"small", "large", "needed", "memcpy_like"} <= set(found)
    assert found["small"].defined and found["small"].function
    assert not found["needed"].defined and found["needed"].function
    assert not found["memcpy_like"].defined and not found["memcpy_like"].function
    assert missing_symbols(made / "o.o", load_target("wasm32")) == ["memcpy_like", "needed"]
    members = function_members(made / "lib.a")
    assert members["small"] == members["large"] == "o.o"


def test_sizes_of_a_module(made: Path) -> None:
    program = read_program(made / "m.wasm")
    assert program.sections.rodata >= 3 and program.sections.text > 50
    assert {"small", "large"} <= set(program.functions)
    assert sum(program.functions.values()) <= program.sections.text


def test_damaged_bytes_are_refused(made: Path, tmp_path: Path) -> None:
    """Cut anywhere, a file is read as far as it goes or refused with one line, and nothing else happens."""
    content = (made / "m.wasm").read_bytes()
    refused = 0
    for end in range(8, len(content), 37):
        (tmp_path / "cut.wasm").write_bytes(content[:end])
        try:
            read_program(tmp_path / "cut.wasm")
        except KilnError as error:
            refused += 1
            assert "cannot be read as a program" in str(error)
    assert refused > 10
    with pytest.raises(ValueError, match="does not begin as WebAssembly"):
        wasm.symbols(b"\0asm\2\0\0\0")


@pytest.mark.parametrize(
    ("triple", "deployment", "name"),
    [
        ("x86_64-unknown-linux-gnu", "hosted", "Linux"),
        ("armv7a-linux-gnueabihf", "hosted", "Linux"),
        ("wasm32-unknown-unknown", "hosted", "WebAssembly"),
        ("wasm32-wasi", "hosted", "WebAssembly"),
        ("thumbv7em-none-eabi", "freestanding", "none"),
    ],
)
def test_systems_of_triples(triple: str, deployment: str, name: str) -> None:
    assert system_of(triple, deployment).name == name
