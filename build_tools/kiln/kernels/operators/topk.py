"""argmax, argmin and topk as sums and extremes, which become vectorised loops like any other operator.

TVM's own definitions are reductions of pairs, one element at a time, and a sort in a library. In this module
an argmax is the extreme, and then the least position that holds the extreme; so is topk of one element. For
more elements, the rank of an element is the number of elements that come before it; equal elements are
ordered by index, as in ONNX and TFLite. That takes n * n comparisons for n elements, a vector of them at a
time. If elements are NaN, positions are arbitrary but never outside the tensor.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax, te, tirx

from kiln.tir.symbols import int64


def _int32(value: Any) -> Any:
    return tirx.Cast("int32", value)


def _at(indices: Any, axis: int, position: Any) -> list[Any]:
    """`indices` with the index of `axis` replaced by `position`."""
    return [*indices[:axis], position, *indices[axis + 1 :]]


def _reducer(largest: bool, dtype: str) -> Any:
    """The reducer to the greatest or least element, which of floats may be infinite."""
    if not dtype.startswith("float"):
        return te.max if largest else te.min
    choose, start = (tirx.max, -math.inf) if largest else (tirx.min, math.inf)
    return te.comm_reducer(lambda a, b: choose(a, b), lambda _: tirx.FloatImm(dtype, start), name="best")


def _extreme(x: Any, axis: int, largest: bool, keeps: bool) -> tuple[Any, Any]:
    """The largest or smallest element of each line of `x` along `axis`, and its first position as int32.

    `keeps`: whether the results have the axis, with size 1.
    """
    best_of, size, after = _reducer(largest, str(x.dtype)), x.shape[axis], axis + 1 if keeps else axis
    k, p = (te.reduce_axis((0, size), name=name) for name in ("k", "p"))
    shape = [*x.shape[:axis], *([int64(1)] if keeps else []), *x.shape[axis + 1 :]]
    best = te.compute(shape, lambda *i: best_of(x(*i[:axis], k, *i[after:]), axis=k), name="best")

    def first_position(*i: Any) -> Any:
        is_best = x(*i[:axis], p, *i[after:]) == best(*i)
        return te.min(tirx.Select(is_best, _int32(p), _int32(size - 1)), axis=p)

    return best, te.compute(shape, first_position, name="first")


def arg_extreme(largest: bool) -> Any:
    """Legalisation rule for relax.argmax (`largest`) or relax.argmin; of equal elements, the first counts."""

    def rule(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        data, keeps = call.args[0], bool(call.attrs.keepdims)
        flat = call.attrs.axis is None
        axis = 0 if flat else int(call.attrs.axis) % len(data.ty.shape)
        result_shape, dtype = list(call.ty.shape), str(call.ty.dtype)
        if flat:
            count: Any = int64(1)
            for size in data.ty.shape:
                count = count * size
            data = builder.emit(relax.op.reshape(data, [tvm.sym.Analyzer().simplify(count)]))

        def compute(x: Any) -> Any:
            _, first = _extreme(x, axis, largest, keeps=False)

            def result(*i: Any) -> Any:
                reduced = list(i) if not keeps else ([] if flat else [*i[:axis], *i[axis + 1 :]])
                return tirx.Cast(dtype, first(*reduced))

            return te.compute(result_shape, result, name="position")

        return builder.call_te(compute, data, primfunc_name_hint="argmax" if largest else "argmin")

    return rule


def topk(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """Legalisation rule for relax.topk: the `k` largest or smallest elements along an axis, in order.

    A `k` below 1 means all elements.
    """
    attrs = call.attrs
    axis, largest = int(attrs.axis) % len(call.args[0].ty.shape), bool(attrs.largest)
    result_names, dtype = str(attrs.ret_type), str(attrs.dtype)

    def extreme(x: Any) -> Any:
        values, places = _extreme(x, axis, largest, keeps=True)
        indices = te.compute(values.shape, lambda *i: tirx.Cast(dtype, places(*i)), name="index")
        return {"values": values, "indices": indices}.get(result_names, [values, indices])

    def compute(x: Any) -> Any:
        if int(attrs.k) == 1:
            return extreme(x)
        size = x.shape[axis]
        shape = _at(list(x.shape), axis, int64(int(attrs.k)) if int(attrs.k) > 0 else size)
        j, e = te.reduce_axis((0, size), name="j"), te.reduce_axis((0, size), name="e")

        def rank(*i: Any) -> Any:
            other_element, own_element = x(*_at(i, axis, j)), x(*i)
            before = other_element > own_element if largest else other_element < own_element
            return te.sum(
                _int32(tirx.any(before, tirx.all(other_element == own_element, j < i[axis]))), axis=j
            )

        ranks = te.compute(x.shape, rank, name="rank")

        def position(*i: Any) -> Any:
            has_rank = ranks(*_at(i, axis, e)) == _int32(i[axis])
            return te.sum(tirx.Select(has_rank, _int32(e), tirx.IntImm("int32", 0)), axis=e)

        places = te.compute(shape, position, name="place")

        def inside(*i: Any) -> Any:  # ranks of NaN may be equal, and positions sums of several
            return te.max(te.min(places(*i), _int32(size - 1)), tirx.IntImm("int32", 0))

        def value(*i: Any) -> Any:
            return x(*_at(i, axis, tirx.Cast("int64", inside(*i))))

        values = te.compute(shape, value, name="value")
        indices = te.compute(shape, lambda *i: tirx.Cast(dtype, inside(*i)), name="index")
        return {"values": values, "indices": indices}.get(result_names, [values, indices])

    return builder.call_te(compute, call.args[0], primfunc_name_hint="topk")
