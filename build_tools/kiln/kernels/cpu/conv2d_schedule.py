"""How a convolution is divided into register tiles, blocks of rows and tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm

from kiln.extents import Extent
from kiln.kernels.cpu.amx_tile import Spacing, TileRegisters
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.gemm_dot import DotProduct
from kiln.kernels.cpu.gemm_int8 import WHOLE, IntegerProduct, MatmulSize, integer_product, merged
from kiln.kernels.cpu.gemm_pairs import PairProduct, pair_product
from kiln.kernels.cpu.gemm_tile import (
    Tile,
    choose_tile,
    doubled_tile,
    doubles,
    narrowed,
    pairs_pay,
    widening_tile,
    widens,
)
from kiln.kernels.cpu.skipped_taps import LineSegment, segments
from kiln.tir.builder import Machine
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import ceil_div, is_dynamic
from kiln.tir.tuning_records import HEURISTICS, TuningRecord


@dataclass(frozen=True)
class Schedule:
    """How a convolution is divided into register tiles, parts of its rows and tasks.

    A part of the rows is a number of tiles of rows that use one panel of weights before the next panel.
    """

    tile: Tile
    # the matmul of operands of 8 or 16 bits; None: gemm.product computes it, as that of float32
    integer: IntegerProduct | DotProduct | PairProduct | None
    paired: bool  # whether the last panel is packed by pairs
    accumulator: str  # dtype of the sums
    panels: int  # packed panels of weights of a group, each of tile.columns columns
    widths: int  # tile widths in the columns of a group
    group_weights: int  # elements of the packed weights of a group
    row_tiles: int  # most tiles of rows
    part: int  # tiles of rows in a part
    parts: Extent
    segments: Sequence[LineSegment]  # of a line, if no tile goes from a line to the next; else empty
    line_tiles: int  # most tiles of a line in these segments; 0 without them
    by_group: bool  # whether a task is a group
    prefetch_distance: int  # in tile widths; 0: no prefetches
    tasks: Extent | None  # None: the kernel is not split

    @property
    def tile_registers(self) -> TileRegisters | None:
        """The sizes of AMX's tile registers, where the matmul uses them."""
        return self.integer.amx if isinstance(self.integer, IntegerProduct) else None

    def packed_weights(self, groups: int) -> int:
        """Elements of the packed weights of all groups."""
        return self.group_weights * groups + self.beyond

    @property
    def lines(self) -> int:
        """Lines of images in a part, where no tile goes from a line to the next."""
        return self.part // self.line_tiles

    @property
    def beyond(self) -> int:
        """Elements after the packed weights of all groups, which a load of the last ones reaches."""
        return 0 if self.integer is None or isinstance(self.integer, PairProduct) else self.integer.beyond

    @property
    def one_part(self) -> bool:
        """Whether a panel of weights is used for all rows before the next panel."""
        return self.part == self.row_tiles


def part_of(machine: Machine, cores: int, tiles: int, panels: int, x_bytes: int, weights_bytes: int) -> int:
    """Number of tiles of rows for which a panel of weights is used before the next panel; 0: all tiles.

    All tiles where x stays in the L2 cache or the weights do not, provided that the panels divide among the
    cores. Otherwise tiles whose part of x leaves room in the cache (an eighth of the cache, or 8 tiles), in a
    number by which the tiles divide among the cores.
    """
    half = machine.l2_bytes // 2
    divides = panels % cores == 0 or panels >= 4 * cores
    if tiles == 1 or (divides and (x_bytes <= half or weights_bytes > half)):
        return 0
    upper = min(max(8, tiles * half // (4 * x_bytes)), ceil_div(tiles, cores))

    def slowest(tiles_per_part: int) -> int:
        """Number of tiles on the core with the most tiles."""
        return ceil_div(ceil_div(tiles, tiles_per_part), cores) * tiles_per_part

    return min(
        range(ceil_div(upper, 2), upper + 1),
        key=lambda tiles_per_part: (slowest(tiles_per_part), -tiles_per_part),
    )


def by_pairs(conv: Convolution, machine: Machine) -> bool:
    """Whether the last panel of float32 weights is packed by pairs.

    Only where all rows of x are at equal distances. Never in dense layers: kernels for one row and for many
    rows share the weights.
    """
    if not machine.pairs or not (conv.is_dense or conv.is_line) or conv.is_layer:
        return False
    if machine.packing is not None:
        return machine.packing.paired
    return pairs_pay(machine, conv.ranges.greatest(conv.rows), conv.columns, conv.depth)


# Fewest sums of a tile that hide the latency of a multiply-add, and the most for which registers suffice.
_SUMS = {"avx512": (8, 28), "avx2": (8, 12)}


def in_lines(conv: Convolution, tile: Tile, machine: Machine) -> tuple[Tile, bool]:
    """The tile with a number of rows that divides a line of the image, if one is near; else `tile`.

    All addresses of such a tile are one register and constants (`Convolution.bases`). In a tile that may
    begin in one line and end in the next each row has an address of its own: 14 of them are computed in each
    step of the outer loops, and do not fit the registers. Measured on Zen 4: 7x7 of one channel 1.4 times as
    fast on AVX-512, 7x7 of 24 channels with stride 2 twice as fast on AVX2. Where all rows are one line, any
    number will do; of a tile one vector wide, which has registers to spare, a divisor is higher, too.

    Also returns whether each line has tiles of its own, which lines of dynamic length have if that pays.
    """
    regular = conv.in_line(tile.rows) and not (conv.is_line and tile.vectors == 1)
    if regular:
        return tile, False
    if is_dynamic(conv.out_w):
        return _of_dynamic_lines(conv, tile, machine)
    if machine.isa not in _SUMS:
        return tile, False
    fewest, most = (ceil_div(_SUMS[machine.isa][0], tile.vectors), _SUMS[machine.isa][1] // tile.vectors)
    fitting = [rows for rows in range(fewest, most + 1) if conv.out_w % rows == 0]
    return (replace(tile, rows=fitting[-1]) if fitting else tile), False


# Time that addresses take in a tile whose rows have one each: in a step of the outer loops, as long as so
# many steps of the innermost one.
_ADDRESSES = 4.5
# Both on 64-bit ARM, for lines of dynamic length alone: more registers hold addresses. Fewer hold sums where
# left operands of several steps are loaded together.
_NEON_SUMS, _NEON_SUMS_WITH_LEFTS, _NEON_ADDRESSES = (8, 24), (8, 21), 1.5
# Lengths of a line at which tiles are compared.
_LENGTHS = 256


def _of_dynamic_lines(conv: Convolution, tile: Tile, machine: Machine) -> tuple[Tile, bool]:
    """The tile for lines of dynamic length, and whether each line has tiles of its own."""
    neon = machine.isa == "neon" and machine.registers >= 32
    loads_lefts = tile.left_steps > 1 and conv.depth % tile.left_steps == 0
    neon_sums = _NEON_SUMS_WITH_LEFTS if loads_lefts else _NEON_SUMS
    sums = neon_sums if neon else _SUMS.get(machine.isa)
    if sums is None:
        return tile, False
    across, own_lines = _across_lines(conv, tile, machine), replace(tile, rows=sums[1] // tile.vectors)
    own_addresses = 1 + (_NEON_ADDRESSES if neon else _ADDRESSES) / conv.depth
    return (
        (own_lines, True) if _own_lines_pay(conv, own_lines, across, sums, own_addresses) else (across, False)
    )


def _own_lines_pay(
    conv: Convolution, own_lines: Tile, across: Tile, sums: tuple[int, int], own_addresses: float
) -> bool:
    """Whether lines of dynamic length take less time in tiles `own_lines` than in tiles `across` their ends.

    On average over lengths between the least and the greatest. `sums`: fewest and most of a tile, as in
    _SUMS. `own_addresses`: time of a tile whose rows have an address each, over that of one whose rows share
    one. A tile of a few sums takes as long as one of the fewest that hide the latency of a multiply-add: the
    rest of a line, in powers of two, is dear. A narrow tile across lines takes as long as a wide one, since
    it has as many addresses.

    Measured on Emerald Rapids, from 3 to 16 channels with lines of 59 to 141 pixels: 0.28 of the time of
    tiles across lines on AVX-512, 0.4 on AVX2; from 32 to 64 channels with lines of 14, 28 and 56: 0.8 to
    0.9, and 0.9 to 1.04; from 64 to 128: 1 and 1.05 with lines of 28, 1.2 to 1.7 with lines of 7, 11 and 21.
    On 64-bit ARM, from 3 to 16 channels with lines of 32 pixels: 0.8 of the instructions; from 32 to 64 with
    lines of 14: 1.04.
    """
    fewest, most = sums

    def time_in_own_lines(length: int) -> int:
        whole, remainder = divmod(length, own_lines.rows)
        parts = [1 << bit for bit in range(remainder.bit_length()) if remainder >> bit & 1]
        return whole * most + sum(max(fewest, rows * own_lines.vectors) for rows in parts)

    sums_across = across.rows * across.vectors * across.adjacent
    time_across = max(own_addresses, most / sums_across) * own_lines.vectors
    least, greatest = max(1, conv.ranges.least(conv.out_w)), conv.ranges.greatest(conv.out_w)
    # Lengths an odd number apart leave different rests after whole tiles.
    lengths = range(least, greatest + 1, (greatest - least) // _LENGTHS | 1)
    return sum(time_in_own_lines(length) / (length * time_across) for length in lengths) < len(lengths)


# Rows of a tile whose addresses leave registers for those of weights and results, on AVX-512.
_MOST_ADDRESSES = 7


def _across_lines(conv: Convolution, tile: Tile, machine: Machine) -> Tile:
    """The tile for lines of dynamic length: fewer rows, as each has an address of its own, and more panels.

    Measured on Emerald Rapids, 7 rows by 4 vectors take 0.45 to 0.9 of the time of 14 by 2. A tile of AVX2
    has 6 rows in any case. Panels keep their width, so that static sizes share the packed weights.
    """
    if machine.isa != "avx512" or tile.rows <= _MOST_ADDRESSES + 1:
        return tile
    vectors, panels = _SUMS[machine.isa][1] // _MOST_ADDRESSES, ceil_div(conv.columns, tile.columns)
    adjacent = 1 if tile.parts > 1 else max(1, min(vectors // tile.vectors, panels))
    return replace(tile, rows=_MOST_ADDRESSES, adjacent=adjacent)


def _integer(
    conv: Convolution, fused: Fused, anchor: Nest, machine: Machine
) -> IntegerProduct | DotProduct | PairProduct | None:
    """The matmul of integers by instructions that multiply 8 or 16 bits; None: gemm.product computes it."""
    x, weights = fused.params[:2]
    greatest = fused.ranges.greatest
    dtypes, accumulator = [str(x.dtype), str(weights.dtype)], str(anchor.buffer.dtype)
    narrow, rows = fused.magnitudes.get(weights, WHOLE) < WHOLE, greatest(conv.rows)
    if "int16" in dtypes and accumulator in ("int32", "int64"):
        runs = merged(conv.loops())
        together = fused.together.get(weights, 0)
        pairs = pair_product(machine, [*dtypes, accumulator], together, runs, rows, conv.columns)
        if pairs is not None:
            return pairs
    if accumulator != "int32":
        return None
    line = greatest(conv.out_w)
    spacing = None
    regular = conv.is_dense or conv.is_line
    if regular or isinstance(conv.out_w, int):
        spacing = Spacing(conv.stride_w * conv.pitch, None if regular else line)
    size = MatmulSize(rows, conv.columns, conv.loops(), line)
    return integer_product(machine, dtypes, narrow, size, spacing)


def schedule_of(conv: Convolution, fused: Fused, anchor: Nest, machine: Machine) -> Schedule:
    """The schedule of `conv` on `machine`: measured values of the tuning record, else heuristics."""
    x, weights = fused.params[:2]
    most_rows, accumulator = fused.ranges.greatest(conv.rows), str(anchor.buffer.dtype)
    integer = _integer(conv, fused, anchor, machine)
    row_bytes = conv.stride_w * conv.pitch * 4  # bytes between rows of x, except at the ends of image lines
    choice = conv.choice(machine) if accumulator == "float32" else HEURISTICS
    own_lines = conv.axes is not None
    if integer:
        tile = integer.tile
    elif widens(machine, [str(x.dtype), str(weights.dtype)], accumulator):
        tile = widening_tile(machine, most_rows, conv.columns)
    elif doubles(machine, [str(x.dtype), str(weights.dtype)], accumulator, most_rows):
        tile = doubled_tile(machine, most_rows, conv.columns)
    else:
        tile = choose_tile(machine, most_rows, conv.columns, choice.tile, row_bytes)
        if not choice.tile and not own_lines:
            tile, own_lines = in_lines(conv, tile, machine)
        tile = narrowed(tile, conv.columns, machine)
    panels, widths = ceil_div(conv.columns, tile.columns), ceil_div(conv.columns, tile.width)
    group_weights = panels * (integer.panel_bytes if integer else conv.terms * tile.columns)
    line_segments, line_tiles = _segments_of(conv, tile) if own_lines else ([], 0)
    row_tiles = fused.ranges.greatest(conv.lines) * line_tiles or ceil_div(most_rows, tile.rows)
    shared = machine.shares(conv.macs // tile.lanes)
    cores = machine.cores if shared else 1
    by_group = 1 < conv.groups >= cores
    part_tiles = row_tiles
    if not by_group:
        element_bytes = ceil_div(tvm.DataType(str(x.dtype)).bits, 8)
        x_bytes = fused.ranges.greatest(fused.ranges.product(list(x.shape))) * element_bytes
        weights_bytes = group_weights * conv.groups * element_bytes
        measured = choice.part
        if measured is None:
            measured = part_of(machine, cores, row_tiles, widths, x_bytes, weights_bytes)
        part_tiles = min(measured or row_tiles, row_tiles)
    parts = ceil_div(ceil_div(conv.rows, tile.rows), part_tiles)
    if own_lines:  # whole lines
        lines = max(1, part_tiles // line_tiles)
        part_tiles, parts = lines * line_tiles, ceil_div(conv.lines, lines)
    tasks = conv.groups if by_group else widths if part_tiles == row_tiles else parts
    return Schedule(
        tile=tile,
        integer=integer,
        paired={str(x.dtype), str(weights.dtype), accumulator} == {"float32"} and by_pairs(conv, machine),
        accumulator=accumulator,
        panels=panels,
        widths=widths,
        group_weights=group_weights,
        row_tiles=row_tiles,
        part=part_tiles,
        parts=parts,
        segments=line_segments,
        line_tiles=line_tiles,
        by_group=by_group,
        prefetch_distance=_prefetch_distance(choice, most_rows, accumulator),
        tasks=tasks if shared else None,
    )


def _segments_of(conv: Convolution, tile: Tile) -> tuple[list[LineSegment], int]:
    """The segments of a line of `conv`, and most tiles in them: one segment where its image has padding."""
    whole = LineSegment(0, conv.out_w, range(conv.kernel_w), tile.rows, 0)
    found = segments(conv.axes[1], tile.rows) if conv.axes else [whole]
    last = found[-1]
    return found, last.tile + ceil_div(conv.ranges.greatest(last.pixels), last.rows)


def _prefetch_distance(choice: TuningRecord, rows: int, accumulator: str) -> int:
    """Tile widths between a tile and the weights that it prefetches; 0 where it prefetches none.

    A single row reads weights as fast as memory delivers them: prefetches cost 5 to 15 % on Zen 5.
    """
    if accumulator != "float32":
        return 0
    if choice.fetch is not None:
        return choice.fetch
    return 1 if rows > 1 else 0
