"""Sizes that a runtime must refuse: which ones the test program tries, and how its results are judged."""

from __future__ import annotations

from typing import Any

import pytest
from kiln.config.boxes import Box
from kiln.config.dims import Segment
from kiln.config.interface import Dimension
from kiln.config.sizes import ranges_text
from kiln.device.bundle import GoldenVector
from kiln.device.check.bucket_check import check_buckets, in_order
from kiln.device.check.execute import Outcome, Refused
from kiln.device.check.outside import judge, outside
from kiln.golden.schema import GoldenEntry, GoldenFile, SymbolicInput
from records import golden_file


def part(strategy: Any, least: int, most: int, multiple: int = 1) -> Segment:
    return Segment(strategy=strategy, min=least, max=most, multiple=multiple, size=most)


ALL = Box(name="all", dims={"batch": part("exact", 1, 1), "width": part("range", 8, 32, 8)})


def golden(*buckets: Box, batches: int = 1) -> GoldenFile:
    shapes: dict[str, list[Any]] = {"x": ["batch", "width"], "halves": [["//", "width", 2], "width"]}
    return golden_file(
        [GoldenEntry(name="v", dims={"batch": 1, "width": 8}, inputs=[], outputs=[])],
        dims=[
            Dimension(name="batch", min=1, max=batches),
            Dimension(name="width", min=8, max=32, multiple=8),
        ],
        inputs=[SymbolicInput(name=n, dtype="float32", shape=shape) for n, shape in shapes.items()],
        buckets=list(buckets or (ALL,)),
    )


def test_one_step_outside_of_each_dimension() -> None:
    found = outside(golden())
    assert [(case.name, case.shapes, case.status) for case in found] == [
        ("batch 0 (batch=0 width=8)", [[0, 8], [4, 8]], "KILN_DIM_RANGE"),
        ("batch 2 (batch=2 width=8)", [[2, 8], [4, 8]], "KILN_DIM_RANGE"),
        ("width 7 (batch=1 width=7)", [[1, 7], [3, 7]], "KILN_DIM_RANGE"),
        ("width 33 (batch=1 width=33)", [[1, 33], [16, 33]], "KILN_DIM_RANGE"),
        ("width 9 (batch=1 width=9)", [[1, 9], [4, 9]], "KILN_DIM_MULTIPLE"),
        ("width 8 and 16 at once", [[1, 8], [4, 16]], "KILN_DIM_MISMATCH"),
    ]
    assert found[0].words == ("x axis 0", "0", "1") and found[3].words == ("x axis 1", "33", "8..32")
    assert found[5].words == ("halves axis 1", "16", "8")


def test_sizes_without_a_bucket() -> None:
    some = Box(name="some", dims={"batch": part("exact", 1, 1), "width": part("pad", 8, 16, 8)})
    gaps = [case for case in outside(golden(some)) if case.status == "KILN_NO_BUCKET"]
    assert [case.shapes[0] for case in gaps] == [[1, 24], [1, 32]]
    assert gaps[0].words == ("width: 24", "served: 16")


def test_the_dimension_that_no_bucket_serves() -> None:
    """A dimension that no bucket serves by itself, or not at the sizes of the other dimensions."""
    both = golden(
        Box(name="a", dims={"batch": part("exact", 1, 1), "width": part("pad", 8, 16, 8)}),
        Box(name="b", dims={"batch": part("range", 4, 6), "width": part("exact", 32, 32, 8)}),
        batches=9,
    )
    words = {tuple(case.shapes[0]): case.words for case in outside(both) if case.status == "KILN_NO_BUCKET"}
    assert words[1, 24] == ("width: 24", "served: 16, 32")
    assert words[1, 32] == ("batch: 1", "served: 4")
    assert words[2, 8] == ("batch: 2", "served: 1, 4")


def test_a_model_without_buckets_has_nothing_to_refuse() -> None:
    assert outside(golden_file([])) == []


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Refused("KILN_DIM_RANGE", "", "x axis 1: 33, allowed multiples of 8 in 8..32"), None),
        (Refused("KILN_OK", "it ran", ""), "gave KILN_OK, not KILN_DIM_RANGE"),
        (
            Refused("KILN_DIM_RANGE", "wrote to the arena", "x axis 1: 33, allowed 8..32"),
            "wrote to the arena",
        ),
        (Refused("KILN_DIM_RANGE", "", "x axis 1: 33"), "'x axis 1: 33' does not contain 8..32"),
        (Refused("KILN_DIM_RANGE", "", "33, allowed 8..32"), "does not contain x axis 1"),
        (None, "it was not tried"),
    ],
)
def test_an_answer(answer: Refused | None, told: str | None) -> None:
    [case] = [case for case in outside(golden()) if case.name.startswith("width 33")]
    [check] = judge([case], [answer] if answer else [])
    assert check.name == "refuses width 33 (batch=1 width=33)"
    assert check.passed is (told is None) and (told or "KILN_DIM_RANGE") in check.text


@pytest.mark.parametrize(
    ("planned", "ran", "passed"),
    [("a", "a", True), ("a", "a_ones", True), ("b", "b", False), ("a", "b", False), ("a", "ab", False)],
)
def test_the_bucket_that_ran(planned: str, ran: str, passed: bool) -> None:
    outcome = Outcome(buckets=[planned, "static"], ran=[ran, "static"])
    vectors = [GoldenVector("v", [], [], [], "a", {"n": 1}), GoldenVector("w", [], [], [])]
    [check] = check_buckets(vectors, outcome)
    assert check.passed is passed and check.name == "bucket of vector v"


def test_vectors_of_one_bucket_are_shown_together() -> None:
    buckets = golden_file([], buckets=[Box(name=name, dims={}) for name in "ab"])
    vectors = [GoldenVector(str(i), [], [], [], name) for i, name in enumerate("baab")]
    assert in_order(buckets, vectors) == [1, 2, 0, 3]
    assert in_order(golden_file([]), [GoldenVector("v", [], [], [])]) == [0]


def test_sizes_as_text() -> None:
    parts = {"batch": part("exact", 1, 1), "width": part("pad", 8, 16, 8)}
    sizes = {name: one.model_dump() for name, one in parts.items()}
    assert ranges_text(sizes) == "batch 1, width 8..16 by 8 padded to 16"
