"""Resize by sizes, scales or a region that only the run knows, and of open sizes with any attributes.

Positions and weights are those of kiln.frontend.onnx.resample, computed in float64 by kernels of the run: for
each axis a table of places and weights, or, with antialias, a matrix. The sizes of the result are counted
(kiln.frontend.counted), except those that are known before the model runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from kiln.frontend.counted import movement
from kiln.frontend.counted.memory import serial
from kiln.frontend.counted.movement import element
from kiln.frontend.onnx.known_parts import known_parts
from kiln.frontend.onnx.node import Node, as_tensor
from kiln.frontend.onnx.resample import Rule, rule_of
from kiln.frontend.onnx.value import Ratio, from_items
from kiln.frontend.symbols import Extent, int64, int64_of

_EXACT = 1024  # greatest divisor of scales whose product with a size is rounded nowhere


def _double(value: Any) -> Any:
    """A number as float64; 32-bit processors convert no longer integers."""
    if isinstance(value, (int, float)):
        return tirx.const(float(value), "float64")
    if str(value.ty.dtype) == "int64":
        value = tirx.Cast("int32", value)
    return tirx.Cast("float64", value)


def _single(value: Any) -> Any:
    """A number as float32."""
    return tirx.Cast("float32", _double(value))


def _below(value: Any) -> Any:
    """The greatest int32 below or at a float."""
    whole = tirx.Cast("int32", value)
    return whole - tirx.Cast("int32", tirx.Cast(str(value.ty.dtype), whole) > value)


class RunResize:
    """A Resize of `axes`, of the sizes `old`, by sizes (input 3), or by scales.

    scales: input or constant of the scales; None: the node has sizes. known: the scales, as far as they are:
    numbers and Ratios.
    """

    def __init__(
        self,
        node: Node,
        rule: Rule,
        axes: Sequence[int],
        scales: Any,
        known: Sequence[Any] | None,
        policy: str,
    ) -> None:
        self.node, self.rule, self.axes, self.policy = node, rule, axes, policy
        self.old = [node.shape(0)[axis] for axis in axes]
        self._by_scales, self._given = scales is not None, known
        self._numbers = scales if scales is not None else node.tensor(3)
        given = [int(size) for size in self._numbers.ty.shape]
        if given != [len(axes)]:
            what = "scales" if self._by_scales else "sizes"
            raise ValueError(f"its {what} have the shape {given}, allowed: [{len(axes)}], one for each axis")
        self._extents = node.builder.emit(as_tensor(from_items(self.old)))
        self._ratios = movement.move(
            node.builder, [len(axes)], [self._numbers, self._extents], self._ratio, "resize_scales"
        )

    def _ratio(self, at: Any, numbers: Any, extents: Any) -> Any:
        """The scale of an axis, in float64."""
        if self._by_scales:
            return _double(numbers(at[0]))
        if self.policy == "stretch":
            return _double(numbers(at[0])) / _double(extents(at[0]))
        every = [_double(numbers(int64(k))) / _double(extents(int64(k))) for k in range(len(self.axes))]
        return reduce(tirx.min if self.policy == "not_larger" else tirx.max, every)

    def result(self, region: Any) -> Any:
        """The resized data. `region`: float64, the begins of the axes and their ends; None for whole axes."""
        data = self.node.tensor(0)
        for number, axis in enumerate(self.axes):
            new = self._size(number)
            if region is None and self._is_same(number, new):
                continue
            rule = rule_of(self.rule, None if self._given is None else self._given[number])
            data = _Axis(self.node, rule, axis, self.old[number], new).resized(
                data, [self._ratios, *([] if region is None else [region])], number, len(self.axes)
            )
        return data

    def _is_same(self, number: int, new: Extent) -> bool:
        scale = self._given[number] if self._given is not None else None
        whole = scale == 1 if self._by_scales else self.policy == "stretch"
        return bool(whole) and self.node.symbols.equal(new, self.old[number])

    def _size(self, number: int) -> Extent:
        """The new size of an axis: known before the model runs, or counted by it."""
        old, node, most = self.old[number], self.node, None
        if self._by_scales:
            scale = None if self._given is None else self._given[number]
            if isinstance(scale, Ratio):
                return node.symbols.simplify(old * scale.top // scale.bottom)
            if scale is not None:
                exact = Fraction(float(scale))
                if exact.denominator <= _EXACT:
                    return node.symbols.simplify(old * exact.numerator // exact.denominator)
                longest = node.symbols.greatest([old])
                most = None if longest is None else int(np.float32(scale) * np.float32(longest)) + 1
        else:
            wanted = known_parts(node, 3)[number]
            if self.policy == "stretch" and wanted is not None:
                return wanted
            most = wanted if self.policy == "not_larger" else None

        def count(numbers: Any, ratios: Any, extents: Any) -> Any:
            found, own = self._count(number, numbers, ratios, extents), element(extents, number)
            return tirx.Select(tirx.any(own > int64(0), found == int64(0)), found, int64(-1))

        values = [self._numbers, self._ratios, self._extents]
        counted = movement.number(node.builder, values, count, "resize_size")
        return movement.size(
            node.builder, node.symbols, node.outputs[0], self.axes[number], counted, most
        )  # fmt: skip

    def _count(self, number: int, numbers: Any, ratios: Any, extents: Any) -> Any:
        own = tirx.Cast("int32", element(extents, number))
        if self._by_scales:  # the product is rounded to float32, as in ONNX Runtime
            scale = tirx.Cast("float32", numbers(int64(number)))
            return tirx.Cast("int64", _below(scale * tirx.Cast("float32", own)))
        if self.policy == "stretch":
            return element(numbers, number)
        return tirx.Cast("int64", _below(ratios(int64(number)) * _double(own) + _double(0.5)))


class _Axis:
    """One axis, of `old` elements, of which `new` are made."""

    def __init__(self, node: Node, rule: Rule, axis: int, old: Extent, new: Extent) -> None:
        self.node, self.rule, self.axis = node, rule, axis
        self.old, self.new = int64_of(old), int64_of(new)
        # Kernels that do not read the data do not know its size.
        self._size = node.builder.emit(as_tensor(from_items([old])))

    def _length(self, size: Any) -> Any:
        """The number of elements of the data along the axis, of which the vector `size` tells."""
        return self.old if isinstance(self.old, tirx.IntImm) else size(int64(0))

    def resized(self, data: Any, given: Sequence[Any], number: int, count: int) -> Any:
        """`data` resized; `given`: the scales and, where there is one, the region of `count` axes."""

        def position(index: Any, size: Any, scales: Any, *region: Any) -> Any:
            ends = [one(int64(place)) for one in region for place in (number, count + number)]
            numbers = [_single(one) for one in (index[0], self._length(size), scales(int64(number)), *ends)]
            return _double(self._position(numbers[0], numbers[1], numbers[2], numbers[3:]))

        builder, emit_te = self.node.builder, self.node.builder.emit_te
        at = movement.move(builder, [self.new], [self._size, *given], position, "resize_at")
        if self.rule.antialias and self.rule.mode != "nearest":
            matrix = emit_te(
                lambda places, scales: te.extern(
                    [[self.new, self.old]], [places, scales],
                    lambda i, o: self._matrix(i[0], i[1], number, o[0]), dtype=[str(data.ty.dtype)],
                    name="resize_weights",
                ),
                at, given[0], primfunc_name_hint="resize_weights",
            )  # fmt: skip
            found = self._product(data, matrix)
        else:
            found = self._gathered(data, at)
        if self.rule.coordinates != "tf_crop_and_resize":
            return found
        shape = self._shape(data)
        return movement.move(builder, shape, [found, at, self._size], self._inside, "resize_outside")

    def _shape(self, data: Any) -> list[Any]:
        shape = list(data.ty.shape)
        return [*shape[: self.axis], self.new, *shape[self.axis + 1 :]]

    def _position(self, index: Any, size: Any, scale: Any, ends: Sequence[Any]) -> Any:
        """The position in the data of an element of the result, in float32 (resample._position)."""
        half, one = _single(0.5), _single(1)
        old, new, how = size, _single(self.new), self.rule.coordinates
        is_one = self.new == int64(1)
        if how == "align_corners":
            return tirx.Select(is_one, _single(0), index * (old - one) / (scale * old - one))
        if how == "asymmetric":
            return index / scale
        if how == "tf_half_pixel_for_nn":
            return (index + half) / scale
        if how == "tf_crop_and_resize":
            start, end = ends
            only = half * (start + end) * (old - one)
            if isinstance(self.new, tirx.IntImm) and int(self.new) == 1:
                return only
            return tirx.Select(
                is_one, only, start * (old - one) + index * (end - start) * (old - one) / (new - one)
            )
        middle = (index + half) / scale - half
        if how == "pytorch_half_pixel":
            return tirx.Select(is_one, _single(-0.5), middle)
        if how == "half_pixel_symmetric":
            return old * half * (one - new / (scale * old)) + middle
        return middle

    def _clamped(self, place: Any, size: Any) -> Any:
        return tirx.max(tirx.min(tirx.Cast("int64", place), size - int64(1)), int64(0))

    def _before(self, at: Any) -> Any:
        """The element before a position, as int32: of a whole position the one before it."""
        return -_below(-at) - tirx.IntImm("int32", 1)

    def _gathered(self, data: Any, at: Any) -> Any:
        """The weighted sums of the neighbours of the positions `at`."""
        builder, axis, dtype = self.node.builder, self.axis, str(data.ty.dtype)
        nearest = self.rule.mode == "nearest"
        offsets = {"nearest": [0], "linear": [0, 1]}.get(self.rule.mode, [-1, 0, 1, 2])

        def place(index: Any, positions: Any, size: Any) -> Any:
            position = positions(index[0])
            first = self._before(position)
            after = tirx.Cast("int32", index[1]) + tirx.IntImm("int32", offsets[0])
            if nearest:
                after = tirx.Cast("int32", self._takes_next(position - _double(first)))
            return self._clamped(first + after, self._length(size))

        shape = [self.new, len(offsets)]
        places = movement.move(builder, shape, [at, self._size], place, "resize_places")
        if nearest:
            return movement.move(
                builder, self._shape(data), [data, places],
                lambda to, x, places: x(*to[:axis], places(to[axis], int64(0)), *to[axis + 1 :]), "resize",
            )  # fmt: skip

        def weight(index: Any, positions: Any, size: Any) -> Any:
            each = self._weights(positions(index[0]), self._length(size), offsets)
            found = each[-1]
            for number in reversed(range(len(each) - 1)):
                found = tirx.Select(index[1] == int64(number), each[number], found)
            return tirx.Cast(dtype, found / reduce(lambda a, b: a + b, each))

        weights = movement.move(builder, shape, [at, self._size], weight, "resize_weights")

        def total(to: Any, x: Any, places: Any, weights: Any) -> Any:
            terms = [
                x(*to[:axis], places(to[axis], int64(tap)), *to[axis + 1 :]) * weights(to[axis], int64(tap))
                for tap in range(len(offsets))
            ]
            return reduce(lambda a, b: a + b, terms)

        return movement.move(builder, self._shape(data), [data, places, weights], total, "resize")

    def _weights(self, position: Any, size: Any, offsets: Sequence[int]) -> list[Any]:
        """The weights of the neighbours of a position; their sum need not be 1."""
        first = self._before(position)
        ratio, limit = position - _double(first), tirx.Cast("int32", size)
        found = []
        for offset in offsets:
            each = self._kernel(tirx.abs(_double(offset) - ratio))
            place = first + tirx.IntImm("int32", offset)
            if self.rule.exclude_outside:
                each = tirx.Select(tirx.all(place >= 0, place < limit), each, _double(0))
            found.append(each)
        return found

    def _takes_next(self, ratio: Any) -> Any:
        rounding, is_whole = self.rule.rounding, ratio == _double(1)
        if rounding == "ceil":
            return tirx.const(True, "bool")
        if rounding == "floor":
            return is_whole
        half = _double(0.5)
        return ratio > half if rounding == "round_prefer_floor" else ratio >= half

    def _kernel(self, x: Any) -> Any:
        """The weight of an element `x` >= 0 away."""
        if self.rule.mode == "linear":
            return tirx.max(_double(1) - x, _double(0))
        a = self.rule.cubic
        near = ((_double(a + 2) * x - _double(a + 3)) * x) * x + _double(1)
        far = ((_double(a) * x - _double(5 * a)) * x + _double(8 * a)) * x - _double(4 * a)
        return tirx.Select(x <= _double(1), near, tirx.Select(x < _double(2), far, _double(0)))

    def _matrix(self, places: Any, scales: Any, number: int, out: Any) -> Any:
        """The statement that fills `out` [new, old] with the weights of an antialiased resize."""
        reach, dtype, zero = 1 if self.rule.mode == "linear" else 2, str(out.dtype), _double(0)
        with IRBuilder() as ir, script.seq_scope(), serial(self.new) as row:
            step = tirx.min(tirx.BufferLoad(scales, [int64(number)]), _double(1))
            position = tirx.BufferLoad(places, [row])
            begin = self._before(position)
            ratio = position - _double(begin)
            first = _below(-_double(reach) / step) + tirx.IntImm("int32", 1)
            taps = tirx.Cast("int64", tirx.IntImm("int32", 2) - first - first)

            def weight(tap: Any) -> tuple[Any, Any]:
                offset = first + tirx.Cast("int32", tap)
                found = self._kernel(tirx.abs((_double(offset) - ratio) * step))
                place = begin + offset
                if self.rule.exclude_outside:
                    inside = tirx.all(place >= 0, place < tirx.Cast("int32", self.old))
                    found = tirx.Select(inside, found, zero)
                return place, found

            with serial(self.old) as column:
                script.buffer_store(out, tirx.const(0, dtype), [row, column])
            with serial(taps) as tap:
                place, found = weight(tap)
                index = [row, self._clamped(place, self.old)]
                script.buffer_store(out, tirx.BufferLoad(out, index) + tirx.Cast(dtype, found), index)
        return ir.get()

    def _product(self, data: Any, matrix: Any) -> Any:
        """The weighted means of the elements along the axis."""
        op, emit, rank = relax.op, self.node.builder.emit, len(data.ty.shape)
        total = emit(op.sum(matrix, [1], keepdims=True))
        weights = emit(op.permute_dims(emit(op.divide(matrix, total)), [1, 0]))
        order = [*(i for i in range(rank) if i != self.axis), self.axis]
        product = emit(op.matmul(emit(op.permute_dims(data, order)), weights))
        return emit(op.permute_dims(product, [int(i) for i in np.argsort(order)]))

    def _inside(self, at: Sequence[Any], x: Any, places: Any, size: Any) -> Any:
        """An element of the result, or the extrapolation value where its position is outside of the data."""
        position = places(at[self.axis])
        inside = tirx.all(position >= _double(0), position <= _double(self._length(size) - int64(1)))
        return tirx.Select(inside, x(*at), tirx.const(self.rule.extrapolation, str(x.dtype)))
