"""Mistakes in the YAML file of a target: the error names the line, the key and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from .mistakes import TARGET, complain

TARGET_MISTAKES = [
    (
        "arch: aarch64",
        "arch: arm64",
        6,
        "key 'arch': 'arm64' is not allowed, allowed: x86_64, aarch64, armv7, arm_m, riscv32",
    ),
    ("threads: pthread", "threads: pthreads", 10, "did you mean 'pthread'?"),
    ("cores: 4", "cores: four", 9, "key 'cores': a whole number expected, got 'four'"),
    ("cores: 4", "cores: 0", 9, "key 'cores': must be at least 1, got 0"),
    ("fma: true", "fma: yes", 7, "key 'vector.fma': true or false expected, got 'yes'"),
    ("vector:", "vectors:", 7, "key 'vectors': unknown key; did you mean 'vector'?"),
    ("env: {}", "env: {A=: b}", 20, "key 'emulator.env.A=': 'A=' does not match"),
    ("cores: 4", "latency_ms: 5", 9, "key 'latency_ms': unknown key; did you mean 'budget.latency_ms'?"),
    ("+neon", "neon", 5, "key 'features.0': an LLVM feature with + or - before it expected"),
    ("l1d: 32KiB", "l1d: 32K", 8, "key 'cache.l1d': a number of bytes expected"),
    ("deployment: hosted", "deployment: hosted\nmemory: []", 22, "key 'memory': a hosted target's memory is"),
    (
        "triple: aarch64",
        "triple: thumbv7em",
        3,
        "'thumbv7em-unknown-linux-gnu' is not a triple of arch aarch64: aarch64-… expected, or arch: arm_m",
    ),
    ("l2: 1MiB", "l2: 1MiB, line: 64", 8, "key 'cache.line': unknown key"),
    ("fma: true", "fma: true, lane_fma: true", 7, "key 'vector.lane_fma': unknown key"),
    ("budget: {", "budget: {stack: 1, ", 22, "did you mean 'stack_bytes'?"),
    ("features: [+neon, -aes, -sha2]", "features: null", 5, "key 'features': a list expected, got nothing"),
    ("kind: zig", "kind: zigg", 12, "key 'c_compiler.kind': 'zigg' is not allowed"),
    ("isa: neon", "isa: sve", 7, "key 'vector.bits': 128 with isa sve: 256 or 512 expected"),
    (
        "isa: neon, bits: 128",
        "isa: sve, bits: 256",
        7,
        "key 'vector.dot': 'none' with isa sve, which has dot",
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "says"), TARGET_MISTAKES)
def test_target_mistake(old: str, new: str, line: int, says: str, tmp_path: Path) -> None:
    assert old in TARGET
    message = complain("target", TARGET.replace(old, new, 1), tmp_path)
    assert message.startswith(f"x.yaml:{line}: ")
    assert says in message
