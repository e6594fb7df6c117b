"""device-test on a bundle with buckets: each at its sizes, and one step outside."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest
from kiln.runtime.traffic import read_counts

from . import sized, tiny
from .conftest import MadeBundle

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="gcc makes programs of this machine's own kind"
)


def made(folder: Path, **changes: Any) -> MadeBundle:
    target = tiny.base_target("x86_64_v2")
    return MadeBundle(sized.build(folder / "bundle", target, **changes), target, folder)


def test_every_bucket_and_one_step_outside(tmp_path: Path) -> None:
    bundle = made(tmp_path)
    done = bundle.test()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    heads = [line for line in lines if line.startswith("  bucket ")]
    assert heads == [
        "  bucket batch1_width4 (batch 1, width 4): arena of 16 bytes",
        "  bucket width_pad8 (batch 1..2, width 2..8 by 2 padded to 8): arena of 64 bytes; "
        "38 % of what it computes is padding, on average",
        "  bucket width12_16 (batch 1..2, width 12..16 by 2): arena of 128 bytes",
    ]
    results = bundle.results()
    assert [(v["bucket"], v["dims"], v["arena_bytes"]) for v in results["vectors"]] == [
        ("batch1_width4", {"batch": 1, "width": 4}, 16),
        ("batch1_width4", {"batch": 1, "width": 4}, 16),
        ("width_pad8", {"batch": 1, "width": 2}, 64),
        ("width_pad8", {"batch": 1, "width": 6}, 64),
        ("width_pad8", {"batch": 2, "width": 8}, 64),
        ("width12_16", {"batch": 1, "width": 12}, 128),
        ("width12_16", {"batch": 1, "width": 14}, 128),
        ("width12_16", {"batch": 2, "width": 16}, 128),
    ]
    text_of_check = {check["name"]: check["text"] for check in results["checks"]}
    refused = {name: text for name, text in text_of_check.items() if name.startswith("refuses ")}
    assert [text.split(":")[0] for text in refused.values()] == [
        *["KILN_DIM_RANGE"] * 4,
        "KILN_DIM_MULTIPLE",
        *["KILN_NO_BUCKET"] * 2,
        *["KILN_DIM_MISMATCH"] * 2,
    ]
    assert refused["refuses width 3 (batch=1 width=3)"] == (
        "KILN_DIM_MULTIPLE: x axis 1: 3, allowed multiples of 2 in 2..16"
    )
    assert refused["refuses batch 1 and 2 at once"].startswith("KILN_DIM_MISMATCH: mask axis 0: 2, allowed 1")
    assert len([name for name in text_of_check if name.startswith("arena one byte too small")]) == 1
    assert sum(check["name"] == "arena one byte too small" for check in results["checks"]) == 3
    assert sum(check["name"].startswith("same bytes step by step") for check in results["checks"]) == 3


def _changed_plan(change: str) -> dict[str, Any]:
    plan = sized.plan()
    exact, padded, ranged = plan["buckets"]
    if change == "arena":
        padded["arena_bytes"] = ranged["arena_bytes"]
    elif change == "range":
        plan["dims"] = [plan["dims"][0], {**plan["dims"][1], "max": 18}]
    elif change == "gap":
        padded["dims"] = {**padded["dims"], "width": {"min": 2, "max": 10, "multiple": 2}}
    elif change == "multiple":
        plan["dims"] = [plan["dims"][0], {**plan["dims"][1], "multiple": 1}]
        for bucket in plan["buckets"]:
            bucket["dims"]["width"]["multiple"] = 1
    elif change == "order":
        plan["buckets"] = [padded, exact, ranged]
    return plan


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("range", "refuses width 17"),
        ("gap", "refuses width 10 (batch=1 width=10): it ran"),
        ("multiple", "refuses width 3 (batch=1 width=3): gave KILN_"),
        (
            "order",
            "bucket of vector batch1_width4_random_1: 'width_pad8' would serve it, not 'batch1_width4'",
        ),
    ],
)
def test_a_plan_that_serves_other_sizes_is_found(tmp_path: Path, change: str, fault: str) -> None:
    done = made(tmp_path, plan=_changed_plan(change)).test()
    assert done.returncode == 1, done.stdout + done.stderr
    assert fault.split(": ")[0] in done.stdout and "FAILED" in done.stdout


def test_a_kernel_that_is_wrong_in_one_bucket_alone_is_found(tmp_path: Path) -> None:
    wrong = sized.KERNELS.replace(": 0.0f", ": 1.0f")
    assert wrong != sized.KERNELS
    done = made(tmp_path, kernels=wrong).test()
    assert done.returncode == 1
    assert "vector batch1_width2_random_1, output z: 1 of 1 elements differ" in done.stderr


def test_a_kernel_that_needs_more_than_its_arena_is_found(tmp_path: Path) -> None:
    body = "z[row] += t[row * 8 + i];"
    wrong = sized.KERNELS.replace(body, f"{body} ((float *)t)[16] = 0.0f;")
    assert wrong != sized.KERNELS
    done = made(tmp_path, kernels=wrong).test()
    assert done.returncode == 1 and "guards around arena" in done.stdout


def test_bench_and_run_record_the_sizes_of_their_runs(tmp_path: Path) -> None:
    bundle = made(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(sized.plan()))
    (tmp_path / "config.json").write_text(json.dumps({"name": "sized"}))
    traffic = tmp_path / "seen.csv"
    more = ["--plan", str(tmp_path / "plan.json"), "--traffic", str(traffic)]
    done = bundle.stage("device-bench", *more, "--out", str(tmp_path / "bench.json"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "width12_16 at batch=2, width=16\n" in done.stdout
    runs = json.loads((tmp_path / "bench.json").read_text())["runs"]
    counted = read_counts(traffic)
    assert counted.dims == ("batch", "width") and len(counted.rows) == 3
    assert sum(counted.rows.values()) == sum(run["runs"] for run in runs)
    assert {tuple(run["sizes"]) for run in runs} == set(counted.rows)
    assert set(counted.rows) == {(1, 4), (2, 8), (2, 16)}  # each bucket at its greatest sizes
    contents = counted.of_inputs()
    assert list(contents) == ["mask", "x"] and contents["x"]["other"] == sum(counted.rows.values())
    done = bundle.stage("device-run", *more, "--config", str(tmp_path / "config.json"))
    assert (done.returncode, done.stderr) == (0, "")
    added = read_counts(traffic)
    assert sum(added.rows.values()) == sum(counted.rows.values()) + 1
    assert added.rows[1, 4] == counted.rows[1, 4] + 1  # the first golden vector
    traffic.write_text("other,count\n1,1\n")
    done = bundle.stage("device-run", *more, "--config", str(tmp_path / "config.json"))
    assert done.returncode == 2
    assert done.stderr == f"kiln: error: {traffic}: traffic of other, expected batch, width\n"
    assert traffic.read_text() == "other,count\n1,1\n"
