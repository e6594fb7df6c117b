"""Threads, C libraries and versions that a target's system does not have are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kiln.config import load_target
from kiln.errors import KilnError
from kiln.paths import data_dir


def test_threads_on_webassembly(tmp_path: Path) -> None:
    text = (data_dir("targets") / "wasm32.yaml").read_text(encoding="utf-8")
    (tmp_path / "web.yaml").write_text(text.replace("threads: none", "threads: pthread"), encoding="utf-8")
    with pytest.raises(KilnError) as caught:
        load_target(tmp_path / "web.yaml")
    assert "threads" in str(caught.value) and "\n" not in str(caught.value)
    assert "'pthread' on WebAssembly: none expected" in str(caught.value)


def test_variants_where_no_processor_can_be_asked(tmp_path: Path) -> None:
    text = (data_dir("targets") / "wasm32.yaml").read_text(encoding="utf-8")
    vector = "{isa: simd128, bits: 128, registers: 16, fma: true, dot: none, in_order: false}"
    variant = f"variants:\n  - {{name: relaxed, cpu: generic, features: [+relaxed-simd], vector: {vector}}}\n"
    (tmp_path / "web.yaml").write_text(text.replace("variants: []\n", variant), encoding="utf-8")
    with pytest.raises(KilnError, match="variants"):
        load_target(tmp_path / "web.yaml")


@pytest.mark.parametrize(
    ("target", "line", "said"),
    [
        ("android_arm64", 'libc: {name: glibc, version: "24", static: false}', "'glibc' on Android: bionic"),
        ("android_arm64", 'libc: {name: bionic, version: "21", static: false}', "'21' on Android: a whole"),
        ("android_arm64", "libc: {name: bionic, version: null, static: false}", "'null' on Android: a whole"),
        ("android_arm64", 'libc: {name: bionic, version: "24", static: true}', "true on Android"),
        ("macos_arm64", "libc: {name: glibc, version: null, static: false}", "'glibc' on macOS: libSystem"),
        ("x86_64", "libc: {name: bionic, version: null, static: false}", "'bionic' on Linux: glibc or musl"),
        ("wasm32", "libc: {name: mingw, version: null, static: true}", "'mingw' on WebAssembly: wasi"),
        ("cortex_m4", "libc: {name: glibc, version: null, static: true}", "'glibc' on none: newlib or none"),
    ],
)
def test_a_c_library_that_the_system_lacks(target: str, line: str, said: str, tmp_path: Path) -> None:
    text = (data_dir("targets") / f"{target}.yaml").read_text(encoding="utf-8")
    changed = re.sub(r"^libc: .*$", line, text, flags=re.MULTILINE)
    (tmp_path / "other.yaml").write_text(changed, encoding="utf-8")
    with pytest.raises(KilnError) as caught:
        load_target(tmp_path / "other.yaml")
    assert said in str(caught.value) and "libc" in str(caught.value) and "\n" not in str(caught.value)
