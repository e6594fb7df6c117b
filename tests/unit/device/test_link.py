"""Programs that test a bundle: what is compiled once for all models."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.config import load_target
from kiln.device.link import common_objects
from kiln.paths import cache_dir


def test_what_no_model_changes_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the user's cache; another header, another flag or another target makes others."""
    monkeypatch.setenv("KILN_CACHE", str(tmp_path / "cache"))
    source, header = tmp_path / "same.c", tmp_path / "include/size.h"
    header.parent.mkdir()
    source.write_text('#include "size.h"\nint size(void) { return SIZE; }\n')
    header.write_text("#define SIZE 1\n")
    target = load_target("x86_64")
    (made,) = common_objects(target, [source], ["-O1"], [header])
    time = made.stat().st_mtime_ns
    (header.parent / "resnet.h").write_text("a model's own header\n")
    assert common_objects(target, [source], ["-O1"], [header]) == [made]
    assert made.stat().st_mtime_ns == time
    found = {made, *common_objects(target, [source], ["-O2"], [header])}
    found |= set(common_objects(load_target("aarch64"), [source], ["-O1"], [header]))
    header.write_text("#define SIZE 2\n")
    found |= set(common_objects(target, [source], ["-O1"], [header]))
    assert len(found) == 4 and all(path.read_bytes().startswith(b"\x7fELF") for path in found)


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(cache_dir() / "zig"))
    monkeypatch.setenv("KILN_CACHE", "/dev/null/cache")
    source = tmp_path / "same.c"
    source.write_text("int one(void) { return 1; }\n")
    assert common_objects(load_target("x86_64"), [source], ["-O1"], []) == [source]


@pytest.mark.parametrize("changes", [{"kind": "gcc"}, {"command": ["my-cc"]}])
def test_a_compiler_of_the_users_own_compiles_it_each_time(
    changes: dict[str, object], tmp_path: Path
) -> None:
    target = load_target("x86_64")
    own = target.model_copy(update={"c_compiler": target.c_compiler.model_copy(update=changes)})
    source = tmp_path / "same.c"
    assert common_objects(own, [source], [], []) == [source]
