"""Reductions, Squeeze and Unsqueeze along axes that only the run knows.

Each axis of the result has a counted size (kiln.frontend.counted); its greatest value follows from the data.
Axes that are named twice, and a squeezed axis of more than one element, end the run with KILN_TOO_MANY.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from kiln.extents import Extent
from kiln.frontend.counted import movement
from kiln.frontend.counted.memory import COMBINE, serial
from kiln.frontend.counted.movement import element
from kiln.frontend.onnx.node import Node, as_tensor
from kiln.frontend.onnx.value import from_items
from kiln.frontend.symbols import int64, int64_of

_MOST_AXES = 8
Size = Callable[[Any, Any], Any]  # (flags of the axes, sizes of the data) → a size


def _neutral_element(kind: str, dtype: str) -> Any:
    """The result of a reduction of no elements."""
    if kind in ("sum", "prod"):
        return tirx.const(int(kind == "prod"), dtype)
    if dtype.startswith("float"):
        return tirx.const(float("-inf" if kind == "max" else "inf"), dtype)
    return tirx.min_value(dtype) if kind == "max" else tirx.max_value(dtype)


class RunAxes:
    """The axes in input `index` of a node, of a tensor with `rank` axes."""

    def __init__(self, node: Node, index: int, rank: int) -> None:
        """Raises ValueError for a dynamic number of axes, and for more axes than the tensor has."""
        shape = node.shape(index)
        length = shape[0] if shape else 1
        if not isinstance(length, int) or length > rank or rank > _MOST_AXES:
            raise ValueError(
                f"its axes (input '{node.inputs[index]}'), {length} of {rank}, are not known before the "
                f"model runs: allowed is a fixed number of them, of at most {_MOST_AXES} axes"
            )
        self.node, self.rank, self.count = node, rank, length
        self._sizes: dict[bool, list[Any]] = {}

        def flag(indices: Any, named: Any) -> Any:
            axes = [element(named, position) for position in range(length)]
            hits = [tirx.any(axis == indices[0], axis + int64(rank) == indices[0]) for axis in axes]
            return reduce(
                lambda a, b: a + b, (tirx.Select(hit, int64(1), int64(0)) for hit in hits), int64(0)
            )

        self.flags = movement.move(node.builder, [rank], [node.tensor(index)], flag, "axis_flags")
        self.extents = node.builder.emit(as_tensor(from_items(node.shape(0))))

    def is_valid(self, flags: Any) -> Any:
        """Whether every axis is named once, or not at all."""
        total = reduce(lambda a, b: a + b, (flags(int64(axis)) for axis in range(self.rank)), int64(0))
        once = [flags(int64(axis)) <= int64(1) for axis in range(self.rank)]
        return tirx.all(total == int64(self.count), *once)

    def size(self, axis: int, compute: Size, most: Extent) -> Any:
        """The variable of the size of an axis of the result, compute(flags, extents)."""

        def checked(flags: Any, extents: Any) -> Any:
            return tirx.Select(self.is_valid(flags), compute(flags, extents), int64(-1))

        node = self.node
        count = movement.number(node.builder, [self.flags, self.extents], checked, f"{node.op.lower()}_size")
        return movement.size(node.builder, node.symbols, node.outputs[0], axis, count, most)

    def value_of_unnamed(self, number: int, flags: Any, values: Callable[[int], Any]) -> Any:
        """values(axis) for the axis that is the `number`-th of the axes that are not named."""
        value, seen = int64(-1), int64(0)
        for axis in range(self.rank):
            is_kept = flags(int64(axis)) == int64(0)
            value = tirx.Select(tirx.all(is_kept, seen == int64(number)), values(axis), value)
            seen = seen + tirx.Select(is_kept, int64(1), int64(0))
        return value

    def sizes(self, keep: bool) -> list[Any]:
        """The sizes of a reduced tensor, the same for every reduction of the node."""
        if keep not in self._sizes:
            self._sizes[keep] = self._counted(keep)
        return self._sizes[keep]

    def _counted(self, keep: bool) -> list[Any]:
        shape, symbols = self.node.shape(0), self.node.symbols
        if not keep:
            most = _greatest(self.node, shape)
            return [
                self.size(number, self.size_of_unnamed(number), most)
                for number in range(self.rank - self.count)
            ]

        def kept_or_one(axis: int) -> Size:
            return lambda flags, extents: tirx.Select(
                flags(int64(axis)) == int64(0), extents(int64(axis)), int64(1)
            )

        # A reduced axis of no elements gets one.
        limits = [size if symbols.holds(size > 0) else _greatest(self.node, [size]) for size in shape]
        return [self.size(axis, kept_or_one(axis), most) for axis, most in enumerate(limits)]

    def size_of_unnamed(self, number: int) -> Size:
        """The size of the `number`-th of the axes that are not named."""
        return lambda flags, extents: self.value_of_unnamed(number, flags, lambda axis: extents(int64(axis)))

    def spread(self, values: Any) -> Any:
        """A tensor of the data's shape from one that is reduced with its axes kept."""

        def read(indices: Any, reduced: Any, flags: Any) -> Any:
            source = [
                tirx.Select(flags(int64(axis)) == int64(0), index, int64(0))
                for axis, index in enumerate(indices)
            ]
            return reduced(*source)

        return movement.move(self.node.builder, self.node.shape(0), [values, self.flags], read, "spread")

    def elements(self) -> Any:
        """The number of elements of the data that are reduced to one element: int64, shape (1,)."""

        def count(flags: Any, extents: Any) -> Any:
            reduced_sizes = [
                tirx.Select(flags(int64(axis)) == int64(0), int64(1), extents(int64(axis)))
                for axis in range(self.rank)
            ]
            return reduce(lambda a, b: a * b, reduced_sizes, int64(1))

        return movement.number(self.node.builder, [self.flags, self.extents], count, "reduced_elements")

    def reduced(self, kind: str, x: Any, keep: bool) -> Any:
        """The reduction of `x`, of the shape of the node's data, by sum, prod, max or min."""
        sizes, dtype = self.sizes(keep), str(x.ty.dtype)
        writer = _Reduction(self, kind, dtype, keep)

        def compute(data: Any, flags: Any) -> Any:
            shape = [int64_of(size) for size in sizes]
            return te.extern(
                [shape], [data, flags], lambda i, o: writer.statement(i, o[0], shape), dtype=[dtype],
                name=f"reduce_{kind}",
            )  # fmt: skip

        return self.node.builder.emit_te(compute, x, self.flags, primfunc_name_hint=f"reduce_{kind}")


def _greatest(node: Node, shape: Sequence[Extent]) -> Extent:
    """The greatest of some sizes in any run. Raises ValueError for a size without a bound."""
    limits = [node.symbols.greatest([size]) for size in shape]
    if not limits:
        return 1
    if any(size is None for size in limits):
        raise ValueError("its data have a size without a greatest value")
    return max(1, *(size for size in limits if size is not None))


class _Reduction:
    """Writes the statement of `RunAxes.reduced`."""

    def __init__(self, axes: RunAxes, kind: str, dtype: str, keep: bool) -> None:
        self.axes, self.kind, self.dtype, self.keep = axes, kind, dtype, keep

    def statement(self, inputs: Any, out: Any, shape: Sequence[Extent]) -> Any:
        """For each element of the result, a loop along the named axes."""
        self.x, self.flags = inputs
        with IRBuilder() as ir, script.seq_scope():
            self._for_each_index(shape, [], lambda indices: self._element(out, indices))
        return ir.get()

    def _flag(self, axis: Any) -> Any:
        return tirx.BufferLoad(self.flags, [axis])

    def _for_each_index(
        self, extents: Sequence[Extent], indices: list[Any], visit: Callable[[list[Any]], None]
    ) -> None:
        if len(indices) == len(extents):
            visit(indices)
            return
        with serial(extents[len(indices)]) as index:
            self._for_each_index(extents, [*indices, index], visit)

    def _element(self, out: Any, indices: list[Any]) -> None:
        begin = list(indices)
        if not self.keep:  # axes that are not named have their indices in order
            begin, seen = [], int64(0)
            for axis in range(self.axes.rank):
                is_kept = self._flag(int64(axis)) == int64(0)
                start_of_axis: Any = int64(0)
                for number, index in enumerate(indices):
                    start_of_axis = tirx.Select(
                        tirx.all(is_kept, seen == int64(number)), index, start_of_axis
                    )
                begin.append(start_of_axis)
                seen = seen + tirx.Select(is_kept, int64(1), int64(0))
        lengths = [
            tirx.Select(self._flag(int64(axis)) == int64(0), int64(1), self.x.shape[axis])
            for axis in range(self.axes.rank)
        ]

        def write(value: Any) -> None:
            script.buffer_store(out, value, indices)

        stored = tirx.BufferLoad(out, indices)
        combine = COMBINE[self.kind]
        write(_neutral_element(self.kind, self.dtype))

        def add(inner: list[Any]) -> None:
            index = [start + offset for start, offset in zip(begin, inner, strict=True)]
            write(combine(stored, tirx.BufferLoad(self.x, index)))

        self._for_each_index(lengths, [], add)


def squeeze(node: Node) -> Any:
    """Squeeze of axes that only the run knows."""
    if node.shape(1) == [0]:
        raise ValueError(
            f"its axes (input '{node.inputs[1]}') have no elements: leave the input out, "
            "by which all axes of size 1 are removed"
        )
    axes = RunAxes(node, 1, len(node.shape(0)))

    def checked(number: int) -> Size:
        def compute(flags: Any, extents: Any) -> Any:
            are_one = [
                tirx.any(flags(int64(axis)) == int64(0), extents(int64(axis)) == int64(1))
                for axis in range(axes.rank)
            ]
            return tirx.Select(tirx.all(*are_one), axes.size_of_unnamed(number)(flags, extents), int64(-1))

        return compute

    most = _greatest(node, node.shape(0))
    return _with_sizes(node, [axes.size(n, checked(n), most) for n in range(axes.rank - axes.count)])


def unsqueeze(node: Node) -> Any:
    """Unsqueeze at axes that only the run knows."""
    shape, length = node.shape(0), node.shape(1)
    if length and not isinstance(length[0], int):
        raise ValueError(
            f"its axes (input '{node.inputs[1]}') and their number are not known before the model runs: "
            "allowed is a fixed number"
        )
    axes = RunAxes(node, 1, len(shape) + (int(length[0]) if length else 1))

    def one_or_next(axis: int) -> Size:
        def compute(flags: Any, extents: Any) -> Any:
            before = reduce(lambda a, b: a + b, (flags(int64(n)) for n in range(axis)), int64(0))
            old_axis = tirx.max(tirx.min(int64(axis) - before, int64(len(shape) - 1)), int64(0))
            old_size = extents(old_axis) if shape else int64(1)
            return tirx.Select(flags(int64(axis)) == int64(0), old_size, int64(1))

        return compute

    most = _greatest(node, shape)
    return _with_sizes(node, [axes.size(axis, one_or_next(axis), most) for axis in range(axes.rank)])


def _with_sizes(node: Node, sizes: Sequence[Extent]) -> Any:
    """The elements of the node's data, in their order, in a tensor of `sizes`."""
    elements = node.symbols.product(node.shape(0))
    flat = node.builder.emit(relax.op.reshape(node.tensor(0), relax.ShapeExpr([elements])))
    return movement.in_shape(node.builder, flat, sizes, node.op.lower())
