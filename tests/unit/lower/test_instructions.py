"""Which operations a target has no instructions for, where its features switch some off or on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kiln.config import Target, load_target
from kiln.emit.objects import compile_object
from kiln.emit.run_time_library import missing_symbols
from kiln.errors import KilnError
from kiln.lower.instructions import Operation, _function, _instructions, instructions, record
from kiln.lower.target_check import converts_half, has_floats, lacks_conversions_of_longs, without_root
from kiln.lower.target_trial import _check_floats, check_together

SOFT = {"float32", "float64"}
BARE_ARM = {"triple": "thumbv8m.main-none-eabi"}
RISCV = ["+m", "+a", "+c"]
# Target, keys that differ, and: converts float16, has floats, lacks square roots, lacks those of int64 alone.
CASES: list[tuple[str, dict[str, Any], tuple[bool, bool, set[str], bool]]] = [
    ("cortex_m33", {}, (True, True, {"float64"}, True)),
    ("cortex_m33", BARE_ARM | {"features": ["-fp-armv8d16sp", "-vfp2sp"]}, (False, False, SOFT, False)),
    ("cortex_m33", BARE_ARM | {"features": ["+soft-float"]}, (False, False, SOFT, False)),
    ("cortex_m33", {"features": ["-fp16"]}, (False, True, {"float64"}, True)),
    ("cortex_m7", {}, (True, True, set(), True)),
    ("armv7", {}, (True, True, set(), True)),
    ("armv7", {"features": ["+neon", "-fp16"]}, (False, True, set(), True)),
    ("armv7", {"triple": "armv7a-unknown-linux-gnueabi", "features": ["+soft-float"]},
     (False, False, SOFT, False)),
    ("riscv32_imac", {"features": [*RISCV, "+zfinx", "+zhinxmin"]}, (True, True, {"float64"}, True)),
    ("riscv64", {"features": RISCV}, (False, False, SOFT, False)),
    ("riscv64", {"features": [*RISCV, "+f", "+d", "+zfhmin"]}, (True, True, set(), False)),
    ("aarch64", {"features": ["-fp-armv8"]}, (False, False, SOFT, False)),
    ("aarch64", {"features": ["-fullfp16"]}, (True, True, set(), False)),
    ("x86_64", {"features": ["-f16c"]}, (False, True, set(), False)),
    ("x86_64_v2", {}, (False, True, set(), False)),
    ("wasm32", {}, (False, True, set(), False)),
]  # fmt: skip


def changed(name: str, keys: dict[str, Any]) -> Target:
    target = load_target(name)
    return target.model_copy(update=keys)


def test_of_features_that_are_switched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_CACHE", str(tmp_path))
    for name, keys, expected in CASES:
        target = changed(name, keys)
        found = converts_half(target), has_floats(target), without_root(target)
        assert (*found, lacks_conversions_of_longs(target)) == expected, (name, keys)
    assert len(list((tmp_path / "targets").iterdir())) == len(CASES)


@pytest.mark.heavy
def test_programs_that_pass_floats_in_registers_need_these() -> None:
    both = "float32 and float64"
    cases = [
        ("riscv64", RISCV, both),
        ("riscv64", [*RISCV, "+f"], "float64"),
        ("aarch64", ["-fp-armv8"], both),
        ("cortex_m33", ["-fp-armv8d16sp", "-vfp2sp"], "float32"),
    ]
    for name, features, lacking in cases:
        target = changed(name, {"features": features, "variants": []})
        with pytest.raises(KilnError, match=f"'{name}'.* no instructions for {lacking}, which programs"):
            check_together(target)
    soft: dict[str, Any] = {
        "triple": "armv7a-unknown-linux-gnueabi",
        "features": ["+soft-float"],
        "variants": [],
    }
    for name, keys in (("armv7", soft), CASES[1][:2]):
        _check_floats(changed(name, keys))


def test_a_damaged_record_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_CACHE", str(tmp_path))
    target = load_target("cortex_m4")
    for content in ("", "3", '{"product": 1'):
        record(target).parent.mkdir(exist_ok=True)
        record(target).write_text(content, encoding="utf-8")
        _instructions.cache_clear()
        assert "product" in instructions(target) and "from_long" not in instructions(target)


def test_float16_needs_no_library_without_an_fpu(tmp_path: Path) -> None:
    function = _function("square", Operation("float16", "float16", lambda half: half * half))
    target, path = changed(*CASES[1][:2]), tmp_path / "square.o"
    compile_object({"square": function}, target, path)
    assert missing_symbols(path, target) == []
