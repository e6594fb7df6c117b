"""Regions of a microcontroller's memory: valid ones, and mistakes that end in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.config import load_target
from kiln.config.memory import region_of, regions_of
from kiln.errors import KilnError
from kiln.paths import data_dir

FLASH = "  - {name: flash, origin: 0x0, bytes: 4MiB, holds: [code, parameters]}\n"
RAM = "  - {name: ram, origin: 0x20000000, bytes: 4MiB, holds: [data]}\n"


def test_regions_of_contents() -> None:
    regions = load_target("cortex-m4").memory
    assert regions is not None
    found = {kind: region_of(regions, kind).name for kind in ("code", "parameters", "data", "heap")}  # type: ignore[arg-type]
    assert found == {"code": "flash", "parameters": "flash", "data": "ram", "heap": "psram"}
    kept = [regions[0].model_copy(update={"holds": ["code"]}), regions[1]]
    assert (region_of(kept, "parameters").name, region_of(kept, "heap").name) == ("flash", "ram")


def test_regions_that_share_a_content_come_in_order_of_cost(tmp_path: Path) -> None:
    text = (data_dir("targets") / "cortex_m4.yaml").read_text(encoding="utf-8")
    path = tmp_path / "board.yaml"
    path.write_text(
        text.replace("[data]}", "[data, arena], cost: 2}").replace("[heap]}", "[arena], cost: 1.5}")
    )
    regions = load_target(path).memory
    assert [region.name for region in regions_of(regions, "arena")] == ["psram", "ram"]
    assert regions_of(None, "arena") == []


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("0x20000000", "0x3FFFFF", "region 'ram' (0x3fffff to 0x7fffff) overlaps 'flash' (0x0 to 0x400000)"),
        ("name: ram", "name: flash", "two regions are called 'flash'"),
        ("name: ram", "name: RAM-1", "key 'memory.1.name'"),
        ("holds: [data]", "holds: [data, code]", "2 entries of 'holds' are 'code', allowed: one"),
        (RAM, "", "no region holds 'data'"),
        (FLASH, "", "no region holds 'code'"),
        ("origin: 0x21000000", "origin: 0xFFFFFF00", "ends at 0x100ffff00, allowed: at most 0x100000000"),
        ("origin: 0x21000000", "origin: -1", "must be at least 0, got -1"),
        ("bytes: 16MiB", "bytes: 0", "must be more than 0, got 0"),
        (
            "holds: [heap]",
            "holds: [stack]",
            "'stack' is not allowed, allowed: code, parameters, data, heap, arena",
        ),
        ("holds: [data]}", "holds: [data], cost: 2}", "'ram' holds neither parameters nor arena"),
        ("holds: [heap]}", "holds: [arena, arena]}", "'psram' holds 'arena' twice"),
        ("holds: [heap]}", "holds: [arena], reserve: 16MiB}", "16777216 of the 16777216 bytes of 'psram'"),
        ("holds: [heap]}", "holds: [arena], cost: 0}", "must be more than 0.0, got 0"),
        ("holds: [heap]}", "holds: [arena], section: 'a b'}", "key 'memory.2.section'"),
        ("threads: none", "threads: pthread", "'pthread' on a freestanding target: none expected"),
        ("deployment: freestanding", "deployment: hosted", "'hosted' for arch arm_m: freestanding expected"),
        ("thumbv7em-none-eabihf", "armv7a-none-eabihf", "not a triple of arch arm_m"),
    ],
)
def test_mistakes(before: str, after: str, told: str, tmp_path: Path) -> None:
    text = (data_dir("targets") / "cortex_m4.yaml").read_text(encoding="utf-8")
    assert before in text
    path = tmp_path / "board.yaml"
    path.write_text(text.replace(before, after), encoding="utf-8")
    with pytest.raises(KilnError) as caught:
        load_target(path)
    assert told in str(caught.value) and "\n" not in str(caught.value)
