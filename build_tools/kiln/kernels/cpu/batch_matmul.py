"""Matmuls of two tensors that are both known only at run time: the batch matmuls of attention.

Computation  y[batch, m, n] = f(sum over k of a[batch, m, k] * b[batch, k, n]), f = the fused epilogue.
             Both operands and the result may have their axes in any order, broadcast or repeated: the
             indices of the fused function show which axis belongs to which operand.
Packing      The right operand, whose n is the last axis of the result, is read in place where its columns
             are contiguous and few rows of the result use them. Otherwise each task packs its panel of
             columns as [k][NR] into scratch memory of its own; where k is contiguous, by transposing blocks
             in registers.
Schedule     Tile by kernels/cpu/gemm_tile.py. A task is one panel of one batch: it packs the panel, then
             computes all rows.
Applies      matmul and einsum of two float32 operands, one reduced axis; the last axis of the result must
             belong to one operand only.
Accuracy     Sums run in order of k: the error of plain summation in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import sym, tirx
from tvm.ir import Expr, TensorLoad

from kiln.extents import Extent, extent
from kiln.kernels.cpu.epilogue import Epilogue
from kiln.kernels.cpu.gemm_tile import Tile, choose_tile
from kiln.kernels.cpu.packed_operand import Panels, one_panel
from kiln.kernels.cpu.panel_sums import PanelOperand, RowOperand, tile_sums
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import (
    NO_TABLES,
    Argument,
    Kernel,
    KernelAndBuffers,
    Machine,
    Sized,
    argument,
    bind,
    chunks,
    define,
    divide,
    load,
    modulo,
    registers,
    serial,
    store,
    unravel,
    vector,
)
from kiln.tir.fused import Fused, Nest
from kiln.tir.stored import Table
from kiln.tir.symbols import SymbolRanges, int64, is_dynamic
from kiln.tir.tiled_loops import blocks, tasks_of


@dataclass(frozen=True)
class StridedOperand:
    """A tensor read at start + sum of index * stride over the axes of the nest; stride 0: an absent axis."""

    buffer: Any
    strides: dict[Any, Extent]
    start: Extent

    def has(self, axis: Any) -> bool:
        """Whether the operand varies along `axis`."""
        stride = self.strides[axis.var]
        return is_dynamic(stride) or bool(stride)

    def offset(self, indices: dict[Any, Expr]) -> Expr:
        """The position in memory of the element at `indices`; an axis that is left out has index 0."""
        total: Expr = int64(self.start)
        for variable, index in indices.items():
            stride = self.strides[variable]
            if is_dynamic(stride) or stride:
                total = total + index * int64(stride)
        return total


def strided_operand(expr: Expr, nest: Nest, ranges: SymbolRanges) -> StridedOperand | None:
    """The tensor that `expr` loads, with strides; None unless the position is linear in the axes.

    A cast of the loaded element is ignored.
    """
    expr = expr.value if isinstance(expr, tirx.Cast) else expr
    if not isinstance(expr, TensorLoad):
        return None
    variables = [axis.var for axis in [*nest.axes, *nest.reduced]]
    position: Expr = int64(0)
    for index, size in zip(expr.indices, expr.source.shape, strict=True):
        position = position * size + index
    coefficients = sym.detect_linear_equation(sym.Analyzer().simplify(position), variables)
    if len(coefficients) != len(variables) + 1:
        return None
    factors = [ranges.simplify(extent(factor)) for factor in coefficients]
    return StridedOperand(expr.source, dict(zip(variables, factors[:-1], strict=True)), factors[-1])


@dataclass(frozen=True)
class MatmulNest:
    """A matmul: operands, and the axes of rows, columns, depth and batch; `rows` is None for a vector."""

    left: StridedOperand
    right: StridedOperand
    rows: Any
    columns: Any
    depth: Any
    batch: list[Any]


def axis_extent(axis: Any) -> Extent:
    """The extent of an axis; 1 for None."""
    return 1 if axis is None else extent(axis.dom.extent)


def read_product(nest: Nest, ranges: SymbolRanges) -> MatmulNest | None:
    """The matmul that `nest` computes, or None when this family cannot compute `nest`."""
    if len(nest.reduced) != 1 or not nest.axes or not isinstance(nest.value, tirx.Add):
        return None
    before, term = nest.value.a, nest.value.b
    if not isinstance(before, TensorLoad) or not before.source.same_as(nest.buffer):
        return None
    if not isinstance(term, tirx.Mul):
        return None
    first, second = strided_operand(term.a, nest, ranges), strided_operand(term.b, nest, ranges)
    if first is None or second is None:
        return None
    wide = [axis for axis in nest.axes if ranges.greatest(axis_extent(axis)) != 1]
    columns = wide[-1] if wide else nest.axes[-1]
    if first.has(columns) == second.has(columns):
        return None  # vectors along an axis of both operands need no tiles of a matmul
    left, right = (first, second) if second.has(columns) else (second, first)
    only_left = [axis for axis in wide if axis is not columns and left.has(axis) and not right.has(axis)]
    rows = max(only_left, key=lambda axis: ranges.greatest(axis_extent(axis)), default=None)
    batch = [axis for axis in nest.axes if axis is not columns and axis is not rows]
    return MatmulNest(left, right, rows, columns, nest.reduced[0], batch)


def applies(op: OpInfo, fused: Fused, anchor: Nest, _constants: set[int]) -> bool:
    """Whether this family can compute the group that begins with `op`."""
    if op["name"] not in ("matmul", "einsum") or str(anchor.buffer.dtype) != "float32":
        return False
    product = read_product(anchor, fused.ranges)
    if product is None:
        return False
    buffers = [product.left.buffer, product.right.buffer]
    return all(buffer in fused.params and str(buffer.dtype) == "float32" for buffer in buffers)


# Vectors of a column from which on sums along the column cost less than packing it for a single row.
_LONG = 4


def pays(_op: OpInfo, fused: Fused, anchor: Nest, machine: Machine) -> bool:
    """Whether tiles of columns are faster than a sum along each column (kernels/cpu/elementwise.py).

    They are not for one row and long columns that are contiguous: each would be packed to be read once.
    """
    product = read_product(anchor, fused.ranges)
    assert product is not None
    depth, step = axis_extent(product.depth), product.right.strides[product.depth.var]
    if product.rows is not None or is_dynamic(step) or is_dynamic(depth) or step != 1:
        return True
    lanes = machine.lanes("float32")
    return lanes == 1 or depth < _LONG * lanes


def buffers_of(product: MatmulNest, fused: Fused, anchor: Nest, last: Nest) -> list[Any]:
    """The buffers of a matmul's kernel: both operands, further inputs of the epilogue, the output."""
    extra: list[Any] = []
    if last is not anchor:
        read = fused.inputs(last, [*fused.params, anchor.buffer])
        extra = [buffer for buffer in read if not buffer.same_as(anchor.buffer)]
    return [product.left.buffer, product.right.buffer, *extra, last.buffer]


def arguments_of(buffers: Sequence[tirx.Buffer], fused: Fused) -> list[Argument]:
    """The kernel arguments for `buffers` of `buffers_of`; the operands as one-dimensional memory."""
    operands = [flat(buffer, fused.ranges, fused.tables) for buffer in buffers[:2]]
    return operands + [argument(buffer, fused.tables) for buffer in buffers[2:]]


def memory_of(buffers: Sequence[tirx.Buffer]) -> tuple[Any, Any]:
    """The memory of the left and of the right operand, from the buffers that the kernel's body is given."""
    left, right = (buffer.memory if isinstance(buffer, Sized) else buffer for buffer in buffers[:2])
    return left, right


@dataclass(frozen=True)
class _PanelLoops:
    """Emits the matmul of one panel of columns: packs the panel into `scratch`, then computes all rows.

    `left` and `right`: memory of the operands. `scratch`: memory of `panels.size` elements for each task;
    None where the panel is read in place. `split`: whether the kernel has several tasks.
    """

    product: MatmulNest
    panels: Panels
    left: Any
    right: Any
    scratch: Any
    split: bool
    element: Epilogue
    anchor: Nest

    def emit(self, batch: dict[Any, Expr], first: Expr, columns: Extent, task: Expr) -> None:
        """Emit `columns` columns from `first` of one batch."""
        product, panels = self.product, self.panels
        start = bind(product.right.offset({**batch, product.columns.var: first}))
        source, step = self.right, panels.step
        if self.scratch is not None:
            offset = bind(task * int64(panels.size) if self.split else int64(0))
            panels.pack(source, start, columns, self.scratch, offset)
            source, step, start = self.scratch, panels.tile.columns, offset
        left_start = bind(product.left.offset(batch))
        result = TileResult(self.element, self.anchor, product, batch, first, columns)

        def rows_from(first_row: Expr, number: int) -> None:
            numbers = [bind(first_row + int64(index)) for index in range(number)]
            row_step = int64(0 if product.rows is None else product.left.strides[product.rows.var])
            bases = [bind(left_start + row * row_step) for row in numbers]
            vectors = panels.vectors(columns)
            depth_step = product.left.strides[product.depth.var]
            left, right = RowOperand(self.left, bases, depth_step), PanelOperand(source, start, step)
            sums = tile_sums(panels.depth, left, right, vectors, panels.tile.left_steps)
            for row, row_sums in zip(numbers, sums, strict=True):
                result.store(row, vectors, row_sums, panels.tile)

        blocks(axis_extent(product.rows), panels.tile.rows, rows_from)


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> KernelAndBuffers:
    """Make the kernel of nests `anchor` to `last`; return it with the buffers of its parameters."""
    product = read_product(anchor, fused.ranges)
    assert product is not None, op
    rows, ranges, greatest = axis_extent(product.rows), fused.ranges, fused.ranges.greatest
    tile = choose_tile(machine, greatest(rows), greatest(axis_extent(product.columns))).in_one()
    panels = Panels(
        tile, rows, axis_extent(product.columns), axis_extent(product.depth),
        product.right.strides[product.columns.var], product.right.strides[product.depth.var], ranges,
    )  # fmt: skip
    sizes = [axis_extent(axis) for axis in product.batch]
    count = ranges.product([*sizes, panels.number])
    work = greatest(ranges.product([*(axis.dom.extent for axis in anchor.axes), product.depth.dom.extent]))
    tasks = count if machine.shares(work // tile.lanes) else None
    buffers_read = buffers_of(product, fused, anchor, last)

    def body(buffers: list[tirx.Buffer], begin: Expr, end: Expr) -> None:
        names = dict(zip(buffers_read[2:], buffers[2:], strict=True))
        scratch, split = None, tasks is not None
        if panels.packed:
            needed = ranges.product([panels.size, count]) if split else panels.size
            scratch = registers([greatest(needed)], "float32")
        element = Epilogue(fused, anchor, last, names)
        loops = _PanelLoops(product, panels, *memory_of(buffers), scratch, split, element, anchor)
        with tasks_of(count, split, begin, end) as task:
            *indices, number = unravel(task, [*sizes, panels.number])
            pairs = reversed(list(zip(product.batch, indices, strict=True)))
            batch = {axis.var: bind(index) for axis, index in pairs}
            one_panel(panels.count, tile.columns, number, lambda first, n: loops.emit(batch, first, n, task))

    func = define(arguments_of(buffers_read, fused), tasks, body, False, ranges)
    return Kernel(func, tasks, {}, "contraction", ranges=ranges), buffers_read


def flat(buffer: tirx.Buffer, ranges: SymbolRanges, tables: Mapping[Any, Table] = NO_TABLES) -> Argument:
    """The kernel argument for `buffer`, as one-dimensional memory."""
    return Argument(buffer.name, [ranges.product(list(buffer.shape))], str(buffer.dtype), tables.get(buffer))


@dataclass(frozen=True)
class TileResult:
    """Destination of the sums of a tile: `columns` columns from column `first` of one batch."""

    element: Epilogue
    anchor: Nest
    product: MatmulNest
    batch: dict[Any, Expr]
    first: Expr
    columns: Extent

    def _element(self, row: Expr, column: Expr, value: Expr) -> None:
        bound = {**self.batch, self.product.columns.var: self.first + column}
        if self.product.rows is not None:
            bound[self.product.rows.var] = row
        self.element.store([bound[axis.var] for axis in self.anchor.axes], value)

    def store(self, row: Expr, vectors: Sequence[tuple[int, int]], sums: Sequence[Any], tile: Tile) -> None:
        """Store the sums of one row, without the columns that only pad the panel."""
        if is_dynamic(self.columns):
            self._store_dynamic(row, vectors, sums, tile)
            return
        for (offset, width), accumulator in zip(vectors, sums, strict=True):
            for begin, size in chunks(min(width, self.columns - offset), width):
                with vector(size) as lane:
                    value = load(accumulator, [int64(begin) + lane])
                    self._element(row, int64(offset + begin) + lane, value)

    def _store_dynamic(
        self, row: Expr, vectors: Sequence[tuple[int, int]], sums: Sequence[Any], tile: Tile
    ) -> None:
        """Store a row whose number of columns is known only at run time: it is copied to memory first."""
        line = registers([tile.columns], str(self.anchor.buffer.dtype))
        for (offset, width), accumulator in zip(vectors, sums, strict=True):
            with vector(width) as lane:
                store(line, [int64(offset) + lane], load(accumulator, [lane]))
        whole_vectors = divide(self.columns, tile.lanes)
        with serial(whole_vectors) as block, vector(tile.lanes) as lane:
            column = block * int64(tile.lanes) + lane
            self._element(row, column, load(line, [column]))
        with serial(modulo(self.columns, tile.lanes)) as rest:
            column = whole_vectors * int64(tile.lanes) + rest
            self._element(row, column, load(line, [column]))
