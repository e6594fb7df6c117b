"""Statements about sizes that algebra does not prove: they are tried with all sizes of the dimensions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from kiln.config.dims import Segment
from kiln.config.sizes import SizeExpr, bounds, ceil_div, evaluate, grows, names

MOST_TRIED = 20_000  # combinations of sizes that a statement is tried with
_MOST_OF_ONE = 25  # sizes of one dimension that a multiple is tried with
_MULTIPLES = (2, 4, 8, 16, 32, 64)  # the products of the strides of common networks


def combinations(segments: Mapping[str, Segment], used: Collection[str]) -> Iterator[dict[str, int]] | None:
    """All sizes of the dimensions `used`; None if there are more than MOST_TRIED.

    `segments`: the sizes of each dimension. Raises KeyError for a dimension that is not among them.
    """
    keys = sorted(used)
    ranges = [
        range(segment.min, segment.max + 1, segment.multiple) for segment in map(segments.__getitem__, keys)
    ]
    if math.prod(map(len, ranges)) > MOST_TRIED:
        return None
    return (dict(zip(keys, sizes, strict=True)) for sizes in itertools.product(*ranges))


def some_size(segment: Segment, number: int) -> int:
    """The size of the given number, 0..4, among some sizes of a range."""
    least, greatest = segment.min // segment.multiple, segment.max // segment.multiple
    candidate = (least, least + 1, (least + greatest) // 2, greatest - 1, greatest)[number]
    return min(max(candidate, least), greatest) * segment.multiple


def multiples(
    segments: Mapping[str, Segment], used: Collection[str], holds: Callable[[dict[str, int]], bool]
) -> dict[str, int]:
    """The multiple of each dimension `used` with which a statement holds, 1 left out; empty if none is found.

    It is a hint: of each dimension the least sizes are tried. Raises KeyError for a dimension that `segments`
    lacks, and what `holds` raises.
    """

    def hold(steps: Mapping[str, int]) -> bool:
        rows = []
        for name, step in steps.items():
            step = math.lcm(step, segments[name].multiple)
            sizes = range(ceil_div(segments[name].min, step) * step, segments[name].max + 1, step)
            rows.append([size for size in sizes[:_MOST_OF_ONE] if size])
        if not 2 <= math.prod(map(len, rows)) <= MOST_TRIED:
            return False
        return all(holds(dict(zip(steps, sizes, strict=True))) for sizes in itertools.product(*rows))

    for multiple in _MULTIPLES:
        found = dict.fromkeys(sorted(used), multiple)
        if hold(found):
            for name in found:
                if hold(found | {name: 1}):
                    found[name] = 1
            return {name: step for name, step in found.items() if step > 1}
    return {}


def elements_above(
    segments: Mapping[str, Segment], shape: Sequence[SizeExpr], limit: int | None
) -> int | None:
    """The most elements of a shape for any sizes of the dimensions; None: at most `limit`, if there is one.

    A shape that need not be greatest where its dimensions are, as with a remainder, is bounded from above.
    Where the bound exceeds the limit, the shape is tried with all sizes, if those are at most MOST_TRIED.
    Raises KeyError for a dimension that `segments` lacks, and ZeroDivisionError for a divisor that can be 0.
    """
    if all(map(grows, shape)):
        greatest = {name: segment.max for name, segment in segments.items()}
        most = math.prod(evaluate(size, greatest) for size in shape)
    else:
        box = {name: (segment.min, segment.max) for name, segment in segments.items()}
        most = math.prod(max(bounds(size, box)[1], 0) for size in shape)
        if limit is None or most > limit:
            tried = combinations(segments, set().union(*map(names, shape))) or ()
            most = max((math.prod(evaluate(size, sizes) for size in shape) for sizes in tried), default=most)
    return most if limit is None or most > limit else None
