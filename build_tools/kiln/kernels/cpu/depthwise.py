"""Depthwise convolution on NHWC: one input channel for each output channel.

Computation  y[n,h,w,c] = f(sum x[n, h s + i d, w s + j d, c] * k[i,j,0,c]), f = the fused epilogue.
Packing      none: [KH,KW,1,C] is already read in order.
Schedule     The output is cut into tiles of pixels, of one row (strips) or a few; for each vector of channels
             the tile's sums stay in registers, and an input value that several pixels share is loaded once.
             Channels are the inner loop, over a chunk of channels for which the lines of x that an output
             row reads stay in the L1 cache until the next row reads them. Tasks are the rows of tiles of
             each chunk. depthwise_tile.py emits the tiles. Of integers, a vector of channels has two
             registers of sums on ARM and RISC-V, which add products of 8 or 16 bits to them (`_doubled`).
Applies      NHWC/HWIO, groups = channels, no padding left in the op; any kernel, stride and dilation.
Accuracy     Sums run in order of (i, j): plain summation in float32, exact in int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.extents import Extent
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.depthwise_chunks import chunk_vectors, exceeds_l2, is_distant
from kiln.kernels.cpu.depthwise_tile import MULTIPLY, ChannelRange, Place, emit, method_of
from kiln.kernels.cpu.epilogue import Epilogue, flat_argument, may_overwrite, parameters
from kiln.kernels.cpu.gemm_int8 import WHOLE
from kiln.kernels.cpu.gemm_tile import adds_halves, widens
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import (
    CACHE_LINE,
    Argument,
    Kernel,
    Machine,
    argument,
    bind,
    chunks,
    define,
    divide,
    int64,
    modulo,
    serial,
    unravel,
)
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import ceil_div, is_dynamic
from kiln.tir.tiled_loops import blocks, tasks_of


def applies(op: OpInfo, fused: Fused, anchor: Nest, constants: set[int]) -> bool:
    """Whether this family can compute the group that begins with `op`."""
    if op["name"] != "nn.conv2d" or len(fused.params) < 3:
        return False
    attrs, weights = op["attrs"], fused.params[1]
    if attrs["data_layout"] != "NHWC" or attrs["kernel_layout"] != "HWIO" or any(attrs["padding"]):
        return False
    groups = int(attrs["groups"])
    one_to_one = groups == int(weights.shape[3]) and int(weights.shape[2]) == 1 and groups > 1
    return one_to_one and str(anchor.buffer.dtype) in ("float32", "int32", "int64")


def strip_length(machine: Machine, conv: Convolution) -> int:
    """Output pixels in a strip: the number with the fewest cycles per output row, estimated by `_cycles`.

    The sums must fit the registers, with the shared inputs of one kernel row or, if not `shares_inputs`, with
    an input and a tap.
    """
    width = conv.ranges.greatest(conv.out_w)
    lengths = range(2, min(8, width) + 1)
    fitting = [1, *(length for length in lengths if shares_inputs(machine, conv, length))]
    if len(fitting) == 1 or not machine.in_order:
        needed = 2 if machine.in_order else 1  # a core that waits for loads needs registers for them, too
        fitting += [n for n in lengths if n not in fitting and needed * n + 3 <= machine.registers]

    def row(length: int) -> float:
        """Estimated cycles of an output row, or per pixel where its width is dynamic."""
        if is_dynamic(conv.out_w):
            return _cycles(machine, conv, length) / length
        remainder = width % length
        whole = width // length * _cycles(machine, conv, length)
        return whole + (_cycles(machine, conv, remainder) if remainder else 0)

    return min(fitting, key=lambda length: (row(length), -length))


def shares_inputs(machine: Machine, conv: Convolution, length: int) -> bool:
    """Whether a strip loads an input once for all its pixels; otherwise each multiply-add loads its own."""
    free = machine.registers - conv.kernel_w - 2
    inputs = (length - 1) * conv.stride_w + 1
    fits = length + min(inputs, conv.kernel_w + length) <= free + length // 2
    return length == 1 or (fits and 2 * length + 3 < machine.registers)  # 7 pixels spill with 16 registers


# Most columns and rows of a tile: larger tiles save hardly any loads, and are longer code.
_LONGEST_SIDE = 4


def tile_size(machine: Machine, conv: Convolution) -> tuple[int, int] | None:
    """Columns and rows of a tile of several rows; None: strips instead of such tiles.

    A tile loads each line of x once for all of its rows. On AVX-512, where a vector is a cache line, strips
    are as fast or faster as long as x stays in the L2 cache. Measured on a Zen 5: with AVX-512 112x112x32
    1.35 times as fast and 7x7 on 64x64x256 1.5 times, with AVX2 14x14x384 1.2 and 7x7x960 1.5 times; on
    Emerald Rapids with AVX-512 1.2 times where `is_distant` holds.
    """
    if is_dynamic(conv.out_w) or is_dynamic(conv.out_h) or conv.dilation_h > 1 or conv.stride_h > 1:
        return None
    outside = exceeds_l2(machine, conv) or is_distant(machine, conv)
    if machine.vector_bits // 8 >= CACHE_LINE and not outside:
        return None
    # In registers at once: sums of as many rows as the kernel has, an input for each column, and taps.
    columns = min(_LONGEST_SIDE, (machine.registers - conv.kernel_w) // (conv.kernel_h + 1), conv.out_w)
    rows = ceil_div(conv.out_h, ceil_div(conv.out_h, _LONGEST_SIDE))
    rows = next((size for size in range(_LONGEST_SIDE, 1, -1) if conv.out_h % size == 0), rows)
    return (columns, rows) if columns > 1 and rows > 1 else None


# Loads from the L1 cache per cycle, in addition to multiply-adds. Measured on a Zen 4: SSE has no fused
# multiply-add, and a vector of AVX-512 is two loads.
_LOADS = {"avx2": 2.0, "sse4": 1.5}


def _cycles(machine: Machine, conv: Convolution, length: int) -> float:
    """Estimated cycles of a strip of `length` pixels, for one vector of channels.

    Per cycle: two multiply-adds, or one vector loaded from the L2 cache. Lower limit: the latency of the
    additions to one sum, 4 cycles for each multiply-add. Where no inputs are shared, most loads read the L1
    cache, and `_LOADS` is their number per cycle.
    """
    taps: int = conv.kernel_h * conv.kernel_w
    inputs: int = conv.kernel_h * min((length - 1) * conv.stride_w + conv.kernel_w, length * conv.kernel_w)
    loads: float = inputs + taps
    if not shares_inputs(machine, conv, length):
        loads = (length + 1) * taps / _LOADS.get(machine.isa, 1.0)
    return max(length * taps / 2, 4 * taps, loads) + length


@dataclass(frozen=True)
class Division:
    """How a depthwise convolution is divided into chunks of channels, rows of tiles and tasks."""

    lanes: int
    strip: int  # columns of a tile
    shared: bool  # whether a strip loads an input once for all its pixels
    rows: int  # output rows of a tile
    vectors: int  # vectors of channels of a full chunk
    full: int  # full chunks
    left: tuple[int, int]  # after the full chunks: vectors of channels, and channels after the last vector
    bands: Extent  # rows of tiles in an image
    lines: Extent  # rows of tiles of all images
    tasks: Extent | None  # None: the kernel is not split
    method: str  # how integers are multiplied, see depthwise_tile.method_of

    @property
    def chunks(self) -> int:
        """Number of chunks, with the chunk of the channels left."""
        return self.full + any(self.left)


def _doubled(machine: Machine, dtypes: Sequence[str], accumulator: str, method: str) -> bool:
    """Whether tiles have two registers of int32 sums for each of operands in 16 bits: half as many loads.

    On 32-bit ARM without a method of its own for the products, they would not fit the registers.
    """
    neon = machine.isa == "neon" and machine.registers >= 32 and adds_halves(dtypes, accumulator)
    return neon or method in MULTIPLY or widens(machine, dtypes, accumulator)


def division(
    conv: Convolution,
    machine: Machine,
    accumulator: str,
    dtypes: Sequence[str] = ("float32",),
    weights_narrow: bool = False,
) -> Division:
    """The division of `conv` on `machine`: measured values of the tuning record, else heuristics.

    `dtypes`: of x and the weights. `weights_narrow`: whether magnitudes of the weights are below 128.
    """
    lanes = machine.lanes("int64" if accumulator == "int64" else "float32")
    method = method_of(machine, dtypes, accumulator, weights_narrow)
    if _doubled(machine, dtypes, accumulator, method):
        lanes *= 2
        machine = replace(machine, registers=machine.registers // 2)
    measured = conv.choice(machine).strip if accumulator == "float32" else None
    tile = tile_size(machine, conv) if measured is None else None
    if tile is not None:
        strip, rows = tile
    elif measured is not None:
        strip, rows = min(measured, conv.ranges.greatest(conv.out_w)), 1
    else:
        strip, rows = strip_length(machine, conv), 1
    whole_vectors, remainder = divmod(conv.channels, lanes)
    vectors = chunk_vectors(machine, conv)
    full = whole_vectors // vectors if vectors else 0
    vectors_left = whole_vectors - full * vectors, remainder
    bands = ceil_div(conv.out_h, rows)
    lines = conv.ranges.product([conv.batch, bands])
    # Fewer operations per load than in a matmul: an equal number of operations takes longer.
    shared = machine.shares(4 * conv.macs // lanes)
    tasks = (full + any(vectors_left)) * lines if shared else None
    shared_inputs = rows > 1 or shares_inputs(machine, conv, strip)
    return Division(
        lanes, strip, shared_inputs, rows, vectors, full, vectors_left, bands, lines, tasks, method
    )


@dataclass(frozen=True)
class StripLoops:
    """Emits a depthwise convolution over its chunks of channels, rows of tiles and tiles.

    `buffers`: of the kernel; x (NHWC) and the weights (HWIO) first, both flat.
    """

    conv: Convolution
    division: Division
    buffers: list[Any]
    accumulator: str
    element: Epilogue

    def emit(self, begin: Expr, end: Expr) -> None:
        """Emit the tasks [begin, end): each is a row of tiles, for the channels of a chunk."""
        full_division = self.division
        chunk_channels = int64(full_division.vectors * full_division.lanes)
        lines_left = (
            int64(full_division.full * full_division.vectors * full_division.lanes),
            *full_division.left,
        )
        with tasks_of(
            full_division.chunks * full_division.lines, full_division.tasks is not None, begin, end
        ) as task:
            # Consecutive tasks are lines of one chunk: the inputs that they share are in the cache.
            if not full_division.full:
                self._line(task, *lines_left)
                return
            number, line = unravel(task, [full_division.chunks, full_division.lines])
            if full_division.chunks == full_division.full:
                self._line(bind(line), bind(number * chunk_channels), full_division.vectors, 0)
                return
            number, line = bind(number), bind(line)
            with builder.If(number < int64(full_division.full)):
                with builder.Then():
                    self._line(line, bind(number * chunk_channels), full_division.vectors, 0)
                with builder.Else():
                    self._line(line, *lines_left)

    def _line(self, line: Expr, first: Expr, vectors: int, rest: int) -> None:
        """Emit a row of tiles: `vectors` vectors of channels from `first`, then `rest` channels."""
        rows, bands = self.division.rows, self.division.bands
        bottom = 0 if rows == 1 else self.conv.out_h % rows
        if not bottom:
            self._band(line, rows, first, vectors, rest)
            return
        with builder.If(modulo(line, bands) < int64(bands - 1)):
            with builder.Then():
                self._band(line, rows, first, vectors, rest)
            with builder.Else():
                self._band(line, bottom, first, vectors, rest)

    def _band(self, line: Expr, height: int, first: Expr, vectors: int, rest: int) -> None:
        """Emit a row of tiles of `height` output rows, for the channels given as in `_line`."""
        conv, lanes, bands = self.conv, self.division.lanes, self.division.bands
        n, h = divide(line, bands), modulo(line, bands) * int64(self.division.rows)
        if conv.ranges.same(conv.batch, 1):
            n, h = int64(0), line * int64(self.division.rows)

        def tile(place: Place, channel: Expr, width: int) -> None:
            channels, method = ChannelRange(channel, width), self.division.method
            emit(conv, self.buffers, place, channels, self.accumulator, self.element, method)

        def pixels(column: Expr, count: int) -> None:
            place = Place(n, h, height, column, count, self.division.shared)
            if vectors:
                with serial(vectors) as block:
                    tile(place, first + block * int64(lanes), lanes)
            for offset, width in chunks(rest, lanes):
                tile(place, first + int64(vectors * lanes + offset), width)

        blocks(conv.out_w, self.division.strip, pixels)


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> tuple[Kernel, list[Any]]:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters."""
    w_param = fused.params[1]
    conv, accumulator = Convolution(op, fused, anchor), str(anchor.buffer.dtype)
    narrow = fused.magnitudes.get(w_param, WHOLE) < WHOLE
    dtypes = [str(param.dtype) for param in fused.params[:2]]
    divided = division(conv, machine, accumulator, dtypes, narrow)
    buffers_read = parameters(fused, anchor, last)
    arguments = [argument(param, fused.tables) for param in buffers_read]
    arguments[0] = flat_argument(fused, fused.params[0])
    arguments[1] = Argument(
        w_param.name, [int(np.prod(w_param.shape))], str(w_param.dtype), fused.tables.get(w_param)
    )

    def body(buffers: list[Any], begin: Expr, end: Expr) -> None:
        element = Epilogue(fused, anchor, last, dict(zip(buffers_read, buffers, strict=True)))
        StripLoops(conv, divided, buffers, accumulator, element).emit(begin, end)

    in_place = may_overwrite(fused, anchor, last, buffers_read)
    func = define(arguments, divided.tasks, body, bool(in_place), fused.ranges)
    return Kernel(func, divided.tasks, {}, "depthwise", in_place, ranges=fused.ranges), buffers_read
