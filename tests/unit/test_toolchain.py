"""The C compiler's cache, and what its versions get wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln import toolchain
from kiln.config import load_target


def test_objects_belong_to_the_folder_whose_headers_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zig finds headers below -Iinclude, but its cache does not know that they are others elsewhere."""
    source = tmp_path / "shared.c"
    source.write_text('#include "name.h"\nconst char name[] = NAME;\n')
    for name in ("first", "other"):
        folder = tmp_path / name
        (folder / "include").mkdir(parents=True)
        (folder / "include" / "name.h").write_text(f'#define NAME "{name}"\n')
        monkeypatch.chdir(folder)
        command = toolchain.compiler_command(load_target("x86_64"))
        toolchain.run([*command, "-c", "-Iinclude", str(source), "-o", "shared.o"], "C")
        assert name.encode() in (folder / "shared.o").read_bytes()
