"""Resize by sizes, scales or a region that only the run knows, and of dynamic sizes with any attributes.

Positions and weights are as in kiln.frontend.onnx.resample, computed in float64 by kernels of the run: for
each axis a table of neighbours and weights, or, with antialias, a matrix. The run counts sizes of the result
(kiln.frontend.counted) that are not known before.
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

from kiln.extents import Extent
from kiln.frontend.counted import movement
from kiln.frontend.counted.memory import serial
from kiln.frontend.counted.movement import element
from kiln.frontend.onnx import run_nearest
from kiln.frontend.onnx.integer_resize import rounded
from kiln.frontend.onnx.known_parts import known_parts
from kiln.frontend.onnx.node import Node, as_tensor
from kiln.frontend.onnx.resample import Rule, rule_with_rounding
from kiln.frontend.onnx.value import Ratio, from_items
from kiln.frontend.symbols import int64, int64_of

_EXACT = 1024  # greatest divisor of scales whose product with a size is rounded nowhere


def _float64(value: Any) -> Any:
    """A number as float64; 32-bit processors convert no longer integers."""
    if isinstance(value, (int, float)):
        return tirx.const(float(value), "float64")
    if str(value.ty.dtype) == "int64":
        value = tirx.Cast("int32", value)
    return tirx.Cast("float64", value)


def _float32(value: Any) -> Any:
    """A number as float32."""
    return tirx.Cast("float32", _float64(value))


def _floor_int32(value: Any) -> Any:
    """The greatest int32 that is not above a float."""
    truncated = tirx.Cast("int32", value)
    return truncated - tirx.Cast("int32", tirx.Cast(str(value.ty.dtype), truncated) > value)


class RunResize:
    """A Resize of `axes`, of the sizes `old`, by sizes (input 3), or by scales.

    scales: the tensor of the scales; None: the node has sizes. scales_known: the scales as numbers and
    Ratios; None: only the run knows them.
    """

    def __init__(
        self, node: Node, rule: Rule, axes: Sequence[int], scales: Any,
        scales_known: Sequence[Any] | None, policy: str,
    ) -> None:  # fmt: skip
        self.node, self.rule, self.axes, self.policy = node, rule, axes, policy
        self.old = [node.shape(0)[axis] for axis in axes]
        self._by_scales, self._given = scales is not None, scales_known
        self._numbers = scales if scales is not None else node.tensor(3)
        shape = [int(size) for size in self._numbers.ty.shape]
        if shape != [len(axes)]:
            noun = "scales" if self._by_scales else "sizes"
            raise ValueError(f"its {noun} have the shape {shape}, allowed: [{len(axes)}], one for each axis")
        self._extents = node.builder.emit(as_tensor(from_items(self.old)))
        self._ratios = movement.move(
            node.builder, [len(axes)], [self._numbers, self._extents], self._ratio, "resize_scales"
        )

    def _ratio(self, indices: Any, numbers: Any, extents: Any) -> Any:
        """The scale of an axis, in float64."""
        if self._by_scales:
            return _float64(numbers(indices[0]))
        if self.policy == "stretch":
            return _float64(numbers(indices[0])) / _float64(extents(indices[0]))
        ratios = [_float64(numbers(int64(k))) / _float64(extents(int64(k))) for k in range(len(self.axes))]
        return reduce(tirx.min if self.policy == "not_larger" else tirx.max, ratios)

    def result(self, region: Any) -> Any:
        """The resized data. `region`: float64, starts of the axes, then ends; None for whole axes."""
        data = self.node.tensor(0)
        numbers = range(len(self.axes))
        for number in reversed(numbers) if self.rule.rounded_to else numbers:
            axis, new = self.axes[number], self._size(number)
            if region is None and self._is_unchanged(number, new):
                continue
            scale = None if self._given is None else self._given[number]
            rule = rule_with_rounding(self.rule, scale)
            if self._by_scales and (exact := run_nearest.exact_scale(rule, scale)) is not None:
                data = run_nearest.resized(self.node, data, rule, exact, axis, int64_of(new))
                continue
            data = _ResizedAxis(self.node, rule, axis, self.old[number], new).resized(
                data, [self._ratios, *([] if region is None else [region])], number, len(self.axes)
            )
            if rule.rounded_to:
                data = rounded(self.node.builder.emit, data, rule.rounded_to)
        return data

    def _is_unchanged(self, number: int, new: Extent) -> bool:
        scale = self._given[number] if self._given is not None else None
        keeps_all = scale == 1 if self._by_scales else self.policy == "stretch"
        return bool(keeps_all) and self.node.symbols.equal(new, self.old[number])

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
            size = known_parts(node, 3)[number]
            if self.policy == "stretch" and size is not None:
                return size
            most = size if self.policy == "not_larger" else None

        def count(numbers: Any, ratios: Any, extents: Any) -> Any:
            new_size, old_size = self._new_size_of(number, numbers, ratios, extents), element(extents, number)
            return tirx.Select(tirx.any(old_size > int64(0), new_size == int64(0)), new_size, int64(-1))

        values = [self._numbers, self._ratios, self._extents]
        counted = movement.number(node.builder, values, count, "resize_size")
        return movement.size(
            node.builder, node.symbols, node.outputs[0], self.axes[number], counted, most
        )  # fmt: skip

    def _new_size_of(self, number: int, numbers: Any, ratios: Any, extents: Any) -> Any:
        old_size = tirx.Cast("int32", element(extents, number))
        if self._by_scales:  # the product is rounded to float32, as in ONNX Runtime
            scale = tirx.Cast("float32", numbers(int64(number)))
            return tirx.Cast("int64", _floor_int32(scale * tirx.Cast("float32", old_size)))
        if self.policy == "stretch":
            return element(numbers, number)
        return tirx.Cast("int64", _floor_int32(ratios(int64(number)) * _float64(old_size) + _float64(0.5)))


class _ResizedAxis:
    """An axis that is resized from `old` to `new` elements."""

    def __init__(self, node: Node, rule: Rule, axis: int, old: Extent, new: Extent) -> None:
        self.node, self.rule, self.axis = node, rule, axis
        self.old, self.new = int64_of(old), int64_of(new)
        # Kernels that do not read the data do not know its size.
        self._size = node.builder.emit(as_tensor(from_items([old])))

    def _length(self, size: Any) -> Any:
        """The number of elements of the data along the axis; `size` is a vector of this number."""
        return self.old if isinstance(self.old, tirx.IntImm) else size(int64(0))

    def resized(self, data: Any, scales_and_region: Sequence[Any], number: int, count: int) -> Any:
        """`data` resized along the axis, `number` of `count`; `scales_and_region` has a region or none."""

        def position(index: Any, size: Any, scales: Any, *region: Any) -> Any:
            ends = [value(int64(entry)) for value in region for entry in (number, count + number)]
            numbers = [
                _float32(value) for value in (index[0], self._length(size), scales(int64(number)), *ends)
            ]
            return _float64(self._position(numbers[0], numbers[1], numbers[2], numbers[3:]))

        builder, emit_te = self.node.builder, self.node.builder.emit_te
        positions = movement.move(
            builder, [self.new], [self._size, *scales_and_region], position, "resize_at"
        )
        if self.rule.antialias and self.rule.mode != "nearest":
            matrix = emit_te(
                lambda places, scales: te.extern(
                    [[self.new, self.old]], [places, scales],
                    lambda i, o: self._matrix(i[0], i[1], number, o[0]), dtype=[str(data.ty.dtype)],
                    name="resize_weights",
                ),
                positions, scales_and_region[0], primfunc_name_hint="resize_weights",
            )  # fmt: skip
            result = self._product(data, matrix)
        else:
            result = self._sum_of_neighbours(data, positions)
        if self.rule.coordinates != "tf_crop_and_resize":
            return result
        shape = self._shape(data)
        return movement.move(
            builder, shape, [result, positions, self._size], self._or_extrapolation, "resize_outside"
        )

    def _shape(self, data: Any) -> list[Any]:
        shape = list(data.ty.shape)
        return [*shape[: self.axis], self.new, *shape[self.axis + 1 :]]

    def _position(self, index: Any, size: Any, scale: Any, ends: Sequence[Any]) -> Any:
        """The position in the data of an element of the result, in float32 (resample._position)."""
        half, unit = _float32(0.5), _float32(1)
        old, new, coordinates = size, _float32(self.new), self.rule.coordinates
        is_one = self.new == int64(1)
        if coordinates == "align_corners":
            return tirx.Select(is_one, _float32(0), index * (old - unit) / (scale * old - unit))
        if coordinates == "asymmetric":
            return index / scale
        if coordinates == "tf_half_pixel_for_nn":
            return (index + half) / scale
        if coordinates == "tf_crop_and_resize":
            start, end = ends
            only = half * (start + end) * (old - unit)
            if isinstance(self.new, tirx.IntImm) and int(self.new) == 1:
                return only
            return tirx.Select(
                is_one, only, start * (old - unit) + index * (end - start) * (old - unit) / (new - unit)
            )
        middle = (index + half) / scale - half
        if coordinates == "pytorch_half_pixel":
            return tirx.Select(is_one, _float32(0), middle)
        if coordinates == "half_pixel_symmetric":
            return old * half * (unit - new / (scale * old)) + middle
        return middle

    def _clamped(self, index: Any, size: Any) -> Any:
        return tirx.max(tirx.min(tirx.Cast("int64", index), size - int64(1)), int64(0))

    def _left_neighbour(self, position: Any) -> Any:
        """The element before a position, as int32: of a whole position the one before it."""
        return -_floor_int32(-position) - tirx.IntImm("int32", 1)

    def _sum_of_neighbours(self, data: Any, positions_of_result: Any) -> Any:
        """The weighted sums of the neighbours of the positions `positions_of_result`."""
        builder, axis, dtype = self.node.builder, self.axis, str(data.ty.dtype)
        nearest = self.rule.mode == "nearest"
        offsets = {"nearest": [0], "linear": [0, 1]}.get(self.rule.mode, [-1, 0, 1, 2])

        def neighbour(index: Any, positions: Any, size: Any) -> Any:
            position = positions(index[0])
            first = self._left_neighbour(position)
            after = tirx.Cast("int32", index[1]) + tirx.IntImm("int32", offsets[0])
            if nearest:
                after = tirx.Cast("int32", self._takes_next(position - _float64(first)))
            return self._clamped(first + after, self._length(size))

        shape = [self.new, len(offsets)]
        neighbours = movement.move(
            builder, shape, [positions_of_result, self._size], neighbour, "resize_places"
        )
        if nearest:
            return movement.move(
                builder, self._shape(data), [data, neighbours],
                lambda to, x, neighbours: x(*to[:axis], neighbours(to[axis], int64(0)), *to[axis + 1 :]),
                "resize",
            )  # fmt: skip

        def weight(index: Any, positions: Any, size: Any) -> Any:
            weights = self._weights(positions(index[0]), self._length(size), offsets)
            chosen = weights[-1]
            for number in reversed(range(len(weights) - 1)):
                chosen = tirx.Select(index[1] == int64(number), weights[number], chosen)
            return tirx.Cast(dtype, chosen / reduce(lambda a, b: a + b, weights))

        weights = movement.move(builder, shape, [positions_of_result, self._size], weight, "resize_weights")

        def total(to: Any, x: Any, indices: Any, weights: Any) -> Any:
            terms = [
                x(*to[:axis], indices(to[axis], int64(tap)), *to[axis + 1 :]) * weights(to[axis], int64(tap))
                for tap in range(len(offsets))
            ]
            return reduce(lambda a, b: a + b, terms)

        return movement.move(builder, self._shape(data), [data, neighbours, weights], total, "resize")

    def _weights(self, position: Any, size: Any, offsets: Sequence[int]) -> list[Any]:
        """The weights of the neighbours of a position; their sum need not be 1."""
        first = self._left_neighbour(position)
        ratio, limit = position - _float64(first), tirx.Cast("int32", size)
        weights = []
        for offset in offsets:
            weight = self._kernel(tirx.abs(_float64(offset) - ratio))
            neighbour = first + tirx.IntImm("int32", offset)
            if self.rule.exclude_outside:
                weight = tirx.Select(tirx.all(neighbour >= 0, neighbour < limit), weight, _float64(0))
            weights.append(weight)
        return weights

    def _takes_next(self, ratio: Any) -> Any:
        rounding, is_whole = self.rule.rounding, ratio == _float64(1)
        if rounding == "ceil":
            return tirx.const(True, "bool")
        if rounding == "floor":
            return is_whole
        half = _float64(0.5)
        return ratio > half if rounding == "round_prefer_floor" else ratio >= half

    def _kernel(self, x: Any) -> Any:
        """The weight of an element `x` >= 0 away."""
        if self.rule.mode == "linear":
            return tirx.max(_float64(1) - x, _float64(0))
        a = self.rule.cubic
        near = ((_float64(a + 2) * x - _float64(a + 3)) * x) * x + _float64(1)
        far = ((_float64(a) * x - _float64(5 * a)) * x + _float64(8 * a)) * x - _float64(4 * a)
        return tirx.Select(x <= _float64(1), near, tirx.Select(x < _float64(2), far, _float64(0)))

    def _matrix(self, positions: Any, scales: Any, number: int, out: Any) -> Any:
        """The statement that fills `out` [new, old] with the weights of an antialiased resize."""
        reach, dtype, zero = 1 if self.rule.mode == "linear" else 2, str(out.dtype), _float64(0)
        with IRBuilder() as ir, script.seq_scope(), serial(self.new) as row:
            step = tirx.min(tirx.BufferLoad(scales, [int64(number)]), _float64(1))
            position = tirx.BufferLoad(positions, [row])
            begin = self._left_neighbour(position)
            ratio = position - _float64(begin)
            first = _floor_int32(-_float64(reach) / step) + tirx.IntImm("int32", 1)
            taps = tirx.Cast("int64", tirx.IntImm("int32", 2) - first - first)

            def weight(tap: Any) -> tuple[Any, Any]:
                offset = first + tirx.Cast("int32", tap)
                value = self._kernel(tirx.abs((_float64(offset) - ratio) * step))
                neighbour = begin + offset
                if self.rule.exclude_outside:
                    inside = tirx.all(neighbour >= 0, neighbour < tirx.Cast("int32", self.old))
                    value = tirx.Select(inside, value, zero)
                return neighbour, value

            with serial(self.old) as column:
                script.buffer_store(out, tirx.const(0, dtype), [row, column])
            with serial(taps) as tap:
                neighbour, value = weight(tap)
                index = [row, self._clamped(neighbour, self.old)]
                script.buffer_store(out, tirx.BufferLoad(out, index) + tirx.Cast(dtype, value), index)
        return ir.get()

    def _product(self, data: Any, matrix: Any) -> Any:
        """The weighted means of the elements along the axis."""
        op, emit, rank = relax.op, self.node.builder.emit, len(data.ty.shape)
        total = emit(op.sum(matrix, [1], keepdims=True))
        weights = emit(op.permute_dims(emit(op.divide(matrix, total)), [1, 0]))
        order = [*(i for i in range(rank) if i != self.axis), self.axis]
        product = emit(op.matmul(emit(op.permute_dims(data, order)), weights))
        return emit(op.permute_dims(product, [int(i) for i in np.argsort(order)]))

    def _or_extrapolation(self, indices: Sequence[Any], x: Any, positions: Any, size: Any) -> Any:
        """An element of the result, or the extrapolation value where its position is outside of the data."""
        position = positions(indices[self.axis])
        inside = tirx.all(position >= _float64(0), position <= _float64(self._length(size) - int64(1)))
        return tirx.Select(inside, x(*indices), tirx.const(self.rule.extrapolation, str(x.dtype)))
