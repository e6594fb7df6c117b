"""Regions of memory: tensors of the arena and parameters go where accesses to them cost least."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kiln.config import load_target
from kiln.config.memory import Region
from kiln.errors import KilnError
from kiln.lower.schema import Step, TensorRecord
from kiln.plan.lifetimes import Lifetime
from kiln.plan.regions import place_in_regions, placed_regions, uses
from kiln.plan.schema import PlannedBucket, StoredTensor
from kiln.plan.split import ParameterImage, split_parameters

FAST = Region(name="fast", origin=0, bytes=256, holds=["arena"], cost=1)
SLOW = Region(name="slow", origin=4096, bytes=1024, holds=["arena"], cost=4)


def item(name: str, size: int, first: int, last: int) -> Lifetime:
    return Lifetime(name, size, first, last, "activation")


def test_operands_of_a_multiply_add_are_read_each_time() -> None:
    def entry(name: str, size: int, alias: str | None = None) -> TensorRecord:
        return TensorRecord(
            name=name, bytes=size, kind="activation", alias=alias, dtype="uint8", shape=[size]
        )

    tensors = {"x": entry("x", 64), "view": entry("view", 64, "x"), "y": entry("y", 32)}
    steps = [
        Step(kernel="make", label="", args=["x"], writes=["x"]),
        Step(kernel="matmul", label="", args=["view", "y"], writes=["y"], macs=1000),
        Step(kernel="move", label="", args=["y"], writes=[], macs=8),
    ]
    assert uses(tensors, steps) == {"x": 64 + 1000, "y": 32 + 32}


def test_a_region_has_its_own_section_or_one_named_after_it() -> None:
    own = SLOW.model_copy(update={"section": ".psram"})
    buckets = [
        PlannedBucket.model_validate(
            {"name": name, "arena_bytes": first, "more_arenas": [second], "steps": []}
        )
        for name, first, second in (("a", 64, 128), ("b", 192, 0))
    ]
    regions = placed_regions(buckets, [FAST, own])
    assert [(region.name, region.bytes, region.section) for region in regions] == [
        ("fast", 192, ".bss.fast"),
        ("slow", 128, ".psram"),
    ]


def test_what_is_used_most_is_in_the_cheapest_region() -> None:
    alive = [
        item("large", 512, 0, 3),
        item("hot", 128, 0, 3),
        item("cold", 128, 0, 3),
        item("late", 128, 4, 4),
    ]
    places, sizes = place_in_regions(
        alive, {"large": 512, "hot": 9000, "cold": 130, "late": 128}, [FAST, SLOW]
    )
    assert {name: region for name, (region, _) in places.items()} == {
        "large": 1,
        "hot": 0,
        "cold": 0,
        "late": 0,
    }
    assert sizes == [256, 512] and places["hot"][1] != places["cold"][1]


def test_another_order_where_the_first_leaves_something_over() -> None:
    """Dense small tensors fill the large region's rest, so that a large one has no place: it goes first."""
    alive = [item("a", 256, 0, 0), item("b", 256, 0, 0), item("wide", 960, 0, 0)]
    used = {"a": 9000, "b": 8000, "wide": 1}
    with pytest.raises(KilnError, match=r"nearest plan needs fast 256 of 256, slow 1216 of 1024 bytes"):
        place_in_regions(alive, used, [FAST, SLOW])
    more = SLOW.model_copy(update={"name": "more", "bytes": 256, "cost": 9})
    places, sizes = place_in_regions(alive, used, [FAST, SLOW, more])
    assert sizes == [256, 960, 256] and places["wide"] == (1, 0)


def test_a_reserve_is_left_free() -> None:
    fast = FAST.model_copy(update={"reserve": 192})
    places, sizes = place_in_regions([item("a", 128, 0, 0)], {"a": 1}, [fast, SLOW])
    assert places == {"a": (1, 0)} and sizes == [0, 128]


def bucket(reads: list[tuple[int, int]]) -> PlannedBucket:
    """A step for each (offset, multiply-adds) that reads 64 bytes of parameters."""
    steps = [
        {
            "kernel": "k", "extent": 1, "label": "", "macs": macs,
            "args": [{"at": "params", "offset": offset, "bytes": 64}],
        }
        for offset, macs in reads
    ]  # fmt: skip
    return PlannedBucket.model_validate({"name": "static", "arena_bytes": 0, "steps": steps})


def test_parameters_in_two_regions() -> None:
    target = load_target("cortex_m4")
    assert target.memory is not None
    flash = Region(
        name="flash", origin=0, bytes=4096, holds=["code", "parameters"], cost=1, reserve=4096 - 192
    )
    qspi = Region(name="qspi", origin=8192, bytes=4096, holds=["parameters"], cost=3, section=".qspi")
    two = target.model_copy(update={"memory": [flash, qspi, *target.memory[1:]]})
    stored = [
        StoredTensor(name=name, offset=64 * at, bytes=64, dtype="int8", shape=[64])
        for at, name in enumerate("ab")
    ]
    image = ParameterImage("m", b"a" * 64 + b"b" * 64, stored, "embedded", "")
    buckets = [bucket([(0, 64), (64, 5000)])]
    made, tensors, parts = split_parameters(image, buckets, [], two)
    assert made == b"b" * 64 + b"a" * 64
    assert [(tensor.name, tensor.offset) for tensor in tensors] == [("b", 0), ("a", 64)]
    assert [(part.name, part.bytes, part.section) for part in parts] == [
        ("flash", 64, ".rodata.m_params_flash"), ("qspi", 64, ".qspi"),
    ]  # fmt: skip
    assert [step.args[0].offset for step in buckets[0].steps] == [64, 0]  # type: ignore[union-attr]
    with pytest.raises(KilnError, match=r"'cortex_m4' has 2 regions .* a file cannot be split"):
        split_parameters(replace(image, storage="file"), buckets, [], two)
    small = two.model_copy(update={"memory": [flash, qspi.model_copy(update={"reserve": 4000})]})
    with pytest.raises(
        KilnError, match=r"64 of 128 bytes of parameters do not fit .*flash 192, qspi 96 bytes"
    ):
        split_parameters(image, [bucket([(0, 1)])], [], small)
