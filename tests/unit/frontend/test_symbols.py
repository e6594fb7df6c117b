"""Dynamic dimensions: their variables, and the size expressions that others read."""

from __future__ import annotations

import json
import operator
from typing import Any

import pytest
from kiln.config.dims import Segment
from kiln.config.sizes import bounds, evaluate, parts
from kiln.frontend import size_trials
from kiln.frontend.size_of import to_size
from kiln.frontend.symbols import Symbols
from kiln.specialize.padding.sizes import evaluated
from tvm import tirx


def segment(least: int, greatest: int, multiple: int = 1, size: int | None = None) -> Segment:
    return Segment(strategy="range", min=least, max=greatest, multiple=multiple, size=size)


@pytest.fixture
def symbols() -> Symbols:
    return Symbols({"seq": segment(2, 64), "width": segment(64, 640, 32), "batch": segment(1, 4, 1, 4)})


def test_variables_and_their_ranges(symbols: Symbols) -> None:
    assert json.loads(symbols.describe()) == {
        "seq": {"dim": "seq", "divide": 1, "min": 2, "max": 64},
        "width_div32": {"dim": "width", "divide": 32, "min": 2, "max": 20},
    }
    assert [variable.name for variable in symbols.divided()] == ["width_div32"]


def test_arithmetic_knows_the_ranges_and_the_multiple(symbols: Symbols) -> None:
    seq, width = symbols.extent("seq"), symbols.extent("width")
    assert symbols.simplify(tirx.max(seq, tirx.IntImm("int64", 2)) - seq) == 0
    assert symbols.simplify((width - 1) % 2) == 1
    assert symbols.equal((width + 1) // 2, width // 2)
    assert not symbols.equal((seq + 1) // 2, seq // 2)
    assert symbols.holds(seq >= 2) and not symbols.holds(seq >= 3) and symbols.holds(seq <= 64)
    assert symbols.product([2, 3]) == 6


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda seq, width: 7, 7),
        (lambda seq, width: seq, "seq"),
        (lambda seq, width: width, "width"),
        (lambda seq, width: width // 8, ["//", "width", 8]),
        (lambda seq, width: width * 2, ["*", "width", 2]),
        (lambda seq, width: width // 32 * 3, ["*", ["//", "width", 32], 3]),
        (lambda seq, width: seq - 1, ["-", "seq", 1]),
        (lambda seq, width: 3 * seq, ["*", "seq", 3]),
        (lambda seq, width: tirx.min(seq, tirx.IntImm("int64", 9)), ["min", "seq", 9]),
        (lambda seq, width: (seq + 1) // 2, ["//", ["+", "seq", 1], 2]),
    ],
)
def test_size_expressions(symbols: Symbols, make: Any, expected: Any) -> None:
    size = symbols.size(make(symbols.extent("seq"), symbols.extent("width")))
    assert size == expected
    assert json.loads(json.dumps(size)) == size


def test_size_expressions_give_the_extent(symbols: Symbols) -> None:
    seq, width = symbols.extent("seq"), symbols.extent("width")
    size = symbols.size((seq * width // 32 + 5 * seq) % 7)
    for length, pixels in ((2, 64), (63, 640)):
        expected = (length * pixels // 32 + 5 * length) % 7
        assert evaluate(size, {"seq": length, "width": pixels}) == expected


def test_expressions_that_are_not_sizes(symbols: Symbols) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        to_size(tirx.Cast("int64", tirx.FloatImm("float32", 1.0)), {}, {})
    with pytest.raises(ValueError, match="is not a size"):
        to_size(tirx.Var("other", "int64"), {}, {})


@pytest.mark.parametrize("multiple", [1, 2, 7])
def test_a_half_taken_twice_is_not_the_whole(multiple: int) -> None:
    symbols = Symbols({"n": segment(7, 70, multiple)})
    found = symbols.size(symbols.extent("n") // 2 * 2)
    for size in range(7 * multiple, 70, multiple):
        assert evaluate(found, {"n": size}) == size // 2 * 2


def test_a_part_that_is_whole_is_put_together(symbols: Symbols) -> None:
    assert symbols.size(symbols.extent("width") // 32 * 32) == "width"
    assert symbols.size(symbols.extent("width") // 32 * 8) == ["//", "width", 4]


@pytest.mark.parametrize(
    ("rounded", "greatest"),
    [
        (lambda n: n + tirx.floormod(0 - n, 5), 65),  # TVM simplifies it to n - n % -5
        (lambda n: tirx.floordiv(0 - n, 5) * -5, 65),
        (lambda n: tirx.floordiv(n, -5) * -5, 65),
        (lambda n: tirx.floormod(n, -5) + 5, 5),
        (lambda n: tirx.floormod(0 - n, 5) + 1, 5),
        (lambda n: tirx.max(66 - n, n - 1), 64),
    ],
)
def test_sizes_of_negative_divisions(symbols: Symbols, rounded: Any, greatest: int) -> None:
    """Size expressions of negative divisions have the right values, and divisors above 0, as plans need."""
    extent = rounded(symbols.extent("seq"))
    size = symbols.size(extent)
    assert all(part[2] > 0 for part in parts(size) if isinstance(part, list) and part[0] in ("//", "%"))
    values = [evaluate(size, {"seq": seq}) for seq in range(2, 65)]
    variable = symbols.extent("seq")
    assert values == [evaluated(extent, {variable: seq}) for seq in range(2, 65)]
    assert symbols.greatest([extent]) == max(values) == greatest
    low, high = bounds(size, {"seq": (2, 64)})
    assert low <= min(values) and max(values) <= high


def test_a_shape_that_is_greatest_between_its_ends(symbols: Symbols) -> None:
    seq = symbols.extent("seq")
    assert symbols.greatest([seq, 66 - seq]) == 33 * 33


def test_all_sizes_are_tried_only_where_the_bound_exceeds_the_limit(
    symbols: Symbols, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph has hundreds of such shapes, and each try of thousands of sizes takes a second."""
    seq = symbols.extent("seq")
    assert symbols.greatest([seq, 66 - seq], above=33 * 33 - 1) == 33 * 33
    assert symbols.greatest([seq, 66 - seq], above=33 * 33) is None
    monkeypatch.delattr(size_trials, "combinations")
    assert symbols.greatest([seq, 66 - seq], above=64 * 64) is None


def test_multiples_with_which_sizes_agree(symbols: Symbols) -> None:
    """A hint: strides that round up agree for multiples of their product, whatever the other sizes are."""
    seq, width = symbols.extent("seq"), symbols.extent("width")
    up, skipped = ((seq + 15) // 16) * 2, (seq + 7) // 8
    assert symbols.multiples(up * width, skipped * width, operator.eq) == {"seq": 16}
    assert symbols.multiples(width * seq, 64 * seq, lambda whole, part: whole % part == 0) == {"width": 64}
    assert symbols.multiples(tirx.min(seq, 7), seq, operator.eq) == {}
