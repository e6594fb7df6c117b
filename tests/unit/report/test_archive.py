"""Static libraries: long names, padding, and files that are none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from kiln.errors import KilnError
from kiln.report.archive import function_members
from kiln.toolchain import archiver_command

LONG = "an_object_whose_name_is_longer_than_fifteen.o"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a compiler of this machine")
def test_members(tmp_path: Path) -> None:
    objects = []
    for name, text in (("a.o", "int one(void) { return 1; }"), (LONG, "int two(void) { return 2; } int v;")):
        source = tmp_path / "source.c"
        source.write_text(text)
        objects.append(tmp_path / name)
        subprocess.run(["gcc", "-c", str(source), "-o", str(objects[-1])], check=True)
    library = tmp_path / "lib.a"
    subprocess.run([*archiver_command(), "rcsD", str(library), *map(str, objects)], check=True)
    assert function_members(library) == {"one": "a.o", "two": LONG}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello, world",
        b"!<arch>\n" + b"x" * 60,
        b"!<arch>\n" + b"a/".ljust(48) + b"4".ljust(12) + b"text",
    ],
)
def test_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lib.a"
    path.write_bytes(content)
    with pytest.raises(KilnError, match=r"lib\.a: cannot be read as a static library"):
        function_members(path)


def test_an_empty_archive(tmp_path: Path) -> None:
    path = tmp_path / "lib.a"
    path.write_bytes(b"!<arch>\n")
    assert function_members(path) == {}
