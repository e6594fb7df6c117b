"""TensorView: a tensor that is stored inside a larger one, its parent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kiln.extents import Extent, extent
from kiln.tir.symbols import NO_RANGES, SymbolRanges


@dataclass(frozen=True)
class TensorView:
    """Position of a tensor inside its parent: elements of the parent before and after it on each axis.

    `value` fills the parent outside of the tensor. `pixel_gap` counts the elements of `after[-1]` that only
    separate neighbouring pixels of an NHWC tensor in memory; their contents are undefined.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float
    pixel_gap: int = 0

    def with_pixel_gap(self, gap: int) -> TensorView:
        """This view with `gap` elements between pixels in place of `pixel_gap`."""
        *others, channels = self.after
        return TensorView(self.before, (*others, channels - self.pixel_gap + gap), self.value, gap)

    def parent_without_gaps(self) -> TensorView:
        """View of rank 4 that covers the whole parent except for the gaps between pixels."""
        return TensorView((0,) * 4, (0,) * 4, self.value).with_pixel_gap(self.pixel_gap)

    def parent_shape(self, shape: Sequence[Extent], ranges: SymbolRanges = NO_RANGES) -> list[Extent]:
        """Shape of the parent, where `shape` is that of the tensor."""
        sums = zip(self.before, shape, self.after, strict=True)
        return [ranges.simplify(before + extent(size) + after) for before, size, after in sums]
