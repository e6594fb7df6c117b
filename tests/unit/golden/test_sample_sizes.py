"""Where buckets are tried: corners that they really serve, and sizes that must be refused."""

from __future__ import annotations

from typing import Any

import pytest
from kiln.config.boxes import Box
from kiln.config.dims import Segment
from kiln.config.interface import Dimension
from kiln.golden.sample_sizes import Refusal, name_of, refusals, sample_sizes, serving_bucket


def part(least: int, most: int, multiple: int = 1, strategy: Any = "range") -> Segment:
    size = most if strategy in ("exact", "pad") else None
    return Segment(strategy=strategy, min=least, max=most, multiple=multiple, size=size)


def bucket(name: str = "b", **dims: Segment) -> Box:
    return Box(name=name, dims=dims)


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        (part(16, 16), [16]),
        (part(17, 64), [17, 41, 64]),
        (part(1, 2), [1, 2]),
        (part(32, 320, 32), [32, 160, 320]),
        (part(32, 352, 32), [32, 224, 352]),
    ],
)
def test_least_inner_and_greatest(box: Segment, expected: list[int]) -> None:
    found = [at["seq"] for at in sample_sizes([bucket(seq=box)], 0)]
    assert found == expected
    assert all(size % box.multiple == 0 for size in found)


def test_without_dimensions_there_is_one_point() -> None:
    assert sample_sizes([bucket()], 0) == [{}]


def test_corners_that_another_bucket_takes_are_left_to_it() -> None:
    buckets = [
        bucket(seq=part(1, 1)),
        bucket(seq=part(255, 259)),
        bucket(seq=part(500, 512)),
        bucket("dynamic", seq=part(1, 512)),
    ]
    assert [at["seq"] for at in sample_sizes(buckets, 3)] == [2, 254, 499]
    assert all(serving_bucket(buckets, at) == 3 for at in sample_sizes(buckets, 3))


def test_a_bucket_that_others_cover_has_no_point() -> None:
    buckets = [bucket(seq=part(1, 10)), bucket(seq=part(11, 20)), bucket(seq=part(1, 20))]
    assert sample_sizes(buckets, 2) == []
    assert serving_bucket(buckets, {"seq": 21}) is None


def test_several_dimensions_have_three_points() -> None:
    buckets = [
        bucket(batch=part(1, 1), seq=part(17, 64)),
        bucket(batch=part(8, 8), seq=part(512, 512)),
        bucket(batch=part(1, 8), seq=part(1, 512)),
    ]
    assert sample_sizes(buckets, 0) == [{"batch": 1, "seq": size} for size in (17, 41, 64)]
    least, inner, greatest = sample_sizes(buckets, 2)
    assert least == {"batch": 1, "seq": 1} and inner == {"batch": 5, "seq": 257}
    assert greatest == {"batch": 8, "seq": 511}


def test_many_buckets_over_three_dimensions_are_searched() -> None:
    buckets = [bucket(a=part(n, n), b=part(n, n), c=part(1, 64)) for n in range(1, 64)]
    buckets.append(bucket(a=part(1, 64), b=part(1, 64), c=part(1, 64)))
    least, inner, greatest = sample_sizes(buckets, 63)
    assert sum(least.values()) == 4 and sum(inner.values()) == 98
    assert greatest == {"a": 64, "b": 64, "c": 64}
    assert all(serving_bucket(buckets, at) == 63 for at in (least, inner, greatest))


def test_sizes_that_must_be_refused() -> None:
    dims = [
        Dimension(name="batch", min=1, max=8),
        Dimension(name="w", min=32, max=320, multiple=32),
    ]
    buckets = [
        bucket(batch=part(1, 4), w=part(32, 96, 32)),
        bucket(batch=part(5, 8), w=part(160, 320, 32)),
    ]
    found = refusals(dims, buckets, {"batch": 1, "w": 64})
    assert found[:5] == [
        Refusal("batch", {"batch": 0, "w": 64}, "KILN_DIM_RANGE"),
        Refusal("batch", {"batch": 9, "w": 64}, "KILN_DIM_RANGE"),
        Refusal("w", {"batch": 1, "w": 31}, "KILN_DIM_RANGE"),
        Refusal("w", {"batch": 1, "w": 321}, "KILN_DIM_RANGE"),
        Refusal("w", {"batch": 1, "w": 33}, "KILN_DIM_MULTIPLE"),
    ]
    gaps = found[5:]
    assert 0 < len(gaps) <= 4
    for gap in gaps:
        assert gap.status == "KILN_NO_BUCKET" and serving_bucket(buckets, gap.sizes) is None
        assert 1 <= gap.sizes["batch"] <= 8 and gap.sizes["w"] % 32 == 0 and 32 <= gap.sizes["w"] <= 320


def test_names_of_sizes_fit_into_an_archive() -> None:
    """Exporters name dimensions `past_decoder_sequence_length`; four of them exceed 100 characters."""
    assert name_of({}) == "" and name_of({"batch": 1, "seq": 17}) == "batch1_seq17"
    long = [f"past_decoder_sequence_length_{number}" for number in range(16)]
    assert name_of(dict.fromkeys(long[:4], 12)) == "sizes_12_12_12_12"
    names = [name_of(dict.fromkeys(long, size)) for size in (10_000, 10_001)]
    assert len(set(names)) == 2 and all(len(name) <= 44 for name in names)
