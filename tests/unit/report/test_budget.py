"""Figures of a plan, and what happens when they exceed a budget."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from kiln.config import Target, canonical_json, load_target, target_config
from kiln.config.budget import Clock
from kiln.config.memory import Region
from kiln.device.bundle import Bundle, GoldenVector
from kiln.device.check.execute import Outcome
from kiln.device.check.run_limits import over_budget
from kiln.device.check.runners.local import LocalRunner
from kiln.device.check.runners.qemu_machine import MachineRunner
from kiln.errors import KilnError
from kiln.files import write_json
from kiln.lower.schema import PatchRecord
from kiln.plan.parameter_records import PlacedRegion
from kiln.plan.schema import Plan
from kiln.report import budget, measure, size
from kiln.report.budget import check, contributors, of_memory, of_regions
from kiln.report.run_budget import run_budgets
from kiln.stages.target import SizeStage
from plans import plan_of, size_file


def plan() -> Plan:
    """Two steps: 100 bytes live in the first, 100 + 60 + 40 in the second."""
    kernel = {"flops": 10}
    step = {"extent": 1, "args": [], "attrs": {}}
    return plan_of(
        name="tiny",
        params={
            "bytes": 640,
            "align": 64,
            "storage": "embedded",
            "tensors": [
                {"name": "w", "offset": 0, "bytes": 600, "dtype": "float32", "shape": [150]},
                {"name": "b", "offset": 600, "bytes": 40, "dtype": "float32", "shape": [10]},
            ],
        },
        kernels=[
            {"symbol": "tiny_a", "ops": [{"name": "relax.nn.conv2d", "attrs": {}}], **kernel},
            {"symbol": "tiny_b", "ops": [{"name": "add", "attrs": {}}, {"name": "relu"}], **kernel},
        ],
        buckets=[
            {
                "name": "static",
                "dims": {},
                "arena_bytes": 256,
                "lower_bound_bytes": 200,
                "steps": [
                    {"kernel": "tiny_a", "label": "", **step},
                    {"kernel": "tiny_b", "label": "", **step},
                ],
                "tensors": [
                    {"name": "t0", "offset": 0, "bytes": 100, "first": 0, "last": 1, "kind": "activation"},
                    {"name": "t1", "offset": 128, "bytes": 60, "first": 1, "last": 1, "kind": "activation"},
                    {"name": "ws", "offset": 192, "bytes": 40, "first": 1, "last": 1, "kind": "workspace"},
                ],
            }
        ],
    )


def run(tmp_path: Path, config: dict[str, Any] | None) -> dict[str, Any]:
    """Run the stage as the build does, without anything to link."""
    (tmp_path / "plan.json").write_text(json.dumps(plan().model_dump()))
    (tmp_path / "target.json").write_text(canonical_json(target_config(load_target("aarch64"))))
    command = [
        f"--plan={tmp_path}/plan.json",
        f"--target={tmp_path}/target.json",
        f"--out={tmp_path}/size.json",
    ]
    if config is not None:
        (tmp_path / "budget.json").write_text(json.dumps(config))
        command.append(f"--config={tmp_path}/budget.json")
    size.run(SizeStage.parse(command))
    result: dict[str, Any] = json.loads((tmp_path / "size.json").read_text())
    return result


def test_figures_before_anything_is_linked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = run(tmp_path, None)
    assert figures["params"] == {"bytes": 640, "storage": "embedded"}
    [row] = figures["buckets"]
    expected = {"name": "static", "dims": {}, "arena_bytes": 256, "lower_bound_bytes": 200, "steps": 2}
    assert {key: row[key] for key in expected} == expected
    out = capsys.readouterr().out
    assert "640" in out and "256" in out and "1.280" in out


REGIONS = [
    Region(name="flash", origin=0, bytes=4096, holds=["code", "parameters"], cost=1),
    Region(name="qspi", origin=0x1000, bytes=4096, holds=["parameters"], cost=3),
    Region(name="fast", origin=0x2000, bytes=512, holds=["arena"], cost=1),
    Region(name="ram", origin=0x3000, bytes=1024, holds=["data", "arena"], cost=2),
]


@pytest.mark.parametrize(
    ("linked", "used"),
    [
        (False, {"flash": 64 + 128, "qspi": 128 + 128, "fast": 64, "ram": 192}),
        # with 1000 bytes of flash, 192 of them parameters, and 40 of variables; the state has 24 bytes
        (True, {"flash": 64 + 128 + 1000 - 192, "qspi": 128 + 128, "fast": 64, "ram": 192 + 40 + 24}),
    ],
)
def test_regions_hold_parts_of_arena_and_parameters_and_the_program(
    linked: bool, used: dict[str, int]
) -> None:
    """Each part of the parameters is an image of its own, with a header of 128 bytes."""
    target = load_target("cortex_m4").model_copy(update={"memory": REGIONS})
    places = {"flash": 64, "qspi": 128, "fast": 64, "ram": 192}
    parts = [PlacedRegion(name=name, bytes=size, section="") for name, size in places.items()]
    params = plan().params.model_copy(update={"bytes": 192, "parts": parts[:2]})
    split = plan().model_copy(update={"params": params, "regions": parts[2:]})
    program = {
        "sections": {"text": 1000, "rodata": 0, "data": 0, "bss": 40},
        "flash_bytes": 1000,
        "ram_bytes": 40,
        "code": {"kernels": 808, "plan": 0, "runtime": 0, "threads": 0, "platform": 0, "other": 0},
        "kernels": [],
    }
    figures = size_file((256,), program if linked else None, params={"bytes": 192, "storage": "embedded"})
    lines = of_regions(figures.model_copy(update={"state_bytes": 24}), split, target)
    assert {line.owner: (line.kind, line.used, line.exact) for line in lines} == {
        f"region {name} of target cortex_m4": ("ram" if name in ("fast", "ram") else "flash", size, linked)
        for name, size in used.items()
    }


@pytest.mark.parametrize(
    ("regions", "used"),
    [
        ({"flash": ["code", "parameters"], "ram": ["data", "heap"]}, {}),
        # parameters in a region of their own have a header of 128 bytes there
        ({"flash": ["code"], "qspi": ["parameters"], "ram": ["data"]}, {"flash": 1000 - 640, "qspi": 768}),
        ({"flash": ["code"], "ram": ["data"], "psram": ["heap"]}, {"ram": 40 + 24, "psram": 256}),
        ({"flash": ["code"], "ram": ["data"], "dtcm": ["arena"]}, {"ram": 40 + 24, "dtcm": 256}),
    ],
)
def test_each_of_several_regions_has_a_limit_of_its_own(
    regions: dict[str, list[str]], used: dict[str, int]
) -> None:
    """One arena, not split over regions, in the one that holds it."""
    memory = [
        Region(name=name, origin=number << 20, bytes=512, holds=holds)  # type: ignore[arg-type]
        for number, (name, holds) in enumerate(regions.items())
    ]
    target = load_target("cortex_m4").model_copy(update={"memory": memory})
    linked = {**LINKED, "flash_bytes": 1000, "ram_bytes": 40}
    figures = size_file((256,), linked, params={"bytes": 640, "storage": "embedded"})
    placed = plan()
    if "dtcm" in regions:
        placed = placed.model_copy(update={"regions": [PlacedRegion(name="dtcm", bytes=256, section="")]})
    lines = of_regions(figures.model_copy(update={"state_bytes": 24}), placed, target)
    assert {line.owner: line.used for line in lines} == {
        f"region {name} of target cortex_m4": size for name, size in used.items()
    }
    assert {line.owner.split()[1] for line in lines if line.excess > 0} == {"qspi"} & set(used)


def test_a_budget_that_is_kept(tmp_path: Path) -> None:
    figures = run(tmp_path, {"name": "tiny", "budget": {"flash_bytes": 640, "ram_bytes": 256}})
    assert [(row["kind"], row["limit"] - row["used"]) for row in figures["budgets"]] == [
        ("flash", 0),
        ("ram", 0),
    ]


def test_an_exceeded_budget_fails_with_what_takes_the_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "size.json").write_text("of an earlier build")
    with pytest.raises(KilnError) as caught:
        run(tmp_path, {"budget": {"flash_bytes": 500, "ram_bytes": 255}})
    assert str(caught.value) == (
        "budget exceeded for tiny on aarch64: model tiny allows 500 bytes of flash, at least 640 needed, "
        "140 too many; model tiny allows 255 bytes of ram, at least 256 needed, 1 too many; "
        "this is the nearest plan that was found"
    )
    assert not (tmp_path / "size.json").exists()
    table = capsys.readouterr().out
    assert "parameter w" in table and "600" in table
    assert "activation t0 at step 1 (add + relu)" in table


def test_the_nearest_plan_is_described_where_no_plan_keeps_the_limit() -> None:
    figures = size_file()
    patches = PatchRecord(
        layers=4, parts=11, macs=9, more_macs=1, limit_bytes=8192, bytes_before=69120, bytes_after=10688
    )
    (bucket,) = figures.buckets
    figures = figures.model_copy(update={"buckets": [bucket.model_copy(update={"patches": patches})]})
    assert size.nearest_plan(figures, by_choice=True) == (
        "; this is the nearest plan that was found, with the first 4 layers in 11 patches: without them "
        "69120 bytes are in use at once"
    )
    assert size.nearest_plan(figures, by_choice=False).endswith("the model says 'patches: none'")


def test_peak_step() -> None:
    step, live = measure.peak_step(plan().buckets[0])
    assert step == 1 and [tensor.name for tensor in live] == ["t0", "t1", "ws"]


def test_parameters_in_a_file_count_as_flash() -> None:
    params, linked = {"bytes": 1000, "storage": "file"}, {"flash_bytes": 200, "ram_bytes": 5}
    figures = size_file((10, 30), linked, params=params)
    assert budget.used_bytes(figures) == {"flash": 1200, "ram": 35}


LINKED = {"flash_bytes": 900, "ram_bytes": 20, "stack_bytes": 700}
FRAMES = [{"function": "kiln_open", "bytes": 400}, {"function": "kernel", "bytes": 300}]


def test_the_stack_and_the_memory_of_a_microcontroller_are_budgets() -> None:
    target = load_target("cortex_m0plus")
    limits = {"model m": {"stack_bytes": 699, "instructions": 5}, **of_memory(target)}
    figures = size_file(linked={**LINKED, "stack_frames": FRAMES})
    lines = {(line.owner, line.kind): (line.limit, line.used, line.excess) for line in check(figures, limits)}
    assert lines == {
        ("model m", "stack"): (699, 700, 1),
        ("the memory of target cortex_m0plus", "flash"): (256 << 10, 900, 900 - (256 << 10)),
        ("the memory of target cortex_m0plus", "ram"): (64 << 10, 120, 120 - (64 << 10)),
    }
    assert contributors("stack", figures, None) == [("frame of kiln_open", 400), ("frame of kernel", 300)]  # type: ignore[arg-type]
    assert of_memory(load_target("x86_64")) == {}


def test_a_limit_of_a_stack_that_is_not_known_is_refused() -> None:
    linked = {"flash_bytes": 1, "ram_bytes": 1}
    with pytest.raises(KilnError, match=r"budget 'stack_bytes' of model m: .* not known on target 'x86_64'"):
        check(size_file(linked=linked, target="x86_64"), {"model m": {"stack_bytes": 4}})
    assert check(size_file(linked=linked, target="x86_64"), {"model m": {"stack_bytes": None}}) == []


def test_too_many_instructions_fail_the_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = Bundle(tmp_path, "m")
    vectors = [GoldenVector(name, [], [], []) for name in ("one", "two")]
    outcome = Outcome(nanoseconds=[10_000, 30_000])
    target = load_target("cortex_m4")
    emulated, host = MachineRunner(target, "qemu-system-arm"), LocalRunner("host")
    limits = [{"owner": "model m", "kind": "instructions", "limit": 20_000}]
    write_json(tmp_path / "manifest.json", {"name": "m", "run_budgets": limits})
    assert over_budget(bundle, vectors, outcome, emulated, target) == [
        "budget exceeded: vector two: 30,000 instructions, model m allows 20,000"
    ]
    assert "model m, instructions  two     20,000  30,000    10,000" in re.sub(
        "[│┃]", "", capsys.readouterr().out
    )
    assert over_budget(bundle, vectors, outcome, host, target) == []
    assert "budget of instructions is not checked" in capsys.readouterr().out
    (tmp_path / "manifest.json").unlink()
    assert over_budget(bundle, vectors, outcome, emulated, target) == []


def test_a_limit_of_time(tmp_path: Path) -> None:
    """From instructions by the target's clock, measured on a machine, and refused where neither can be."""
    bundle = Bundle(tmp_path, "m")
    vectors = [GoldenVector(name, [], [], []) for name in ("one", "two")]
    outcome = Outcome(nanoseconds=[1_000_000, 3_000_000])
    target = load_target("cortex_m4")
    limits = {"model m": {"latency_ms": 20.0}}
    with pytest.raises(
        KilnError, match=r"budget 'latency_ms' of model m: .* 'cortex_m4', .* no clock .*\bhz:"
    ):
        run_budgets(limits, target)
    timed = target.model_copy(update={"clock": Clock(hz=100_000_000, cycles_per_instruction=1.5)})
    write_json(
        tmp_path / "manifest.json",
        {"name": "m", "run_budgets": [one.model_dump() for one in run_budgets(limits, timed)]},
    )
    emulated = MachineRunner(timed, "qemu-system-arm")
    assert over_budget(bundle, vectors, outcome, emulated, timed) == [
        "budget exceeded: vector two: 45.000 ms, model m allows 20.000"
    ]
    short = {"model m": {"latency_ms": 1e-7}}
    write_json(
        tmp_path / "brief/manifest.json",
        {"name": "m", "run_budgets": [one.model_dump() for one in run_budgets(short, timed)]},
    )
    brief = Outcome(nanoseconds=[0, 30])
    assert over_budget(Bundle(tmp_path / "brief", "m"), vectors, brief, emulated, timed) == [
        "budget exceeded: vector two: 0.00045 ms, model m allows 1e-07"
    ]
    host = load_target("x86_64")
    assert over_budget(bundle, vectors, outcome, LocalRunner("host"), host) == []
    outcome.nanoseconds[0] = 20_000_001
    assert len(over_budget(bundle, vectors, outcome, LocalRunner("host"), host)) == 1
    user_mode = LocalRunner("qemu-aarch64 -cpu max", ["qemu-aarch64"])
    with pytest.raises(KilnError, match=r"of model m: qemu-aarch64 -cpu max measures no time .* device=NAME"):
        over_budget(bundle, vectors, outcome, user_mode, load_target("aarch64"))


def test_a_clock() -> None:
    values = load_target("cortex_m4").model_dump()
    assert Target.model_validate({**values, "clock": {"hz": "48.5MHz"}}).clock == Clock(hz=48_500_000)
    for hz in ("fast", 0, "-1MHz"):
        with pytest.raises(ValueError, match="hz"):
            Target.model_validate({**values, "clock": {"hz": hz}})
    with pytest.raises(ValueError, match="measured on a hosted target"):
        Target.model_validate({**load_target("x86_64").model_dump(), "clock": {"hz": 1}})
