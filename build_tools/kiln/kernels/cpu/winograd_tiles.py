"""The output tiles of a Winograd convolution: each tile's place in the output, and the inputs it reads."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr

from kiln.extents import Extent
from kiln.kernels.cpu.convolution import Convolution
from kiln.tir.builder import bind, chunks, divide, int64, load, modulo, serial, store
from kiln.tir.symbols import ceil_div, is_dynamic
from kiln.tir.vector_expr import ramp


class OutputTiles:
    """The tiles of m x m outputs of a convolution, numbered consecutively over all images."""

    def __init__(self, conv: Convolution, m: int) -> None:
        self.conv, self.m, self.size = conv, m, m + 2
        self.down, self.across = ceil_div(conv.out_h, m), ceil_div(conv.out_w, m)
        self.count: Extent = conv.ranges.product([conv.batch, self.down, self.across])

    def place(self, tile: Expr) -> tuple[Expr, Expr, Expr]:
        """(image, first output row, first output column) of tile number `tile`."""
        tiles_of_image = self.down * self.across
        single_image = self.conv.ranges.same(self.conv.batch, 1)
        inside = tile if single_image else modulo(tile, tiles_of_image)
        image = int64(0) if single_image else divide(tile, tiles_of_image)
        return image, divide(inside, self.across) * int64(self.m), modulo(inside, self.across) * int64(self.m)

    def inputs(self, tile: Expr) -> tuple[list[Expr], list[Expr]]:
        """Offsets in x of the m + 2 rows and, within a row, of the m + 2 columns that tile `tile` reads.

        A tile across the edge reads the last row and column again. The offsets are bound to variables.
        """
        conv = self.conv
        image, row, column = self.place(tile)

        def line_of(i: int) -> Expr:
            height = self._clamped(row, i, conv.out_h) + int64(conv.top)
            line = (image * int64(conv.height) + height) * int64(conv.width) + int64(conv.left)
            return line * int64(conv.pitch)

        rows = [bind(line_of(i)) for i in range(self.size)]
        columns = [bind(self._clamped(column, j, conv.out_w) * int64(conv.pitch)) for j in range(self.size)]
        return rows, columns

    def inside(self, row: Expr, column: Expr, i: int, j: int) -> list[Expr]:
        """The conditions for output (i, j) of the tile that begins at (row, column) to be in the image."""
        conv, conditions = self.conv, []
        if i >= self._rest(conv.out_h):
            conditions.append(row + int64(i) < int64(conv.out_h))
        if j >= self._rest(conv.out_w):
            conditions.append(column + int64(j) < int64(conv.out_w))
        return conditions

    def _rest(self, extent: Extent) -> int:
        """Lower bound, at most m, on the outputs of the last tile along an axis of `extent` outputs."""
        remainder = self.conv.ranges.simplify(modulo(extent, self.m))
        return 1 if is_dynamic(remainder) else int(remainder) or self.m

    def _clamped(self, first: Expr, offset: int, extent: Extent) -> Expr:
        """first + offset, limited to the last input of an axis of `extent` outputs."""
        position = first + int64(offset)
        # n outputs read n + 2 inputs.
        beyond = offset - 1 > self._rest(extent)
        return tirx.min(position, int64(extent + 1)) if beyond else position


def over_channels(count: int, lanes: int, visit: Callable[[Expr, int], None]) -> None:
    """Emit visit(first channel, width) for vectors of at most `lanes` that cover `count` channels."""
    whole_vectors = count // lanes
    if whole_vectors:
        with serial(whole_vectors) as block:
            visit(block * int64(lanes), lanes)
    for offset, width in chunks(count - whole_vectors * lanes, lanes):
        visit(int64(whole_vectors * lanes + offset), width)


def read(buffer: tirx.Buffer, offset: Expr, width: int) -> Expr:
    """`width` consecutive elements of `buffer` from `offset`: a vector, or a scalar where width is 1."""
    return load(buffer, [ramp(offset, width) if width > 1 else offset])


def write(buffer: tirx.Buffer, offset: Expr, width: int, value: Expr) -> None:
    """Store `value`, `width` elements, in `buffer` from `offset`."""
    store(buffer, [ramp(offset, width) if width > 1 else offset], value)
