"""The size of a linked model is exact, independent of the caller's memory, and held to budgets."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest
from kiln.config import Target, load_target
from kiln.report.elf import read_program

from . import tiny
from .conftest import MadeBundle, Maker

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="gcc makes programs of this machine's own kind"
)


CORTEX_M4 = """
description: a microcontroller
triple: thumbv7em-none-eabihf
cpu: cortex-m4
features: []
arch: arm_m
vector: {isa: none, bits: 32, registers: 12, fma: false, dot: none, in_order: true}
cache: {l1d: 0, l2: 0}
cores: 1
threads: none
c_compiler:
  kind: zig
  command: null
  target: thumb-freestanding-eabihf
  flags: [-mcpu=cortex_m4+vfp4d16sp]
libc: {name: none, version: null, static: true}
emulator: null
deployment: freestanding
budget: {flash_bytes: null, ram_bytes: null}
params_storage: embedded
weight_growth: 1
"""


def size(made: MadeBundle, storage: str = "embedded", **budget: int) -> tuple[int, str, Any]:
    plan, out = made.folder / "plan.json", made.folder / "size.json"
    plan.write_text(json.dumps(tiny.plan_for(made.target, storage)))
    (made.folder / "budget.json").write_text(json.dumps({"name": "tiny", "budget": budget}))
    out.unlink(missing_ok=True)
    done = made.stage(
        "size", "--plan", str(plan), "--config", str(made.folder / "budget.json"), "--out", str(out)
    )
    return done.returncode, done.stdout + done.stderr, json.loads(out.read_text()) if out.exists() else None


def test_figures(make: Maker) -> None:
    bundle = make(tiny.gcc_target("x86_64_v2"))
    status, text, figures = size(bundle)
    assert status == 0, text
    linked = figures["linked"]
    assert linked["flash_bytes"] == sum(linked["sections"][name] for name in ("text", "rodata", "data"))
    assert [kernel["symbol"] for kernel in linked["kernels"]] in (
        ["tiny_scale", "tiny_square"],
        ["tiny_square", "tiny_scale"],
    )
    assert all(10 < kernel["bytes"] < 1000 for kernel in linked["kernels"])
    assert linked["code"]["kernels"] == sum(kernel["bytes"] for kernel in linked["kernels"])
    assert 500 < linked["code"]["runtime"] < 16000 and 20 < linked["code"]["plan"] < 2000
    assert linked["code"]["threads"] > 100
    # Nothing is lost: what no function accounts for is alignment, entry code and the procedure table.
    assert 0 <= linked["sections"]["text"] - sum(linked["code"].values()) < 1500
    assert figures["buckets"][0]["arena_bytes"] == 88
    assert ".rodata" in text and "lower bound" in text and "1.833" in text


def test_a_kernel_s_bytes_are_those_of_the_linked_image(make: Maker) -> None:
    bundle = make(tiny.gcc_target("x86_64_v2"))
    _, _, figures = size(bundle)
    (program,) = (bundle.folder / "work").glob("size_model-*")
    functions = read_program(program).functions
    for kernel in figures["linked"]["kernels"]:
        assert functions[kernel["symbol"]] == kernel["bytes"]
    program.write_bytes(program.read_bytes()[:1000])  # damaged since: it is linked again
    assert size(bundle)[2] == figures


@pytest.mark.heavy
def test_parameters_in_the_image_cost_flash_and_in_a_file_too(make: Maker) -> None:
    target = tiny.gcc_target("x86_64_v2")
    _, _, embedded = size(make(target))
    _, _, apart = size(make(target, "file"), "file")
    # 128 bytes of header and 64 of payload, less what alignment moves.
    assert 128 <= embedded["linked"]["flash_bytes"] - apart["linked"]["flash_bytes"] <= 320


def test_a_budget(make: Maker) -> None:
    bundle = make(tiny.gcc_target("x86_64_v2"))
    status, text, figures = size(bundle, flash_bytes=100000, ram_bytes=100000)
    assert status == 0 and [row["kind"] for row in figures["budgets"]] == ["flash", "ram"]
    status, text, figures = size(bundle, flash_bytes=400)
    assert status == 2 and figures is None
    assert (
        "kiln: error: budget exceeded for tiny on x86_64_v2: model tiny allows 400 bytes of flash, " in text
    )
    assert "at least" not in text and "code of the runtime" in text


def test_printed_again(make: Maker) -> None:
    bundle = make(tiny.gcc_target("x86_64_v2"))
    _, text, _ = size(bundle)
    again = bundle.stage("size", "--print", str(bundle.folder / "size.json"))
    assert (again.returncode, again.stdout) == (0, text)


@pytest.fixture
def microcontroller(tmp_path: Path) -> Target:
    """A target without an operating system, from a file that a user would write."""
    path = tmp_path / "m4.yaml"
    path.write_text(CORTEX_M4)
    return load_target(path)


def test_a_freestanding_target_has_sizes_and_budgets(make: Maker, microcontroller: Target) -> None:
    """Nobody names an entry there: the linker kept nothing, so that sizes were 0 and budgets were met."""
    bundle = make(microcontroller)
    status, text, figures = size(bundle)
    assert status == 0, text
    linked = figures["linked"]
    (program,) = (bundle.folder / "work").glob("size_model-*")
    functions = read_program(program).functions
    for kernel in linked["kernels"]:
        assert functions[kernel["symbol"]] == kernel["bytes"] > 10
    assert 500 < linked["code"]["runtime"] < 16000 and 20 < linked["code"]["plan"] < 2000
    assert linked["flash_bytes"] > linked["sections"]["text"] >= sum(linked["code"].values())
    # The session of the program that is measured is in .bss.
    assert figures["buckets"][0]["arena_bytes"] == 88 and 100 < linked["ram_bytes"] < 4000
    status, text, _ = size(bundle, flash_bytes=linked["flash_bytes"], ram_bytes=linked["ram_bytes"] + 88)
    assert status == 0, text
    for kind, limit in (("flash", linked["flash_bytes"] - 1), ("ram", linked["ram_bytes"] + 87)):
        status, text, figures = size(bundle, **{f"{kind}_bytes": limit})
        assert status == 2 and figures is None
        assert f"model tiny allows {limit} bytes of {kind}, {limit + 1} needed, 1 too many" in text


def test_a_program_without_the_model_is_no_measurement(make: Maker) -> None:
    """A compiler whose linker drops everything: no figures, and no budget that is met."""
    target = tiny.gcc_target("x86_64_v2")
    dropping = target.c_compiler.model_copy(update={"flags": ["-Dmain=other", "-nostartfiles", "-Wl,-e,0"]})
    bundle = make(target)
    blind = MadeBundle(bundle.bundle, target.model_copy(update={"c_compiler": dropping}), bundle.folder)
    status, text, figures = size(blind, flash_bytes=10)
    assert status == 2 and figures is None
    assert "kept nothing of model 'tiny' in a program that runs it" in text
