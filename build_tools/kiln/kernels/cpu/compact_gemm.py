"""Convolutions and dense layers whose weights are stored in 16, 8 or 4 bits.

Computation  As kernels/cpu/conv2d.py, with float32 data and sums.
Packing      kernels/cpu/compact_weights.py.
Schedule     With few rows, weights are widened in registers where they are multiplied: a product of one row
             reads the stored bytes and nothing else. It multiplies bytes where an instruction adds products
             of bytes (compact_row.py). With many rows, each panel is widened once into scratch memory and
             used by all tiles of rows: the inner loop is that of float32. A task is a range of panels, of
             rows, or both; there are about as many as cores, since each has scratch memory. On processors
             without vectors there is no scratch memory: weights are widened in registers.
Applies      Where conv2d.py does, on float32 data, if the weights have an encoding (params/encodings.py) that
             panels can hold; with Winograd's algorithm only if its weights stay within `weight_growth`.
Accuracy     As conv2d.py. With one row, each block of k is summed before it is scaled; bytes: compact_row.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as builder

from kiln.config.sizes import ceil_div as whole_ceil_div
from kiln.kernels.cpu import compact_row, conv2d
from kiln.kernels.cpu.compact_tile import Reader, emit_tile, store_tile
from kiln.kernels.cpu.compact_weights import CompactForm, StoredPanels, form_of, suits
from kiln.kernels.cpu.conv2d_schedule import part_of
from kiln.kernels.cpu.convolution import Convolution
from kiln.kernels.cpu.epilogue import Epilogue, may_overwrite, parameters
from kiln.kernels.cpu.gemm import product
from kiln.kernels.cpu.gemm_tile import Tile, choose_tile
from kiln.kernels.cpu.output_tile import OutputTile, TileOperands
from kiln.opinfo.attach import OpInfo
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
    modulo,
    registers,
    serial,
    unravel,
)
from kiln.tir.fused import Fused, Nest
from kiln.tir.symbols import ceil_div
from kiln.tir.tiled_loops import blocks, task_blocks, tasks_of

# Up to so many tiles of rows widen the weights in registers; more share weights widened in memory.
_TILES_IN_REGISTERS = 2
# Processors with shorter vectors have little memory, and no cache that widened weights would stay in.
_LEAST_VECTOR = 128


def applies(op: OpInfo, fused: Fused, anchor: Nest, constants: set[int]) -> bool:
    """Whether this family can compute the group that begins with `op`."""
    if not conv2d.applies(op, fused, anchor, constants) or fused.params[1] not in fused.encodings:
        return False
    return str(anchor.buffer.dtype) == str(fused.params[0].dtype) == "float32"


def pays(op: OpInfo, fused: Fused, anchor: Nest, machine: Machine) -> bool:
    """Whether kernels for `machine` can read the weights in their encoding."""
    conv = Convolution(op, fused, anchor)
    return suits(fused.encodings[fused.params[1]], conv, _tile(conv, machine).columns)


def _tile(conv: Convolution, machine: Machine) -> Tile:
    row_bytes = conv.stride_w * conv.pitch * 4
    return choose_tile(
        machine, conv.ranges.greatest(conv.rows), conv.columns, conv.choice(machine).tile, row_bytes
    )


class _CompactKernel:
    """Makes the kernel of one convolution."""

    def __init__(self, op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> None:
        self.op, self.fused, self.anchor, self.last, self.machine = op, fused, anchor, last, machine
        self.conv = conv = Convolution(op, fused, anchor)
        self.tile = _tile(conv, machine)
        weights = fused.params[1]
        self.form: CompactForm = form_of(fused.encodings[weights], conv, self.tile)
        self.most_rows = fused.ranges.greatest(conv.rows)
        self.most_tiles = whole_ceil_div(self.most_rows, self.tile.rows)
        self.unpacks = machine.vector_bits >= _LEAST_VECTOR and self.most_tiles > _TILES_IN_REGISTERS
        self.shared = machine.shares(conv.macs // self.tile.lanes)
        stored = len(self.form.types)
        read = parameters(fused, anchor, last)
        # The kernel has a parameter for each stored tensor of the weights.
        self.buffers_read = [read[0], *([weights] * stored), *read[2:]]
        self.read, self.stored = read, stored

    def kernel(self) -> KernelAndBuffers:
        """The kernel, with the buffers of its parameters."""
        ranges, x = self.fused.ranges, self.fused.params[0]
        arguments = [Argument(x.name, [ranges.greatest(ranges.product(list(x.shape)))], "float32")]
        arguments += self.form.arguments(self.fused.params[1].name)
        arguments += [argument(param, self.fused.tables) for param in self.read[2:]]
        if compact_row.applies(self.form, self.machine, self.most_rows):
            tasks, emit = self._one_row()
        else:
            tasks, emit = self._unpacked() if self.unpacks else self._in_registers()

        def body(buffers: list[tirx.Buffer], begin: Expr, end: Expr) -> None:
            weights, rest = buffers[1 : 1 + self.stored], buffers[1 + self.stored :]
            names = {self.read[0]: buffers[0], **dict(zip(self.read[2:], rest, strict=True))}
            self.element = Epilogue(self.fused, self.anchor, self.last, names)
            self.x, self.panels = buffers[0], StoredPanels(self.form, weights, self.machine)
            emit(begin, end)

        before = may_overwrite(self.fused, self.anchor, self.last, self.read)
        in_place = tuple(position + self.stored - 1 for position in before)
        func = define(arguments, tasks, body, bool(in_place), ranges)
        packs = {1 + number: pack for number, pack in enumerate(self.form.packs())}
        packing = Packing(self.tile.columns, arrangement=repr(self.form.encoding))
        labels = {1 + number: label for number, label in enumerate(self.form.labels)}
        kernel = Kernel(
            func, tasks, packs, "compact_gemm", in_place, ranges=ranges, packing=packing, labels=labels
        )
        return kernel, self.buffers_read

    def _finish(self, row: Expr, column: Expr, value: Expr) -> None:
        self.element.store(self.conv.result_indices(row, column, self.last.buffer.shape), value)

    def _unpacked(self) -> tuple[Any, Any]:
        """Tasks and code of a kernel that widens each panel once into scratch memory."""
        conv, tile, form, machine = self.conv, self.tile, self.form, self.machine
        greatest = self.fused.ranges.greatest
        units = conv.groups * form.panels
        cores = machine.cores if self.shared else 1
        across = min(units, cores)
        down = min(whole_ceil_div(cores, across), self.most_tiles)
        each = whole_ceil_div(units, across)  # panels of a task
        x_bytes = 4 * greatest(self.fused.ranges.product(list(self.fused.params[0].shape)))
        size = form.terms * tile.columns
        share = whole_ceil_div(self.most_tiles, down)
        units_per_part = share
        if conv.groups == 1:
            units_per_part = min(part_of(machine, 1, share, units, x_bytes, units * size * 4) or share, share)
        tiles = ceil_div(conv.rows, tile.rows)
        part_count = whole_ceil_div(share, units_per_part)  # of a task
        tasks = across * down if self.shared and across * down > 1 else None

        def emit(begin: Expr, end: Expr) -> None:
            scratch = registers([size * (across * down if tasks is not None else 1)], "float32")
            with tasks_of(across * down, tasks is not None, begin, end) as task:
                base = bind(task * int64(size) if tasks is not None else int64(0))
                unit_range, part_range = unravel(task, [across, down])
                first_unit, first_part = bind(unit_range * int64(each)), bind(part_range * int64(part_count))
                with serial(part_count) as number:
                    first = bind((first_part + number) * int64(units_per_part))
                    last = bind(tirx.min(first + int64(units_per_part), int64(tiles)))
                    count = tirx.max(tirx.min(int64(each), int64(units) - first_unit), int64(0))
                    with builder.If(first < last), builder.Then(), serial(count) as index:
                        self._unit(bind(first_unit + index), scratch, base, first, last)

        return tasks, emit

    def _unit(self, unit: Expr, scratch: Any, base: Expr, first: Expr, last: Expr) -> None:
        """Emit panel number `unit`, over all groups, for the tiles of rows from `first` to `last`."""
        conv, tile, form = self.conv, self.tile, self.form
        self.panels.unpack(unit, scratch, base)
        group = bind(divide(unit, form.panels) if conv.groups > 1 else int64(0))
        number = bind(modulo(unit, form.panels) if conv.groups > 1 else unit)
        column = bind(group * int64(conv.columns) + number * int64(tile.columns))

        def columns_of(columns: int) -> None:
            def visit(row: Expr, count: int) -> None:
                rows = [bind(row + int64(i)) for i in range(count)]
                bases = [bind(conv.base(row, group)) for row in rows]
                out = OutputTile(rows, column, columns, self._finish)
                # The only panel in scratch memory that this task reads begins at `base`.
                operands = TileOperands(self.x, bases, scratch, int64(0), base)
                product(self._one_panel(), out, operands, conv.loops(), "float32")

            task_blocks(conv.rows, tile.rows, True, first, last, visit)

        whole_panels = conv.columns // tile.columns
        last_columns = conv.columns % tile.columns
        if not last_columns or not whole_panels:
            columns_of(last_columns or tile.columns)
            return
        with builder.If(number < int64(whole_panels)):
            with builder.Then():
                columns_of(tile.columns)
            with builder.Else():
                columns_of(last_columns)

    def _one_panel(self) -> Tile:
        """The tile as wide as a panel, which is widened as one."""
        tile = self.tile
        return Tile(tile.rows, tile.vectors * tile.parts, tile.lanes) if tile.parts > 1 else tile

    def _in_registers(self) -> tuple[Any, Any]:
        """Tasks and code of a kernel that widens weights where it multiplies them."""
        conv, tile = self.conv, self.tile
        wide = whole_ceil_div(conv.columns, tile.width)
        tasks = (conv.groups if conv.groups > 1 else wide) if self.shared else None

        def down(column: Expr, columns: int, group: Expr) -> None:
            def visit(row: Expr, count: int) -> None:
                rows = [bind(row + int64(i)) for i in range(count)]
                self._tile_at(rows, column, columns, group)

            blocks(conv.rows, tile.rows, visit)

        def emit(begin: Expr, end: Expr) -> None:
            if conv.groups > 1:
                with tasks_of(conv.groups, tasks is not None, begin, end) as number:
                    group = bind(number)
                    blocks(conv.columns, tile.width, lambda column, columns: down(column, columns, group))
                return
            task_blocks(
                conv.columns, tile.width, tasks is not None, begin, end,
                lambda column, columns: down(column, columns, int64(0)),
            )  # fmt: skip

        return tasks, emit

    def _one_row(self) -> tuple[Any, Any]:
        """Tasks and code of a kernel that multiplies bytes of x with the stored bytes."""
        conv, tile = self.conv, self.tile
        cores = self.machine.cores if self.shared else 1
        tasks, share = compact_row.tasks_and_share(conv.columns, tile.width, cores)
        tiles = whole_ceil_div(conv.columns, tile.width)

        method = compact_row.method_of(self.machine)

        def emit(begin: Expr, end: Expr) -> None:
            x = compact_row.FixedPointRow(self.form, tasks)
            with tasks_of(tasks, tasks > 1, begin, end) as number:
                task = bind(number)
                x.prepare(self.x, conv.base(int64(0), int64(0)), task)

                def tile_at(column: Expr, columns: int) -> None:
                    panel = bind(divide(column, tile.columns))
                    reader = Reader(self.panels, panel, int64(0), columns)
                    sums = compact_row.RowTile(reader, x, task, method).emit()
                    store_tile(reader.lanes, OutputTile([int64(0)], column, columns, self._finish), [sums])

                first = bind(task * int64(share))
                last = bind(tirx.min(first + int64(share), int64(tiles)))
                task_blocks(conv.columns, tile.width, True, first, last, tile_at)

        return tasks if tasks > 1 else None, emit

    def _tile_at(self, rows: Sequence[Expr], column: Expr, columns: int, group: Expr) -> None:
        conv, tile = self.conv, self.tile
        bases = [bind(conv.base(row, group)) for row in rows]
        panel = bind(divide(column, tile.columns) + group * int64(self.form.panels))
        inside = bind(modulo(column, tile.columns)) if tile.parts > 1 else int64(0)
        reader = Reader(self.panels, panel, inside, columns)
        out = OutputTile(rows, column + group * int64(conv.columns), columns, self._finish)
        emit_tile(reader, conv, out, self.x, bases)


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> KernelAndBuffers:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters."""
    return _CompactKernel(op, fused, anchor, last, machine).kernel()
