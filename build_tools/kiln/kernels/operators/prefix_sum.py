"""Prefix sums and products, for which TVM's own rules call libraries or handle one element after the other.

Along the last axis, a block of elements is scanned in registers: at step s every element is combined with the
element s positions before it, for s = 1, 2, 4, … (Hillis and Steele, "Data Parallel Algorithms", 1986), and
then with the last result of the previous block. Along another axis, scans are adjacent in memory: all scans
of a row advance together, one row of elements at a time. Sums of floats are not rounded in sequential order;
their error is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from kiln.extents import Extent, extent
from kiln.tir.builder import divide, load, modulo, registers, serial, store
from kiln.tir.symbols import int64, is_dynamic
from kiln.tir.vector_expr import ramp

Combine = Callable[[Any, Any], Any]

# Bytes of a block: two vector registers of the smallest size.
_BLOCK = 32


def scan_rule(compute: Any, combine: Combine, neutral: int) -> Any:
    """Legalisation rule for a scan with the operation `combine`, whose neutral element is `neutral`.

    `compute`: topi's scan, for results of another data type than the input's.
    """

    def rule(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        attrs = call.attrs
        data, dtype, exclusive = call.args[0], str(call.ty.dtype), bool(attrs.exclusive)
        axis = None if attrs.axis is None else int(attrs.axis) % len(data.ty.shape)
        if str(data.ty.dtype) != dtype:
            return builder.call_te(compute, data, axis, dtype, exclusive)
        if axis is None:
            data = builder.emit(relax.op.reshape(data, list(call.ty.shape)))
            axis = 0

        def scan(x: Any) -> Any:
            # The dynamic sizes of x have other variables here than in the module.
            sizes = [extent(size) for size in x.shape]
            writer = _Scan(sizes, axis, combine, tirx.const(neutral, dtype), exclusive)
            out = tirx.decl_buffer(x.shape, dtype, "scanned")
            return te.extern(
                [x.shape], [x], lambda i, o: writer.write(i[0], o[0]), dtype=dtype, out_buffers=[out]
            )

        return builder.call_te(scan, data, primfunc_name_hint="scan")

    return rule


class _Scan:
    """Writes scans along `axis` of a tensor of shape `sizes`, at least 1 each, which may be dynamic.

    `combine`: the operator of two elements, whose neutral element is `neutral`. `exclusive`: each result
    leaves its own element out.
    """

    def __init__(
        self, sizes: Sequence[Extent], axis: int, combine: Combine, neutral: Any, exclusive: bool
    ) -> None:
        self.before, self.length, self.last = list(sizes[:axis]), sizes[axis], axis == len(sizes) - 1
        self.row = math.prod(sizes[axis + 1 :])  # scans that are adjacent in memory
        self.combine, self.neutral, self.exclusive = combine, neutral, exclusive

    def write(self, source: Any, target: Any) -> Any:
        """The statement that scans the buffer `source` into the buffer `target`."""
        with IRBuilder() as ir, serial(math.prod(self.before)) as outer:
            (self._last_axis if self.last else self._other_axis)(source, target, outer)
        return ir.get()

    def _other_axis(self, source: Any, target: Any, outer: Expr) -> None:
        """Write the scans number `outer` of a tensor seen as [outer, length, row]: row after row."""
        x, y = (script.buffer_proxy(buffer) for buffer in (source, target))
        first = outer * int64(self.length * self.row)
        with serial(self.row) as j:
            y[first + j] = self.neutral if self.exclusive else x[first + j]
        with serial(self.length - 1) as step, serial(self.row) as j:
            last = first + step * int64(self.row) + j
            offset = last + int64(self.row)
            y[offset] = self.combine(y[last], x[last if self.exclusive else offset])

    def _last_axis(self, x: Any, y: Any, outer: Expr) -> None:
        """Write scan number `outer` along the last axis: whole blocks in registers, then single elements."""
        line: list[Expr] = []
        for size in reversed(self.before):
            line.insert(0, modulo(outer, size))
            outer = divide(outer, size)
        store(y, [*line, int64(0)], self.neutral if self.exclusive else load(x, [*line, int64(0)]))
        dtype = str(self.neutral.ty.dtype)
        lanes = _BLOCK * 8 // int(tvm.DataType(dtype).bits)
        whole_blocks, back = (self.length - 1) // lanes, int64(1 if self.exclusive else 0)
        if is_dynamic(whole_blocks) or whole_blocks:
            block, every = registers([lanes], dtype), ramp(int64(0), lanes)
            with serial(whole_blocks) as number:
                last = number * int64(lanes)
                store(block, [every], load(x, [*line, ramp(last + int64(1) - back, lanes)]))
                step = 1
                while step < lanes:
                    value = load(block, [every])
                    store(block, [every], self.combine(self._shifted(value, step, lanes), value))
                    step *= 2
                carried = tirx.Broadcast(load(y, [*line, last]), lanes)
                store(y, [*line, ramp(last + int64(1), lanes)], self.combine(carried, load(block, [every])))
        with serial(self.length - 1 - whole_blocks * lanes) as rest:
            offset = int64(whole_blocks * lanes + 1) + rest
            before = load(y, [*line, offset - int64(1)])
            store(y, [*line, offset], self.combine(before, load(x, [*line, offset - back])))

    def _shifted(self, value: Expr, step: int, lanes: int) -> Expr:
        """`value` shifted to higher lanes by `step`; the lanes before it get the neutral element."""
        picks = [lane if lane < step else lanes + lane - step for lane in range(lanes)]
        neutral = tirx.Broadcast(self.neutral, lanes)
        return tirx.Shuffle([neutral, value], [tirx.IntImm("int32", pick) for pick in picks])
