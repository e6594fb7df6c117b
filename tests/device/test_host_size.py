"""The size of what is linked: exact, independent of the caller's memory, and held to budgets."""

from __future__ import annotations

import json
import platform
from typing import Any

import pytest
from kiln.report.elf import read_program

from . import tiny
from .conftest import Made, Maker

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="gcc makes programs of this machine's own kind"
)


def size(made: Made, storage: str = "embedded", **budget: int) -> tuple[int, str, Any]:
    plan, out = made.folder / "plan.json", made.folder / "size.json"
    plan.write_text(json.dumps(tiny.plan(storage)))
    (made.folder / "budget.json").write_text(json.dumps({"name": "tiny", "budget": budget}))
    out.unlink(missing_ok=True)
    done = made.stage(
        "size", "--plan", str(plan), "--config", str(made.folder / "budget.json"), "--out", str(out)
    )
    return done.returncode, done.stdout + done.stderr, json.loads(out.read_text()) if out.exists() else None


def test_figures(make: Maker) -> None:
    made = make(tiny.gcc_target("x86_64_v2"))
    status, text, figures = size(made)
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
    made = make(tiny.gcc_target("x86_64_v2"))
    _, _, figures = size(made)
    (program,) = (made.folder / "work").glob("size_model-*")
    functions = read_program(program).functions
    for kernel in figures["linked"]["kernels"]:
        assert functions[kernel["symbol"]] == kernel["bytes"]


def test_parameters_in_the_image_cost_flash_and_in_a_file_too(make: Maker) -> None:
    target = tiny.gcc_target("x86_64_v2")
    _, _, embedded = size(make(target))
    _, _, apart = size(make(target, "file"), "file")
    # 128 bytes of header and 64 of payload, less what alignment moves.
    assert 128 <= embedded["linked"]["flash_bytes"] - apart["linked"]["flash_bytes"] <= 320


def test_a_budget(make: Maker) -> None:
    made = make(tiny.gcc_target("x86_64_v2"))
    status, text, figures = size(made, flash_bytes=100000, ram_bytes=100000)
    assert status == 0 and [row["kind"] for row in figures["budgets"]] == ["flash", "ram"]
    status, text, figures = size(made, flash_bytes=400)
    assert status == 2 and figures is None
    assert (
        "kiln: error: budget exceeded for tiny on x86_64_v2: model tiny allows 400 bytes of flash, " in text
    )
    assert "at least" not in text and "code of the runtime" in text


def test_printed_again(make: Maker) -> None:
    made = make(tiny.gcc_target("x86_64_v2"))
    _, text, _ = size(made)
    again = made.stage("size", "--print", str(made.folder / "size.json"))
    assert (again.returncode, again.stdout) == (0, text)
