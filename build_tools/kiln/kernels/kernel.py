"""What a kernel family returns, and the few helpers with which families write loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as builder

from kiln.kernels.choices import Choices

Array = npt.NDArray[Any]
Pack = Callable[[Array], Array]
Expr = Any


@dataclass(frozen=True)
class Kernel:
    """A PrimFunc in the form of the kernel ABI, but for its pointers, which kernels/abi.py makes.

    Parameters are the fused function's, in order, then int32 `begin` and `end` when `tasks` is set: the
    function then computes tasks [begin, end), which are independent. `packs` says how the constant behind
    a parameter (by position) is rearranged at build time. `in_place`: positions of inputs of which each
    element is read only to compute the output's element of the same index, so that both may share memory.
    """

    func: tirx.PrimFunc
    tasks: int | None = None
    packs: dict[int, Pack] = field(default_factory=dict)
    family: str = ""
    in_place: tuple[int, ...] = ()


# Below this many vector operations a kernel is one task.
SHARED = 1 << 14


@dataclass(frozen=True)
class Machine:
    """The facts of a target that schedules use; from the target's YAML."""

    vector_bits: int
    registers: int
    in_order: bool
    l2_bytes: int
    parallel: bool
    isa: str = "none"  # sse4, avx2, avx512 or neon
    dot: str = "none"  # int8 dot-product instructions: none, sdot or vnni
    cores: int = 1
    winograd: str = "off"  # the model's policy: auto, off, f2 or f4
    weight_growth: float = 1.0  # how many times their size weights may be stored in to save arithmetic
    choices: Choices = field(default_factory=dict)  # what was measured on this CPU

    def shares(self, steps: int) -> bool:
        """Whether threads are worth starting for so many vector operations: that takes a few microseconds."""
        return self.parallel and steps >= SHARED

    def lanes(self, dtype: str) -> int:
        """Elements of `dtype` in one vector register."""
        return max(1, self.vector_bits // int(tvm.DataType(dtype).bits))


@dataclass(frozen=True)
class Argument:
    """A kernel parameter: a buffer of `shape` elements of `dtype`."""

    name: str
    shape: Sequence[int]
    dtype: str


def argument(param: Any) -> Argument:
    """The argument that stands for a parameter of a fused PrimFunc."""
    return Argument(param.name, [int(size) for size in param.shape], str(param.dtype))


Body = Callable[[list[Any], Expr, Expr], None]


def define(arguments: Sequence[Argument], tasks: int | None, body: Body, aliases: bool) -> tirx.PrimFunc:
    """A PrimFunc with `arguments`; `body` gets their buffers and the range of tasks to compute.

    `aliases`: the output may be one of the inputs, so LLVM must not assume otherwise.
    """
    with IRBuilder() as ir, builder.prim_func(is_private=False, s_tir=True):
        builder.func_name("kernel")
        builder.func_attr({"tirx.noalias": not aliases, "global_symbol": "kernel"})
        buffers = [builder.arg(item.name, builder.buffer(list(item.shape), item.dtype)) for item in arguments]
        begin: Expr = int64(0)
        end: Expr = int64(1)
        if tasks is not None:
            begin = _task(builder.arg("begin", tirx.Var("begin", "int32")), tasks)
            end = _task(builder.arg("end", tirx.Var("end", "int32")), tasks)
        body(buffers, begin, end)
    return ir.get()


def _task(number: Expr, tasks: int) -> Expr:
    """A task's number as an index. Its range is spelt out: only then can indices be narrowed to 32 bits,
    and 32-bit targets divide without a library."""
    return tirx.max(tirx.min(tirx.Cast("int64", number), int64(tasks)), int64(0))


def int64(value: int) -> Expr:
    """An index constant; every index is int64 until the lowering narrows what fits."""
    return tirx.IntImm("int64", value)


def bind(value: Expr) -> Expr:
    """Compute `value` once, here, and use it by name."""
    return builder.Bind(value)


def store(buffer: Any, indices: Sequence[Expr], value: Expr) -> None:
    """buffer[indices] = value."""
    builder.buffer_store(buffer, value, list(indices))


def load(buffer: Any, indices: Sequence[Expr]) -> Expr:
    """buffer[indices]."""
    return tirx.BufferLoad(buffer, list(indices))


def registers(shape: Sequence[int], dtype: str) -> Any:
    """A small local buffer that LLVM keeps in registers: below 1 KiB and only indexed by constants."""
    return builder.alloc_buffer(list(shape), dtype)


def vector(width: int) -> Any:
    """A loop of `width` (a power of two) lanes that becomes one vector operation."""
    return builder.vectorized(int64(0), int64(width))


def serial(extent: int | Expr, start: int | Expr = 0) -> Any:
    """A plain loop over [start, start + extent)."""
    first = int64(start) if isinstance(start, int) else start
    count = int64(extent) if isinstance(extent, int) else extent
    return builder.serial(first, first + count)


def chunks(extent: int, width: int) -> Iterator[tuple[int, int]]:
    """Cut [0, extent) into (offset, size): as many of `width` as fit, then falling powers of two.

    LLVM turns vectors of other sizes into scalar code (24 lanes of float: a tenth of the speed).
    """
    offset = 0
    while offset < extent:
        while width > extent - offset:
            width //= 2
        yield offset, width
        offset += width


def divide(numerator: Expr, denominator: int) -> Expr:
    """floor(numerator / denominator) for values that are not negative."""
    return numerator if denominator == 1 else tirx.floordiv(numerator, int64(denominator))


def modulo(numerator: Expr, denominator: int) -> Expr:
    """numerator mod denominator for values that are not negative."""
    return int64(0) if denominator == 1 else tirx.floormod(numerator, int64(denominator))


def padded(array: Array, axis: int, multiple: int) -> Array:
    """`array` with zeros added at the end of `axis` up to a multiple."""
    missing = -array.shape[axis] % multiple
    widths = [(0, missing if position == axis else 0) for position in range(array.ndim)]
    return np.pad(array, widths)
