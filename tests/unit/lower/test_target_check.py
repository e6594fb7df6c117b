"""Triples, CPUs and features that LLVM cannot serve end in one line, never in LLVM's abort."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.config import load_target
from kiln.errors import KilnError
from kiln.lower import target_check
from kiln.lower.target_trial import check_together

# The trial forks, as in a stage, whose process has one thread. In a process that earlier tests gave threads
# the child may wait for ever, so these tests run where their file is named, and in ./kiln test all.
pytestmark = pytest.mark.heavy


@pytest.mark.parametrize(
    ("name", "keys", "told"),
    [
        ("riscv32_imac", {"cpu": "generic-rv64"}, "RV32 target requires an RV32 CPU"),
        ("riscv32_imac", {"features": ["+e", "+d"]}, "ILP32E cannot be used with the D ISA extension"),
        ("x86_64", {"cpu": "i386", "features": []}, "64-bit code requested"),
        ("cortex_m4", {"cpu": "cortex-m99"}, "LLVM knows no CPU 'cortex-m99' for arm_m"),
        ("cortex_m4", {"features": ["+helium"]}, "LLVM knows no feature 'helium' for arm_m"),
    ],
)
def test_refused_in_one_line(
    name: str, keys: dict[str, object], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_CACHE", str(tmp_path))
    target = load_target(name).model_copy(update=keys)
    for _ in range(2):  # a failure is not remembered as a success
        with pytest.raises(KilnError) as caught:
            target_check.check(target)
            check_together(target)
        assert told in str(caught.value) and "\n" not in str(caught.value)


def test_success_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_CACHE", str(tmp_path))
    for name in ("cortex_m0plus", "cortex_m55", "riscv32_imafc"):
        target = load_target(name)
        check_together(target)
        check_together(target)
    assert len(list((tmp_path / "targets").iterdir())) == 3
