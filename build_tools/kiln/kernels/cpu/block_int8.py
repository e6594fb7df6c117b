"""Dense layers of integer rows with weights of 8 or 4 bits whose scales and zero points are of blocks.

Computation  y[row][column] = sum over blocks b of scale[b][column] * sum over k of b of x[row][k] * (n - Z),
             with n the stored numbers; the inner sums in int32.
Packing      kernels/cpu/compact_weights.py: other kernels of the same weights read the same bytes.
Schedule     As many rows of x as stay in half of the L2 cache are copied into scratch memory, each block
             together and with its sum (block_rows.py). Then each panel of columns is multiplied with all of
             these rows (block_sums.py). A task is a range of panels, of rows, or both. Methods:
             vnni   vpdpbusd, stored numbers as unsigned bytes; sums of a block in registers.
             sdot   ARM's SDOT, also where I8MM or SVE are. mull: as in gemm_int8.py.
             narrow other x86, weights of 4 bits: pmaddubsw, whose sums of 16 bits hold eight products. A few
                    weights stay in registers, and are multiplied with all rows of a tile.
             pairs  other x86, weights of 8 bits, and x of int16: pmaddwd, in the same order. WebAssembly has
                    an instruction like it.
             plain  products of 32 bits.
Applies      matmul of int8 or int16 by constant float32 weights that are stored in int4 or int8 with scales
             of blocks of k, or of columns, whose sums fit 32 bits.
Accuracy     The sum of each block is exact; sums of blocks are float32.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.config.sizes import ceil_div as whole_ceil_div
from kiln.kernels.cpu import conv2d
from kiln.kernels.cpu.block_method import BlockMethod
from kiln.kernels.cpu.block_rows import BlockRows
from kiln.kernels.cpu.block_sums import BlockSums, TileScratch
from kiln.kernels.cpu.compact_weights import CompactForm, StoredPanels, form_of
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.epilogue import Epilogue, may_overwrite, parameters
from kiln.kernels.cpu.gemm_tile import choose_tile
from kiln.kernels.cpu.output_tile import OutputTile
from kiln.opinfo.attach import OpInfo
from kiln.params.encodings import Encoding
from kiln.tir.builder import (
    Argument,
    Kernel,
    KernelAndBuffers,
    Machine,
    Packing,
    argument,
    bind,
    define,
    divide,
    int64,
    load,
    registers,
    serial,
    unravel,
)
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import is_dynamic
from kiln.tir.tiled_loops import blocks, tasks_of

# By type of x, the greatest magnitude of an element.
MAGNITUDES = {"int8": 128, "int16": 1 << 15}
_LIMIT = 1 << 31  # of sums of products


def suits(encoding: Encoding, terms: int, x_type: str) -> bool:
    """Whether weights of `terms` rows in `encoding` have blocks of k whose sums with x fit 32 bits."""
    if encoding.is_float:
        return False
    weight = 15 if encoding.kind == "int4" else 255  # with a zero point
    longest = (_LIMIT - 1) // (weight * MAGNITUDES[x_type])
    if encoding.rows >= terms:
        return terms <= longest
    return 1 < encoding.rows <= longest and encoding.columns == 1


def applies(op: OpInfo, fused: Fused, anchor: Nest, constants: set[int]) -> bool:
    """Whether this family can compute the group that begins with `op`."""
    if not conv2d.applies(op, fused, anchor, constants) or op["name"] != "matmul":
        return False
    x, weights = fused.params[:2]
    x_type, dtypes = str(x.dtype), {str(weights.dtype), str(anchor.buffer.dtype)}
    if x_type not in MAGNITUDES or dtypes != {"float32"} or weights not in fused.encodings:
        return False
    return suits(fused.encodings[weights], int(weights.shape[0]), x_type)


class _BlockKernel:
    """Makes the kernel of one dense layer."""

    def __init__(self, op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> None:
        self.fused, self.anchor, self.last, self.machine = fused, anchor, last, machine
        self.conv = conv = Convolution(op, fused, anchor)
        self.most_rows = most = fused.ranges.greatest(conv.rows)
        weights = fused.params[1]
        tile = choose_tile(machine, most, conv.columns, conv.choice(machine).tile, conv.pitch * 4)
        self.form: CompactForm = form_of(fused.encodings[weights], conv, tile)
        self.x_type = str(fused.params[0].dtype)
        self.method = BlockMethod.of(machine, self.form, most, self.x_type)
        self.tile_rows = self.method.rows
        # Rows whose copy stays in half of the L2 cache, as whole tiles.
        self.copied = "int16" if self.method.in_pairs else self.x_type
        row_bytes = conv.depth * (2 if self.copied == "int16" else 1)
        fitting = machine.l2_bytes // 2 // row_bytes // self.tile_rows * self.tile_rows
        self.part = min(max(self.tile_rows, fitting), whole_ceil_div(most, self.tile_rows) * self.tile_rows)
        self.most_parts = whole_ceil_div(most, self.part)
        self.shared = machine.shares(conv.macs // tile.lanes)
        self.stored = len(self.form.types)
        self.read = parameters(fused, anchor, last)

    def kernel(self) -> KernelAndBuffers:
        """The kernel, with the buffers of its parameters."""
        fused, form, read = self.fused, self.form, self.read
        x, weights = fused.params[:2]
        size = fused.ranges.greatest(fused.ranges.product(list(x.shape)))
        arguments = [Argument(x.name, [size], self.x_type)]
        arguments += form.arguments(weights.name)
        arguments += [argument(param, fused.tables) for param in read[2:]]
        cores = self.machine.cores if self.shared else 1
        across = min(form.panels, cores)
        down = min(whole_ceil_div(cores, across), self.most_parts)
        tasks = across * down if across * down > 1 else None

        def body(buffers: list[tirx.Buffer], begin: Expr, end: Expr) -> None:
            stored, rest = buffers[1 : 1 + self.stored], buffers[1 + self.stored :]
            names = {read[0]: buffers[0], **dict(zip(read[2:], rest, strict=True))}
            self.element = Epilogue(fused, self.anchor, self.last, names)
            self.x, self.panels = buffers[0], StoredPanels(form, stored, self.machine)
            self._emit(across, down, tasks is not None, begin, end)

        before = may_overwrite(fused, self.anchor, self.last, read)
        in_place = tuple(position + self.stored - 1 for position in before)
        func = define(arguments, tasks, body, bool(in_place), fused.ranges)
        packing = Packing(form.tile.columns, arrangement=repr(form.encoding))
        kernel = Kernel(
            func, tasks, {1 + number: pack for number, pack in enumerate(form.packs())}, "block_int8",
            in_place, ranges=fused.ranges, packing=packing,
            labels={1 + number: label for number, label in enumerate(form.labels)},
        )  # fmt: skip
        return kernel, [read[0], *([weights] * self.stored), *read[2:]]

    def _emit(self, across: int, down: int, split: bool, begin: Expr, end: Expr) -> None:
        """Emit the tasks: each of `across` ranges of panels by each of `down` ranges of parts of the rows."""
        form, conv = self.form, self.conv
        has_zeros = self.method.offset or form.encoding.has_zero
        factor = 0 if not has_zeros else -1 if form.encoding.has_zero else -self.method.offset
        copies = across * down if split else 1
        rows = BlockRows(form, self.part, copies, factor, self.copied, self.method.in_pairs)
        totals_size = self.tile_rows * form.tile.columns
        totals = registers([copies * totals_size], "float32")
        held_size = self.tile_rows * self.method.lanes
        held = registers([copies * held_size], "int32") if self.method.chunked else None
        share = whole_ceil_div(self.most_parts, down)
        panels_of_task = whole_ceil_div(form.panels, across)
        with tasks_of(across * down, split, begin, end) as number:
            task = bind(number)
            copy = task if split else int64(0)
            first_total, first_sum = bind(copy * int64(totals_size)), bind(copy * int64(held_size))
            scratch = TileScratch(totals, first_total, held, first_sum)
            sums = BlockSums(self.panels, self.method, rows, scratch, self.most_rows == 1)
            panel_range, part_range = unravel(task, [across, down])
            first_panel = bind(panel_range * int64(panels_of_task))
            left = int64(form.panels) - first_panel
            count = bind(tirx.max(tirx.min(int64(panels_of_task), left), int64(0)))
            with serial(share) as index:
                first = bind((part_range * int64(share) + index) * int64(self.part))
                here = bind(tirx.max(tirx.min(int64(self.part), int64(conv.rows) - first), int64(0)))
                here = conv.rows if self.most_parts == 1 and not is_dynamic(conv.rows) else here

                def place_of(row: Expr, first: Expr = first) -> Expr:
                    return conv.base(first + row, int64(0))

                rows.prepare(self.x, place_of, here, copy, self.method.lanes)
                with serial(count) as panel_index:
                    self._panel(bind(first_panel + panel_index), sums, copy, first, here)

    def _panel(self, panel: Expr, sums: BlockSums, copy: Expr, first: Expr, count: Any) -> None:
        """Emit panel number `panel` for the `count` rows from row `first` on, which are copy `copy`."""

        def visit(row: Expr, rows: Any) -> None:
            row = bind(row)
            sums.emit(panel, copy, row, rows)
            self._store(panel, sums, bind(first + row), rows)

        if not self.method.chunked:
            blocks(count, self.tile_rows, visit)
        elif isinstance(count, int) and count <= self.tile_rows:
            visit(int64(0), count)
        else:
            with serial(divide(int64(count) + int64(self.tile_rows - 1), self.tile_rows)) as index:
                row = bind(index * int64(self.tile_rows))
                visit(row, bind(tirx.min(int64(self.tile_rows), int64(count) - row)))

    def _store(self, panel: Expr, sums: BlockSums, first: Expr, count: Any) -> None:
        """Emit the epilogue and the stores of the totals of `count` rows, which begin at row `first`."""
        form, lanes = self.form, self.method.lanes
        column = bind(panel * int64(form.tile.columns))

        def finish(row: Expr, column: Expr, value: Expr) -> None:
            self.element.store(self.conv.result_indices(row, column, self.last.buffer.shape), value)

        def rows_of(columns: int) -> None:
            with serial(count) as number:
                row = bind(number)
                base = bind(sums.at + row * int64(form.tile.columns))

                def sums_of(v: int, offset: int, lane: Expr) -> Expr:
                    return load(sums.scratch.totals, [base + int64(v * lanes + offset) + lane])

                OutputTile([], column, columns, finish).store(bind(first + row), lanes, sums_of)

        whole, rest = divmod(form.columns, form.tile.columns)
        if not rest or not whole:
            rows_of(rest or form.tile.columns)
            return
        with builder.If(panel < int64(whole)):
            with builder.Then():
                rows_of(form.tile.columns)
            with builder.Else():
                rows_of(rest)


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> KernelAndBuffers:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters."""
    return _BlockKernel(op, fused, anchor, last, machine).kernel()
