"""device-test under QEMU: bundles for other CPUs run there, and code for a newer CPU does not pass."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from kiln import packages
from kiln.config import load_target

from . import sized, tiny
from .conftest import MadeBundle, Maker

WITHOUT_WINE = pytest.mark.skipif(shutil.which("wine") is None, reason=packages.missing_program("wine"))


@pytest.mark.parametrize(
    ("name", "storage"),
    [
        ("aarch64", "embedded"),
        ("armv7", "file"),
        pytest.param("aarch64", "file", marks=pytest.mark.heavy),
        pytest.param("riscv64", "embedded", marks=pytest.mark.heavy),
        pytest.param("windows_x86_64", "file", marks=[pytest.mark.heavy, WITHOUT_WINE]),
        pytest.param("wasm32", "file", marks=pytest.mark.heavy),
        pytest.param("wasm32", "embedded", marks=pytest.mark.heavy),
        pytest.param("armv7", "embedded", marks=pytest.mark.heavy),
    ],
)
def test_a_right_bundle_passes(make: Maker, name: str, storage: str) -> None:
    target = load_target(name)
    assert target.emulator is not None
    bundle = make(target, storage)
    done = bundle.test()
    assert (done.returncode, done.stderr) == (0, "")
    first = done.stdout.splitlines()[0]
    assert first == f"tiny on {name} ({' '.join([target.emulator.command, *target.emulator.args])})"
    assert "FAILED" not in done.stdout
    assert len(bundle.results()["checks"]) > 150


@pytest.mark.heavy  # zig builds musl first: half a minute; programs for wasm32 are static too
def test_a_static_program_needs_no_c_library_there(make: Maker) -> None:
    bundle = make(load_target("aarch64_musl"))
    done = bundle.test()
    assert (done.returncode, done.stderr) == (0, "")


def test_buckets_there(tmp_path: Path) -> None:
    target = load_target("armv7").with_variants(["base"])  # 32 bits: sizes are wider than a pointer
    done = MadeBundle(sized.build(tmp_path / "bundle", target), target, tmp_path).test()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert len([line for line in done.stdout.splitlines() if line.startswith("  bucket ")]) == 3


def test_a_wrong_value_is_found_there(make: Maker) -> None:
    kernels = tiny.KERNELS.replace("+ 1.0f", "+ 1.1f")
    done = make(load_target("aarch64"), kernels=kernels).test()
    assert done.returncode == 1
    assert "vector random1, output y: 6 of 6 elements differ" in done.stderr


def test_an_instruction_of_a_newer_cpu_is_found(make: Maker) -> None:
    body = """void tiny_square(const float *t, float *workspace, float *y) {
    __asm__ volatile(".arch_extension dotprod\\n sdot v0.4s, v1.16b, v2.16b" ::: "v0");
"""
    head, tail = tiny.KERNELS.split("void tiny_square(const float *t, float *workspace, float *y) {\n")
    kernels = head + body + tail
    bundle = make(load_target("aarch64"), kernels=kernels)
    done = bundle.test()
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "qemu-aarch64 -cpu cortex-a53" in done.stderr
    assert "killed by SIGILL (an instruction this CPU lacks)" in done.stderr
    done = make(load_target("aarch64_a76"), kernels=kernels).test()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["aarch64", "armv7"])
def test_size(make: Maker, name: str) -> None:
    bundle = make(load_target(name))
    plan, out = bundle.folder / "plan.json", bundle.folder / "size.json"
    plan.write_text(json.dumps(tiny.plan()))
    done = bundle.stage("size", "--plan", str(plan), "--out", str(out), "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    linked = json.loads(out.read_text())["linked"]
    assert all(10 < kernel["bytes"] < 1000 for kernel in linked["kernels"])
    assert 500 < linked["code"]["runtime"] < 16000
    assert 0 <= linked["sections"]["data"] < 1500


def test_run_prints_a_summary(make: Maker) -> None:
    bundle = make(load_target("armv7"))
    plan, config = bundle.folder / "plan.json", bundle.folder / "run.json"
    plan.write_text(json.dumps(tiny.plan()))
    config.write_text(json.dumps({"name": "tiny", "preprocess": None, "labels": None, "run": None}))
    done = bundle.stage("device-run", "--plan", str(plan), "--config", str(config))
    assert done.returncode == 0, done.stderr
    assert "tiny on armv7 (qemu-arm -cpu cortex-a9): golden vector random1, " in done.stdout
    assert "float32 2×3" in done.stdout
    done = bundle.stage("device-run", "--plan", str(plan), "--config", str(config), "--image", "cat.jpg")
    assert done.returncode == 2
    assert (
        done.stderr == "kiln: error: model 'tiny' accepts no image: its configuration has no 'preprocess'\n"
    )
