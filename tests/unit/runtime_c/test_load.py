"""Models in shared libraries that a running program loads: refusals, and swaps under load."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from c_programs import CORE, INCLUDES, RUNTIME, WARNINGS, Builder, Program, need, run
from elftools.elf.elffile import ELFFile
from kiln.emit.headers import include_flags

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kiln_load is for Linux"),
]
PROGRAM = Program("load_test", ("threads_none", "compatible", "load_linux"))


@pytest.mark.heavy
@pytest.mark.parametrize("sanitizer", ["address,undefined", pytest.param("thread", marks=pytest.mark.heavy)])
def test_models_are_swapped_under_load(sanitizer: str, tmp_path: Path) -> None:
    clang = need("clang")
    flags = ("-O1", "-fPIC", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    builder = Builder([clang], flags, tmp_path / "objects")
    program = builder.link(PROGRAM, "-ldl")
    core = [str(builder.object(name)) for name in (*CORE, "cpu_none", "crc_sliced", "threads_none")]
    libraries = []
    for name, define in (("two", "-DFACTOR=2"), ("four", "-DFACTOR=4"), ("other", "-DFACTOR=2 -DOTHER")):
        out = tmp_path / name / "libsums.so"  # of one name, as the libraries of two bundles are
        out.parent.mkdir()
        source = str(RUNTIME / "test" / "load_library.c")
        own = ["-shared", "-Wl,-soname,libsums.so", *define.split()]
        run([clang, *WARNINGS, *flags, *include_flags(), *INCLUDES, *own, source, *core, "-o", str(out)])
        libraries.append(str(out))
    text = tmp_path / "text"
    text.write_text("no library")
    whole, cuts = Path(libraries[0]).read_bytes(), []
    for size in (40, 100, _end_of_segments(whole) - 1):  # in the header, the table of segments, the last one
        cuts.append(tmp_path / f"cut{size}.so")
        cuts[-1].write_bytes(whole[:size])
    assert ", 0 failures" in run([str(program), *libraries, str(text), *map(str, cuts)], tmp_path)


def _end_of_segments(library: bytes) -> int:
    """The bytes of a library that are loaded; its symbols and debugging information follow."""
    segments = ELFFile(io.BytesIO(library)).iter_segments("PT_LOAD")
    return max(int(segment["p_offset"] + segment["p_filesz"]) for segment in segments)
