"""One interface for all buckets: shapes that hold in each of them."""

from __future__ import annotations

from typing import Any

import pytest
from kiln.config.boxes import Box, BoxList
from kiln.config.dims import Segment
from kiln.config.interface import CountedDimension, Dimension, Interface, PortRecord
from kiln.config.slice_records import ImportConfig
from kiln.errors import KilnError
from kiln.frontend.merge import merge

SEQ = Dimension(name="seq", min=1, max=64)
BATCH = Dimension(name="batch", min=1, max=4)


def _box(**dims: tuple[int, int, int | None]) -> Box:
    parts = {
        name: Segment(strategy="range", min=low, max=high, multiple=1, size=size)
        for name, (low, high, size) in dims.items()
    }
    return Box(name="b", dims=parts)


def _interface(output: list[Any]) -> Interface:
    x = PortRecord(name="x", c_name="x", dtype="float32", shape=["batch", "seq"])
    y = PortRecord(name="y", c_name="y", dtype="float32", shape=output)
    return Interface(model="net", inputs=[x], outputs=[y])


def _merged(rows: list[tuple[Box, list[Any]]], config: dict[str, Any] | None = None) -> list[Any]:
    buckets = BoxList(dims=[BATCH, SEQ], buckets=[box for box, _ in rows])
    merged = merge(
        [_interface(output) for _, output in rows],
        buckets,
        ImportConfig.model_validate({"name": "m", **(config or {})}),
    )
    assert merged.inputs[0].shape == ["batch", "seq"]
    assert merged.dims == [BATCH, SEQ]
    return merged.outputs[0].shape


def test_a_bucket_with_dynamic_sizes_knows_the_expression() -> None:
    rows = [
        (_box(batch=(1, 1, 1), seq=(16, 16, 16)), [1, 5, 384]),
        (_box(batch=(1, 4, None), seq=(1, 64, None)), ["batch", ["//", ["+", "seq", 4], 4], 384]),
    ]
    assert _merged(rows) == ["batch", ["//", ["+", "seq", 4], 4], 384]


def test_fixed_sizes_are_fitted() -> None:
    rows = [
        (_box(batch=(1, 1, 1), seq=(8, 8, 8)), [1, 2, 24, 9, 8]),
        (_box(batch=(1, 1, 1), seq=(12, 12, 12)), [1, 3, 36, 13, 12]),
        (_box(batch=(2, 2, 2), seq=(9, 16, 16)), [2, 4, 48, 17, 32]),
    ]
    assert _merged(rows) == [
        "batch", ["//", "seq", 4], ["*", "seq", 3], ["+", "seq", 1], ["*", ["*", "batch", "seq"], 1],
    ]  # fmt: skip


def test_what_no_expression_gives_is_refused_unless_the_model_says() -> None:
    rows = [
        (_box(batch=(1, 1, 1), seq=(8, 8, 8)), [3]),
        (_box(batch=(2, 2, 2), seq=(16, 16, 16)), [4]),
        (_box(batch=(4, 4, 4), seq=(64, 64, 64)), [7]),
    ]
    with pytest.raises(KilnError, match=r"net: output 'y' axis 0 is 3, 4, 7 in its buckets"):
        _merged(rows)


def test_ranks_must_agree() -> None:
    rows = [
        (_box(batch=(1, 1, 1), seq=(8, 8, 8)), [8]),
        (_box(batch=(2, 2, 2), seq=(16, 16, 16)), [2, 16]),
    ]
    with pytest.raises(KilnError, match="output 'y' has 1 and 2 axes"):
        _merged(rows)


def test_a_dimension_of_one_size_is_a_number() -> None:
    fixed = Dimension(name="batch", min=2, max=2)
    boxes = [_box(batch=(2, 2, 2), seq=(1, 64, None))]
    merged = merge(
        [_interface(["batch", "seq"])], BoxList(dims=[fixed, SEQ], buckets=boxes), ImportConfig(name="m")
    )
    assert merged.inputs[0].shape == [2, "seq"]
    assert merged.outputs[0].shape == [2, "seq"]
    assert merged.dims == [SEQ]


@pytest.mark.parametrize(("strategy", "expected"), [("pad", ["seq", 32]), ("exact", [16, 32])])
def test_an_axis_of_the_only_padded_size_is_the_dimension(strategy: Any, expected: list[Any]) -> None:
    """One size cannot tell a constant from the dimension; of an exact size both say the same."""
    low = 1 if strategy == "pad" else 16
    seq = Segment(strategy=strategy, min=low, max=16, multiple=1, size=16)
    batch = Segment(strategy="range", min=1, max=4, multiple=1)
    row = (Box(name="b", dims={"batch": batch, "seq": seq}), [16, 32])
    assert _merged([row]) == expected
    assert _merged([row], {"outputs": {"y": {"shape": [16, 32]}}}) == [16, 32]


def test_many_counted_sizes() -> None:
    """A shape is checked at the ends of the sizes that it reads; all sizes would have 2 ** 40 points."""
    counted = [CountedDimension(name=f"n{at}", tensor=f"t{at}", bound="seq") for at in range(40)]
    given = _interface([["+", "n0", "n39"], "n7"]).model_copy(update={"counted": counted})
    buckets = BoxList(dims=[BATCH, SEQ], buckets=[_box(batch=(1, 4, None), seq=(1, 64, None))])
    merged = merge([given], buckets, ImportConfig(name="m"))
    assert merged.outputs[0].shape == [["+", "n0", "n39"], "n7"]
    assert [one.bound for one in merged.counted] == ["seq"] * 40
