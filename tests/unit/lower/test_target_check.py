"""Triples, CPUs and features that LLVM cannot serve end in one line, never in LLVM's abort."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kiln.config import load_target
from kiln.errors import KilnError
from kiln.lower import target_check
from kiln.lower.instructions import record
from kiln.lower.target_trial import check_together

CASES: list[tuple[str, dict[str, object], str]] = [
    ("riscv32_imac", {"cpu": "generic-rv64"}, "RV32 target requires an RV32 CPU"),
    ("riscv32_imac", {"features": ["+e", "+d"]}, "ILP32E cannot be used with the D ISA extension"),
    ("cuda", {"cpu": "i386", "features": []}, "64-bit code requested"),
    ("cortex_m4", {"cpu": "cortex-m99"}, "LLVM knows no CPU 'cortex-m99' for arm_m"),
    ("cortex_m7", {"cpu": "cortex-r5"}, "CPU 'cortex-r5' is not of Arm's M profile, as those of arch arm_m"),
    ("armv7", {"cpu": "cortex-m7"}, "CPU 'cortex-m7' is not of Arm's A profile, as those of arch armv7 are"),
    ("cortex_m4", {"features": ["+helium"]}, "LLVM knows no feature 'helium' for arm_m"),
    ("cortex_m4", {"cpu": "cortex-m3"}, "'dsp' needs LLVM's feature dsp, which CPU 'cortex-m3' with"),
    ("cortex_m55", {"features": ["-mve"]}, "'mve' needs LLVM's feature mve, which CPU 'cortex-m55' with"),
    ("x86_64_v2", {"cpu": "x86-64"}, "'sse4' needs LLVM's feature ssse3, which CPU 'x86-64' with"),
    ("x86_64", {"cpu": "nehalem"}, "'avx2' needs LLVM's feature avx2, which CPU 'nehalem' with"),
    (
        "aarch64_a76",
        {"cpu": "cortex-a53", "features": []},
        "'sdot' needs LLVM's feature dotprod, which",
    ),
]
# In a process of one thread, as stages are: pytest's has more.
PROGRAM = """
import json, os, sys
from kiln.config import load_target
from kiln.errors import KilnError
from kiln.lower import target_check
from kiln.lower.target_trial import check_together

if os.fork():  # which ends the threads that OpenBLAS has started
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
for name, keys in json.loads(sys.argv[1]):
    target = load_target(name).model_copy(update=keys)
    try:
        target_check.check(target)
        check_together(target)
        print()
    except KilnError as error:
        print(error)
"""


def test_refused_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, json.dumps([(name, keys) for name, keys, _ in CASES])]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "KILN_CACHE": str(tmp_path), "TMPDIR": str(scratch)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(CASES)
    for (_, _, message), line in zip(CASES, lines, strict=True):
        assert message in line
    assert not (tmp_path / "targets").exists()  # a failure is not remembered as a success
    assert list(scratch.iterdir()) == []  # also where LLVM ended the process


def test_dot_products_need_those_of_the_vectors_length() -> None:
    """A processor may have VNNI for 256 bits alone: LLVM cannot select the instruction for 512."""
    target = load_target("x86_64").for_variant("v4_vnni")
    target_check.check(target.model_copy(update={"variants": []}))
    with pytest.raises(KilnError, match="'vnni' needs LLVM's feature avx512vnni, which CPU 'x86-64-v4'"):
        target_check.check(target.model_copy(update={"variants": [], "features": ["+avxvnni"]}))


@pytest.mark.heavy
def test_a_process_with_threads_does_not_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork may wait for ever for a lock that another thread held. Success is remembered."""
    monkeypatch.setenv("KILN_CACHE", str(tmp_path))
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        check_together(load_target("cortex_m55"))
    finally:
        ended.set()
        thread.join()
    assert record(load_target("cortex_m55")).is_file()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    check_together(load_target("cortex_m55"))
