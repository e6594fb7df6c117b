"""Streams of many sizes, and the plans that the cost of a choice is measured with."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.emit.source import emit
from kiln.errors import KilnError
from kiln.plan.schema import parse_plan

from benchmarks.dispatch import COUNTS, plan
from benchmarks.stream import draw, read_histogram


def test_a_stream_is_drawn_as_the_histogram_says() -> None:
    drawn = draw([1, 0, 3], 4000, seed=1)
    assert drawn == draw([1, 0, 3], 4000, seed=1)
    assert 1 not in drawn
    assert 2800 < drawn.count(2) < 3200


def test_histograms(tmp_path: Path) -> None:
    path = tmp_path / "h.csv"
    path.write_text("seq,count\n4,2\n9,1\n")
    assert read_histogram(path, {"batch": 1, "seq": 1}) == (
        [{"batch": 1, "seq": 4}, {"batch": 1, "seq": 9}],
        [2, 1],
    )
    path.write_text("seq,count\n4,two\n")
    with pytest.raises(KilnError, match=r"not a table of whole numbers, columns seq, count"):
        read_histogram(path, {"seq": 1})
    with pytest.raises(KilnError, match="cannot read"):
        read_histogram(tmp_path / "none.csv", {"seq": 1})


@pytest.mark.parametrize("count", COUNTS)
def test_plans_of_many_buckets_can_be_emitted(count: int) -> None:
    source = emit(parse_plan(plan(count)), b"")["many_plan.c"]
    assert isinstance(source, str)
    assert source.count("static int32_t step_of_") == count
    assert ("select_bucket" in source) == (count > 1)
