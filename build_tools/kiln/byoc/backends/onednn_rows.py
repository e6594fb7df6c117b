"""Splits a convolution into ranges of output rows: each is a convolution of the input rows that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kiln.config.sizes import ceil_div


@dataclass(frozen=True)
class RowBlock:
    """Output rows [out_first, out_first + out_rows), computed from `rows` input rows starting at `first`.

    `top`, `bottom`: rows of padding above and below these input rows. Input rows that no output row reads
    belong to no block.
    """

    first: int
    rows: int
    out_first: int
    out_rows: int
    top: int
    bottom: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The properties on which the primitive depends: input rows, output rows, top and bottom padding."""
        return self.rows, self.out_rows, self.top, self.bottom


def split_rows(
    height: int, out_height: int, kernel: int, attrs: Mapping[str, Any], chunks: int
) -> list[RowBlock]:
    """Split output rows into at most `chunks` blocks of equal size; one block if one would read no row."""
    stride, dilation = attrs["strides"][0], attrs["dilation"][0]
    top, bottom = attrs["padding"][0], attrs["padding"][2]
    if chunks == 1:
        return [RowBlock(0, height, 0, out_height, top, bottom)]
    step = ceil_div(out_height, chunks)
    blocks = []
    for out_first in range(0, out_height, step):
        out_rows = min(step, out_height - out_first)
        begin = out_first * stride - top
        end = begin + (out_rows - 1) * stride + (kernel - 1) * dilation + 1
        first, last = max(begin, 0), min(end, height)
        if last <= first:
            return split_rows(height, out_height, kernel, attrs, 1)
        blocks.append(
            RowBlock(first, last - first, out_first, out_rows, max(-begin, 0), max(end - height, 0))
        )
    return blocks
