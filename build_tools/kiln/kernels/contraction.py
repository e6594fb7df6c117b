"""Products of two tensors that are both known only at run time: the batched matrix products of attention.

Computation  y[batch, m, n] = f(sum over k of a[batch, m, k] * b[batch, k, n]), f = whatever was fused behind.
             Both operands and the result may have their axes in any order, broadcast or repeated: what is
             an axis of which operand is read from the indices of the fused function.
Packing      The right operand, whose n is the last axis of the result, is read in place where its columns
             are neighbours and few rows of the result use them. Else each task packs its panel of columns
             as [k][NR] into scratch memory of its own; where k is contiguous, by transposing blocks in
             registers.
Schedule     Tile by kernels/gemm.py. A task is one panel of one batch: it packs, then goes down the rows.
Applies      matmul and einsum of two float32 operands, one reduced axis; the last axis of the result must
             belong to one operand only.
Accuracy     Sums run in order of k: the error of plain summation in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import sym, tirx
from tvm.ir import TensorLoad
from tvm.tirx.script.builder import ir as builder

from kiln.kernels.epilogue import Epilogue
from kiln.kernels.fused import Fused, Nest
from kiln.kernels.gemm import Tile, choose_tile
from kiln.kernels.kernel import (
    Argument,
    Expr,
    Kernel,
    Machine,
    argument,
    bind,
    chunks,
    define,
    divide,
    int64,
    load,
    modulo,
    registers,
    serial,
    store,
    vector,
)
from kiln.kernels.opinfo import OpInfo
from kiln.kernels.sweep import blocks, tasks_of
from kiln.kernels.transpose import transpose_block

# Panels are packed when more tiles of rows than this read them, or when their rows lie further apart.
_TILES_IN_PLACE = 2


@dataclass(frozen=True)
class Operand:
    """A tensor read at start + sum of index * stride over the axes of the nest (0: the axis is not its)."""

    buffer: Any
    strides: dict[Any, int]
    start: int

    def offset(self, indices: dict[Any, Expr]) -> Expr:
        """The position of the element at `indices`, those left out being 0."""
        total: Expr = int64(self.start)
        for variable, index in indices.items():
            if self.strides[variable]:
                total = total + index * int64(self.strides[variable])
        return total


def _operand(expr: Any, nest: Nest) -> Operand | None:
    if not isinstance(expr, TensorLoad):
        return None
    variables = [axis.var for axis in [*nest.axes, *nest.reduced]]
    position: Expr = int64(0)
    for index, size in zip(expr.indices, expr.source.shape, strict=True):
        position = position * size + index
    found = sym.detect_linear_equation(sym.Analyzer().simplify(position), variables)
    if len(found) != len(variables) + 1 or not all(isinstance(factor, tirx.IntImm) for factor in found):
        return None
    factors = [int(factor) for factor in found]
    return Operand(expr.source, dict(zip(variables, factors[:-1], strict=True)), factors[-1])


@dataclass(frozen=True)
class Product:
    """What is multiplied, and which axes are rows, columns and depth; `rows` is None for a vector."""

    left: Operand
    right: Operand
    rows: Any
    columns: Any
    depth: Any
    batch: list[Any]


def _extent(axis: Any) -> int:
    return 1 if axis is None else int(axis.dom.extent)


def read_product(nest: Nest) -> Product | None:
    """`nest` as a product of two operands, or None when it is none that this family can compute."""
    if len(nest.reduced) != 1 or not nest.axes or not isinstance(nest.value, tirx.Add):
        return None
    before, term = nest.value.a, nest.value.b
    if not isinstance(before, TensorLoad) or not before.source.same_as(nest.buffer):
        return None
    if not isinstance(term, tirx.Mul):
        return None
    first, second = _operand(term.a, nest), _operand(term.b, nest)
    if first is None or second is None:
        return None
    wide = [axis for axis in nest.axes if _extent(axis) != 1]
    columns = wide[-1] if wide else nest.axes[-1]
    if bool(first.strides[columns.var]) == bool(second.strides[columns.var]):
        return None  # an axis of both operands: vectors along it need no product's tiles
    left, right = (first, second) if second.strides[columns.var] else (second, first)
    only_left = [
        axis
        for axis in wide
        if axis is not columns and left.strides[axis.var] and not right.strides[axis.var]
    ]
    rows = max(only_left, key=_extent, default=None)
    batch = [axis for axis in nest.axes if axis is not columns and axis is not rows]
    return Product(left, right, rows, columns, nest.reduced[0], batch)


def applies(op: OpInfo, fused: Fused, anchor: Nest, _constants: set[int]) -> bool:
    """Whether this family can compute the group that begins with `op`."""
    if op["name"] not in ("matmul", "einsum") or str(anchor.buffer.dtype) != "float32":
        return False
    product = read_product(anchor)
    if product is None:
        return False
    buffers = [product.left.buffer, product.right.buffer]
    return all(buffer in fused.params and str(buffer.dtype) == "float32" for buffer in buffers)


class _Panels:
    """The columns of the right operand, `tile.columns` at a time: in place, or packed into scratch."""

    def __init__(self, product: Product, tile: Tile, rows: int) -> None:
        self.product, self.tile = product, tile
        right = product.right
        self.depth, self.count = _extent(product.depth), _extent(product.columns)
        self.step = right.strides[product.depth.var]
        self.column_step = right.strides[product.columns.var]
        near = self.step <= 2 * tile.columns or -(-rows // tile.rows) <= _TILES_IN_PLACE
        self.packed = not (self.column_step == 1 and near)

    @property
    def number(self) -> int:
        """Panels that cover all columns."""
        return -(-self.count // self.tile.columns)

    @property
    def size(self) -> int:
        """Elements of one packed panel."""
        return self.depth * self.tile.columns

    def vectors(self, columns: int) -> list[tuple[int, int]]:
        """(offset, width) of the vectors that a panel with `columns` columns is computed with."""
        lanes = self.tile.lanes
        if self.packed:
            return [(offset, lanes) for offset in range(0, columns, lanes)]
        return list(chunks(columns, lanes))

    def pack(self, source: Any, start: Expr, columns: int, target: Any, at: Expr) -> None:
        """Copy the panel that begins at source[start] to target[at] as [k][NR], zeros behind its columns."""
        width, lanes = self.tile.columns, self.tile.lanes
        filled = len(self.vectors(columns)) * lanes
        if filled > columns:
            with serial(self.depth) as k, vector(lanes) as lane:
                place = at + k * int64(width) + int64(filled - lanes) + lane
                store(target, [place], tirx.const(0, "float32"))
        if self.column_step == 1:
            with serial(self.depth) as k:
                for offset, size in chunks(columns, lanes):
                    with vector(size) as lane:
                        value = load(source, [start + k * int64(self.step) + int64(offset) + lane])
                        store(target, [at + k * int64(width) + int64(offset) + lane], value)
            return
        square = lanes if self.step == 1 else 1
        whole_columns, whole_depth = columns - columns % square, self.depth - self.depth % square
        if square > 1 and whole_columns and whole_depth:
            with serial(whole_columns // square) as block, serial(whole_depth // square) as part:
                column, k = block * int64(square), part * int64(square)
                here = start + column * int64(self.column_step) + k
                there = at + k * int64(width) + column
                transpose_block(source, here, self.column_step, target, there, width, square)
        else:
            whole_columns = whole_depth = 0
        self._copy(source, start, target, at, (0, whole_columns), (whole_depth, self.depth))
        self._copy(source, start, target, at, (whole_columns, columns), (0, self.depth))

    def _copy(
        self,
        source: Any,
        start: Expr,
        target: Any,
        at: Expr,
        columns: tuple[int, int],
        depth: tuple[int, int],
    ) -> None:
        """Copy a range of columns and of depth one element at a time."""
        if columns[0] == columns[1] or depth[0] == depth[1]:
            return
        with (
            serial(columns[1] - columns[0], columns[0]) as column,
            serial(depth[1] - depth[0], depth[0]) as k,
        ):
            value = load(source, [start + column * int64(self.column_step) + k * int64(self.step)])
            store(target, [at + k * int64(self.tile.columns) + column], value)


def make(op: OpInfo, fused: Fused, anchor: Nest, last: Nest, machine: Machine) -> tuple[Kernel, list[Any]]:
    """The kernel of `anchor` and of what follows it up to `last`, and the buffers of its parameters."""
    product = read_product(anchor)
    assert product is not None, op
    left, right = product.left, product.right
    rows = _extent(product.rows)
    tile = choose_tile(machine, rows, _extent(product.columns))
    panels = _Panels(product, tile, rows)
    sizes = [_extent(axis) for axis in product.batch]
    count = panels.number
    for size in sizes:
        count *= size
    tasks = count if machine.parallel else None

    extra: list[Any] = []
    if last is not anchor:
        read = fused.inputs(last, [*fused.params, anchor.buffer])
        extra = [buffer for buffer in read if not buffer.same_as(anchor.buffer)]
    arguments = [_flat(left.buffer), _flat(right.buffer), *(argument(buffer) for buffer in extra)]
    arguments.append(argument(last.buffer))
    buffers_read = [left.buffer, right.buffer, *extra, last.buffer]

    def body(buffers: list[Any], begin: Expr, end: Expr) -> None:
        names = dict(zip([*extra, last.buffer], buffers[2:], strict=True))
        element = Epilogue(fused, anchor, last, names)
        scratch = None
        if panels.packed:
            scratch = registers([panels.size * (count if tasks is not None else 1)], "float32")

        def panel(batch: dict[Any, Expr], first: Expr, columns: int, task: Expr) -> None:
            right_start = bind(right.offset({**batch, product.columns.var: first}))
            source, step = buffers[1], panels.step
            if scratch is not None:
                place = bind(task * int64(panels.size) if tasks is not None else int64(0))
                panels.pack(source, right_start, columns, scratch, place)
                source, step, right_start = scratch, tile.columns, place
            left_start = bind(left.offset(batch))

            def rows_from(first_row: Expr, number: int) -> None:
                numbers = [bind(first_row + int64(index)) for index in range(number)]
                row_step = int64(0 if product.rows is None else left.strides[product.rows.var])
                bases = [bind(left_start + row * row_step) for row in numbers]
                vectors = panels.vectors(columns)
                depth_step = left.strides[product.depth.var]
                sums = _sums(panels.depth, buffers[0], bases, depth_step, source, right_start, step, vectors)
                for row, row_sums in zip(numbers, sums, strict=True):
                    for (offset, _), total in zip(vectors, row_sums, strict=True):
                        _finish(element, last, anchor, product, batch, row, first, offset, columns, total)

            blocks(rows, tile.rows, rows_from)

        with tasks_of(count, tasks is not None, begin, end) as task:
            batch: dict[Any, Expr] = {}
            remaining = divide(task, panels.number)
            for axis, size in reversed(list(zip(product.batch, sizes, strict=True))):
                batch[axis.var] = bind(modulo(remaining, size))
                remaining = divide(remaining, size)
            _one_panel(panels, modulo(task, panels.number), lambda first, n: panel(batch, first, n, task))

    func = define(arguments, tasks, body, aliases=False)
    return Kernel(func, tasks, {}, "contraction"), buffers_read


def _flat(buffer: Any) -> Argument:
    size = 1
    for extent in buffer.shape:
        size *= int(extent)
    return Argument(buffer.name, [size], str(buffer.dtype))


def _one_panel(panels: _Panels, number: Expr, visit: Any) -> None:
    """visit(first column, columns) for panel `number`, of which the last may be narrower."""
    width = panels.tile.columns
    whole = panels.count // width
    if not panels.count % width:
        visit(bind(number * int64(width)), width)
        return
    if not whole:
        visit(int64(0), panels.count)
        return
    with builder.If(number < int64(whole)), builder.Then():
        visit(bind(number * int64(width)), width)
    with builder.If(number >= int64(whole)), builder.Then():
        visit(int64(whole * width), panels.count - whole * width)


def _sums(
    depth: int,
    left: Any,
    bases: Sequence[Expr],
    left_step: int,
    right: Any,
    start: Expr,
    right_step: int,
    vectors: Sequence[tuple[int, int]],
) -> list[list[Any]]:
    """Emit the loop over k of one tile; the sums, by row and vector, each a buffer of one vector."""
    sums = [[registers([width], "float32") for _, width in vectors] for _ in bases]
    for row in sums:
        for total, (_, width) in zip(row, vectors, strict=True):
            with vector(width) as lane:
                store(total, [lane], tirx.const(0, "float32"))
    with serial(depth) as k:
        for base, row in zip(bases, sums, strict=True):
            factor = load(left, [base + k * int64(left_step)])
            for total, (offset, width) in zip(row, vectors, strict=True):
                with vector(width) as lane:
                    value = load(right, [start + k * int64(right_step) + int64(offset) + lane])
                    store(total, [lane], load(total, [lane]) + factor * value)
    return sums


def _finish(
    element: Epilogue,
    last: Nest,
    anchor: Nest,
    product: Product,
    batch: dict[Any, Expr],
    row: Expr,
    first: Expr,
    offset: int,
    columns: int,
    total: Any,
) -> None:
    """Store one vector of sums, as far as its columns are real."""
    width = int(total.shape[0])
    for begin, size in chunks(min(width, columns - offset), width):
        with vector(size) as lane:
            bound = dict(batch)
            bound[product.columns.var] = first + int64(offset + begin) + lane
            if product.rows is not None:
                bound[product.rows.var] = row
            element.store([bound[axis.var] for axis in anchor.axes], load(total, [int64(begin) + lane]))
