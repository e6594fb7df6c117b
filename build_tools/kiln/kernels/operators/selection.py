"""topk on CPUs: the best elements of a line in a heap, whose root is the worst of them.

The first k elements of a line become a heap; each later element that is better than the root replaces it, and
at the end the heap is taken apart from its worst element to its best (Williams, "Heapsort", 1964). So n
elements need n comparisons, most of them with the root alone, and few exchanges. Along the last axis a whole
block is compared with the root by its extreme, which vectors compute. Of equal elements the first is better,
as in ONNX and TFLite. If elements are NaN, positions are arbitrary but never outside the tensor.

Lines of at most `SHORT` elements have ranks instead (topk.py), which vectors compute without branches, and a
few elements across adjacent lines are inserted in registers (insertion.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from kiln.extents import Extent, extent
from kiln.kernels.operators import insertion
from kiln.kernels.operators import topk as ranks
from kiln.kernels.operators.threshold import (
    DTYPES,
    LANES,
    MOST_KEPT,
    ThresholdLine,
    capacity,
    combined,
    memory_types,
)
from kiln.tir.builder import bind, load, modulo, registers, serial, store
from kiln.tir.builder import divide as quotient
from kiln.tir.symbols import int64, is_dynamic
from kiln.tir.vector_expr import ramp

SHORT = 32
_NAMES = ("best", "at", "stored", "places", "order")  # of results and memory
# Bytes of a block whose extreme is compared with the root, and of one of the vectors that it consists of.
_BLOCK, _VECTOR = 256, 32


def topk(builder: Any, call: tvm.ir.Call, has_vectors: bool = False) -> Any:
    """Legalisation rule for relax.topk: the `k` largest or smallest elements along an axis, in order.

    A `k` below 1 means all elements. `has_vectors`: lines of adjacent elements are selected from by a
    threshold (threshold.py) where no more than its MOST_KEPT are kept.
    """
    attrs, data = call.attrs, call.args[0]
    axis = int(attrs.axis) % len(data.ty.shape)
    length = extent(data.ty.shape[axis])
    inserted = has_vectors and insertion.applies(
        [extent(size) for size in data.ty.shape], axis, int(attrs.k), str(data.ty.dtype)
    )
    if not inserted and ((not is_dynamic(length) and length <= SHORT) or (has_vectors and int(attrs.k) == 1)):
        return ranks.topk(builder, call)
    result_names, dtype = str(attrs.ret_type), str(attrs.dtype)
    adjacent = axis == len(data.ty.shape) - 1
    kept_limit = int(attrs.k) if int(attrs.k) > 0 or is_dynamic(length) else length
    by_threshold = has_vectors and adjacent and 0 < kept_limit <= MOST_KEPT and str(data.ty.dtype) in DTYPES

    def compute(x: Any) -> Any:
        sizes = [extent(size) for size in x.shape]
        count = int(attrs.k) if int(attrs.k) > 0 else sizes[axis]
        shape = [*sizes[:axis], count, *sizes[axis + 1 :]]
        dtypes = [str(x.dtype), dtype]
        selection = _Selection(sizes, axis, count, bool(attrs.largest), str(x.dtype), dtype, inserted)
        shapes = [shape, shape]
        if by_threshold:  # further outputs, which nobody reads, are memory of the kernel
            memory = memory_types(str(x.dtype))
            shapes += [[capacity(count) + LANES]] * len(memory)
            dtypes += memory
        outputs = [
            tirx.decl_buffer(shape, element_type, name)
            for shape, element_type, name in zip(shapes, dtypes, _NAMES, strict=False)
        ]
        values, indices, *_ = te.extern(
            shapes, [x], lambda i, o: selection.write(i[0], *o), dtype=dtypes, out_buffers=outputs
        )
        return {"values": values, "indices": indices}.get(result_names, [values, indices])

    return builder.call_te(compute, data, primfunc_name_hint="topk")


class _Selection:
    """Writes the `kept` best elements of each line along `axis` of a tensor of shape `sizes`."""

    def __init__(
        self, sizes: Sequence[Extent], axis: int, kept: Extent, largest: bool, dtype: str, index_dtype: str,
        inserted: bool,
    ) -> None:  # fmt: skip
        """`inserted`: whether lines that differ in the last index are read together (insertion.py)."""
        self.sizes, self.axis, self.kept, self.largest = sizes, axis, kept, largest
        self.dtype, self.index_dtype, self.inserted = dtype, index_dtype, inserted

    def write(self, source: Any, values: Any, indices: Any, *stored: Any) -> Any:
        """The statement that selects from the buffer `source` into the buffers `values` and `indices`.

        `stored`: the memory of a ThresholdLine; without it, the lines are selected from by heaps.
        """
        line_sizes = [size for number, size in enumerate(self.sizes) if number != self.axis]
        last = line_sizes.pop() if self.inserted else 1
        count: Extent = 1
        for size in line_sizes:
            count = count * size
        with IRBuilder() as ir, serial(count) as number:
            line: list[Expr] = []
            for size in reversed(line_sizes):
                line.insert(0, bind(modulo(number, size)))
                number = quotient(number, size)
            if self.inserted:
                lines = insertion.Insertion(source, (values, indices), line, self.axis, self.largest)
                lines.write(self.sizes[self.axis], int(self.kept), int(last))
            elif stored:
                kept, length = int(self.kept), self.sizes[self.axis]
                ThresholdLine(source, (values, indices), stored, line, length, kept, self.largest).write()
            else:
                _Line(self, source, values, indices, line).write()
        return ir.get()

    def better(self, a: Expr, b: Expr) -> Expr:
        """Whether `a` comes before `b`, whatever their positions."""
        return a > b if self.largest else a < b


class _Line:
    """Writes the selection of one line: a heap in the line of the results."""

    def __init__(
        self, selection: _Selection, source: Any, values: Any, indices: Any, line: list[Expr]
    ) -> None:
        """`line`: indices of the axes other than that of the selection."""
        self.selection, self.source, self.line = selection, source, line
        self.values, self.indices = values, indices
        # The element that sinks into the heap, its position, where it is, and a child's value.
        self.item, self.child = registers([1], selection.dtype), registers([1], selection.dtype)
        self.item_at, self.child_at = (registers([1], selection.index_dtype) for _ in range(2))
        self.place, self.below = registers([1], "int64"), registers([1], "int64")

    def _at(self, position: Expr) -> list[Expr]:
        return [*self.line[: self.selection.axis], position, *self.line[self.selection.axis :]]

    def write(self) -> None:
        """Emit the selection."""
        selection = self.selection
        length, heap_size = int64(selection.sizes[selection.axis]), int64(selection.kept)
        with serial(heap_size) as first:
            self._put(first, load(self.source, self._at(first)), tirx.Cast(selection.index_dtype, first))
        with serial(quotient(heap_size, 2)) as step:
            root = quotient(heap_size, 2) - int64(1) - step
            self._take(root)
            self._sink(root, heap_size)
        self._rest(heap_size, length)
        with serial(heap_size - int64(1)) as step:
            last = heap_size - int64(1) - step
            self._take(last)
            self._put(last, load(self.values, self._at(int64(0))), load(self.indices, self._at(int64(0))))
            self._sink(int64(0), last)

    def _rest(self, heap_size: Expr, length: Expr) -> None:
        """Emit the comparison of the elements from `heap_size` on with the root, by blocks at first."""
        unsorted = length - heap_size
        lanes = _VECTOR * 8 // int(tvm.DataType(self.selection.dtype).bits)
        block = _BLOCK // _VECTOR * lanes
        done: Expr = int64(0)
        axis_extent = self.selection.sizes[self.selection.axis]
        along = self.selection.axis == len(self.selection.sizes) - 1 and self.selection.dtype != "bool"
        if along and (is_dynamic(axis_extent) or axis_extent - self._least_kept() >= block):
            blocks = bind(quotient(unsorted, block))
            with serial(blocks) as number:
                first = heap_size + number * int64(block)
                with (
                    script.If(self.selection.better(self._extreme(first, lanes), self._root())),
                    script.Then(),
                ):
                    self._each(first, int64(block))
            done = blocks * int64(block)
        self._each(heap_size + done, unsorted - done)

    def _least_kept(self) -> int:
        return 1 if is_dynamic(self.selection.kept) else int(self.selection.kept)

    def _root(self) -> Expr:
        return load(self.values, self._at(int64(0)))

    def _extreme(self, first: Expr, lanes: int) -> Expr:
        """The best value of the block from `first`."""
        combine: Callable[[Any, Any], Any] = tirx.max if self.selection.largest else tirx.min
        best = registers([lanes], self.selection.dtype)
        value = load(self.source, self._at(ramp(first, lanes)))
        for number in range(1, _BLOCK // _VECTOR):
            value = combine(value, load(self.source, self._at(ramp(first + int64(number * lanes), lanes))))
        store(best, [ramp(int64(0), lanes)], value)
        return combined(best, lanes, self.selection.dtype, combine)

    def _each(self, first: Expr, count: Expr) -> None:
        """Emit the comparison of `count` elements from `first` with the root."""
        with serial(count) as step:
            offset = first + step
            with (
                script.If(self.selection.better(load(self.source, self._at(offset)), self._root())),
                script.Then(),
            ):
                store(self.item, [int64(0)], load(self.source, self._at(offset)))
                store(self.item_at, [int64(0)], tirx.Cast(self.selection.index_dtype, offset))
                self._sink(int64(0), int64(self.selection.kept))

    def _put(self, place: Expr, value: Expr, position: Expr) -> None:
        store(self.values, self._at(place), value)
        store(self.indices, self._at(place), position)

    def _take(self, slot: Expr) -> None:
        """Emit the copy of the heap's element at `slot` into the item."""
        store(self.item, [int64(0)], load(self.values, self._at(slot)))
        store(self.item_at, [int64(0)], load(self.indices, self._at(slot)))

    def _worse(self, a: Expr, a_at: Expr, b: Expr, b_at: Expr) -> Expr:
        return tirx.any(self.selection.better(b, a), tirx.all(a == b, a_at > b_at))

    def _sink(self, root: Expr, size: Expr) -> None:
        """Emit the item's way down from `root` in a heap of `size` elements: worse children rise."""
        zero, one = [int64(0)], int64(1)
        item = load(self.item, zero), load(self.item_at, zero)
        child = load(self.child, zero), load(self.child_at, zero)
        slot, below = load(self.place, zero), load(self.below, zero)
        store(self.place, zero, root)
        store(self.below, zero, root * int64(2) + one)
        with script.While(below < size):
            with script.If(below + one < size), script.Then():
                left = load(self.values, self._at(below)), load(self.indices, self._at(below))
                right = load(self.values, self._at(below + one)), load(self.indices, self._at(below + one))
                store(self.below, zero, below + tirx.Cast("int64", self._worse(*right, *left)))
            store(self.child, zero, load(self.values, self._at(below)))
            store(self.child_at, zero, load(self.indices, self._at(below)))
            with script.If(self._worse(*child, *item)):
                with script.Then():
                    self._put(slot, *child)
                    store(self.place, zero, below)
                    store(self.below, zero, below * int64(2) + one)
                with script.Else():
                    store(self.below, zero, size)
        self._put(slot, *item)
