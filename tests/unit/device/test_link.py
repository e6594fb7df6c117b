"""Bundles and the programs that test them: parts that are compiled once for all models; variants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kiln.config import load_target
from kiln.device.bundle import Bundle
from kiln.device.link import common_objects
from kiln.errors import KilnError
from kiln.paths import cache_dir
from kiln.report.measure import linked_figures


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
    whole = made.read_bytes()
    made.write_bytes(whole[:-1] + b"x")
    assert common_objects(target, [source], ["-O1"], [header]) == [made] and made.read_bytes() == whole
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
    target_of_cpu = target.model_copy(update={"c_compiler": target.c_compiler.model_copy(update=changes)})
    source = tmp_path / "same.c"
    assert common_objects(target_of_cpu, [source], [], []) == [source]


class Linked(Exception):  # noqa: N818
    """Ends a function at its call of the linker, whose flags it has."""


@pytest.mark.parametrize("name", ["armv7", "wasm32", "x86_64", "x86_64_musl", "windows_x86_64"])
def test_zigs_libraries_are_made_for_one_kind_of_optimisation(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the programs that measure and that test: for WebAssembly, zig takes 25 seconds for them."""

    def link(_target: object, _sources: object, flags: Sequence[str], *_: object, **__: object) -> None:
        raise Linked(sorted(flag for flag in flags if flag.startswith(("-O", "-g"))))

    monkeypatch.setattr("kiln.device.bundle.link", link)
    monkeypatch.setattr("kiln.device.bundle.common_objects", lambda *_: [])
    monkeypatch.setattr("kiln.report.measure.link", link)
    monkeypatch.setattr(Bundle, "_defines", lambda _: [])
    plan: Any = SimpleNamespace(name="net", threads="none")
    with pytest.raises(Linked) as measures:
        linked_figures(plan, tmp_path, load_target(name), tmp_path)
    with pytest.raises(Linked) as tests:
        Bundle(tmp_path, "net").link_program(load_target(name), tmp_path)
    assert measures.value.args == tests.value.args != ([],)


def test_variants_are_those_that_the_manifest_lists(tmp_path: Path) -> None:
    """A target without variants needs no manifest; one of an earlier Kiln lists none."""
    bundle, target = Bundle(tmp_path, "net"), load_target("x86_64")
    manifest = tmp_path / "manifest.json"
    assert bundle.variants(target.for_variant("v4")) == ["v4"]
    manifest.write_text('{"name": "net", "variants": [{"name": "v3"}, {"name": "v4"}]}')
    assert bundle.variants(target) == ["v3", "v4"]
    manifest.write_text('{"name": "net"}')
    with pytest.raises(KilnError, match="'variants': an earlier Kiln made it; build the model again"):
        bundle.variants(target)
