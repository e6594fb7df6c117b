"""Threads on systems that have none are refused, for targets and for models."""

from __future__ import annotations

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
