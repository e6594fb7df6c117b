"""Look-up of every element of an 8-bit tensor in a table of 256 entries.

Computation  y[i] = table[x[i] as an unsigned byte].
Schedule     Tensors are flat. x86: the 16 entries of each of 16 parts are looked up with pshufb, which gives
             0 for indices whose top bit is set; adding 0x70 with saturation to x xor 16 * part sets it unless
             x is in that part. AArch64: tbl and tbx look up 64 entries each. Helium: vldrb loads entries
             from 16 offsets. Others: one element at a time.
Applies      The functions that lower/tables.py makes, where nothing was fused with them.
Accuracy     Exact.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from kiln.kernels.cpu.batch_matmul import flat
from kiln.opinfo.attach import OpInfo
from kiln.tir.builder import (
    Kernel,
    KernelAndBuffers,
    Machine,
    Sized,
    bind,
    define,
    int64,
    load,
    serial,
    store,
)
from kiln.tir.fused import Fused
from kiln.tir.symbols import ceil_div
from kiln.tir.tiled_loops import task_blocks
from kiln.tir.vector_expr import ramp

NAME = "table"
_ENTRIES = 256
_BLOCK = 4096  # elements of a task
# pshufb, by the bytes of a vector
_SHUFFLE = {
    16: "llvm.x86.ssse3.pshuf.b.128",
    32: "llvm.x86.avx2.pshuf.b",
    64: "llvm.x86.avx512.pshuf.b.512",
}
_X86 = ("sse4", "avx2", "avx512")


def applies(ops: list[OpInfo], fused: Fused) -> bool:
    """Whether this family computes a group of operators."""
    return [op["name"] for op in ops] == [NAME] and len(fused.nests) == 1 and not fused.origins


def make(fused: Fused, machine: Machine) -> KernelAndBuffers:
    """Make the kernel; return it with the buffers of its parameters."""
    x, entries, output = fused.params[0], fused.params[1], fused.nests[0].buffer
    ranges, buffers_read = fused.ranges, [x, entries, output]
    arm64 = machine.isa in ("neon", "sve") and machine.registers >= 32
    count, width = ranges.product(list(x.shape)), 16 if arm64 else machine.vector_bits // 8
    looked_up: Callable[[Any, Expr], Expr] | None = None
    if machine.isa in _X86 and width in _SHUFFLE:
        looked_up = functools.partial(_shuffled, width=width)
    elif arm64:
        looked_up = _looked_up
    elif machine.isa == "mve" and str(output.dtype) in ("int8", "uint8"):
        looked_up = _loaded
    blocks = ceil_div(count, _BLOCK)
    tasks = blocks if ranges.greatest(blocks) > 1 and machine.shares(ranges.greatest(count)) else None
    result_type = str(output.dtype)

    def body(buffers: list[tirx.Buffer], begin: Expr, end: Expr) -> None:
        data, table, out = (item.memory if isinstance(item, Sized) else item for item in buffers)

        def one(position: Expr) -> None:
            index = tirx.bitwise_and(tirx.Cast("int32", load(data, [position])), tirx.IntImm("int32", 255))
            store(out, [position], load(table, [tirx.Cast("int64", index)]))

        def several(position: Expr, looked_up: Callable[[Any, Expr], Expr]) -> None:
            indices = ramp(position, width)
            entries = bind(tirx.reinterpret(f"uint8x{width}", load(data, [indices])))
            value = looked_up(table, entries)
            store(out, [indices], tirx.reinterpret(f"{result_type}x{width}", value))

        def block(first: Expr, length: int) -> None:
            whole_vectors = length // width if looked_up else 0
            if looked_up and whole_vectors:
                with serial(whole_vectors) as number:
                    several(bind(first + number * int64(width)), looked_up)
            if length > whole_vectors * width:
                with serial(length - whole_vectors * width) as rest:
                    one(bind(first + int64(whole_vectors * width) + rest))

        task_blocks(count, _BLOCK, tasks is not None, begin, end, block)

    func = define([flat(buffer, ranges) for buffer in buffers_read], tasks, body, True, ranges)
    in_place = (0,) if str(x.dtype) == result_type else ()
    return Kernel(func, tasks, {}, NAME, in_place, ranges=ranges), buffers_read


def _shuffled(table: Any, x: Expr, width: int) -> Expr:
    """table[x] by pshufb; `x`: a variable of unsigned bytes."""
    kind = f"int8x{width}"

    def every(value: int) -> Expr:
        return tirx.Broadcast(tirx.const(value, "uint8"), width)

    result: Any = None
    for part_index in range(_ENTRIES // 16):
        sixteen = tirx.reinterpret("int8x16", load(table, [ramp(int64(16 * part_index), 16)]))
        lanes = [tirx.IntImm("int32", lane) for lane in range(width)]
        entries = sixteen if width == 16 else tirx.Shuffle([sixteen] * (width // 16), lanes)
        near = tirx.bitwise_xor(x, every(16 * part_index)) if part_index else x
        index = tirx.reinterpret(kind, tirx.min(near, every(0x8F)) + every(0x70))
        shuffled = tirx.call_llvm_pure_intrin(kind, _SHUFFLE[width], entries, index)
        result = shuffled if result is None else tirx.bitwise_or(result, shuffled)
    return result


def _loaded(table: Any, x: Expr) -> Expr:
    """table[x] by one load from 16 offsets; `x`: a variable of unsigned bytes."""
    name = "llvm.arm.mve.vldr.gather.offset.v16i8.p0.v16i8"
    kind, address = "int8x16", tirx.address_of(load(table, [int64(0)]))
    bits, shift, unsigned = (tirx.IntImm("int32", value) for value in (8, 0, 1))
    return tirx.call_llvm_intrin(kind, name, address, tirx.reinterpret(kind, x), bits, shift, unsigned)


def _looked_up(table: Any, x: Expr) -> Expr:
    """table[x] by tbl and tbx; `x`: a variable of 16 unsigned bytes."""
    kind, result = "int8x16", None
    for part_index in range(4):
        entries = [
            tirx.reinterpret(kind, load(table, [ramp(int64(64 * part_index + 16 * index), 16)]))
            for index in range(4)
        ]
        near = x - tirx.Broadcast(tirx.const(64 * part_index, "uint8"), 16) if part_index else x
        index = tirx.reinterpret(kind, near)
        if result is None:
            name = "llvm.aarch64.neon.tbl4.v16i8"
            result = tirx.call_llvm_pure_intrin(kind, name, *entries, index)
        else:
            name = "llvm.aarch64.neon.tbx4.v16i8"
            result = tirx.call_llvm_pure_intrin(kind, name, result, *entries, index)
    return result
