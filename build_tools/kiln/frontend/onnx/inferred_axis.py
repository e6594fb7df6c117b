"""The size of the axis that a Reshape infers, from the sizes of the tensor and of the other axes."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from kiln.extents import Extent
from kiln.frontend.symbols import Symbols


def inferred_axis(symbols: Symbols, shape: Sequence[Extent], sizes: Sequence[Extent]) -> Extent:
    """The number of elements of `shape` divided by that of `sizes`.

    Sizes that both have are left out first: TVM does not simplify b * (h + 4) * 3 // (h * 3 + 12).
    """
    own, others = [], list(sizes)
    for extent in shape:
        gaps = (symbols.simplify(extent - size) for size in others)
        place = next((index for index, gap in enumerate(gaps) if isinstance(gap, int) and gap == 0), None)
        if place is None:
            own.append(extent)
        else:
            del others[place]
    return symbols.settled(floor_divide(symbols.product(own), symbols.product(others)))


def floor_divide(a: Extent, b: Extent) -> Extent:
    """`a` divided by `b`, rounded down."""
    if isinstance(b, int) and b == 1:
        return a
    return a // b if isinstance(a, int) and isinstance(b, int) else tirx.floordiv(a, b)
