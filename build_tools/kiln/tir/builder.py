"""What a kernel family returns, and the few helpers with which families write loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as builder

from kiln.callbacks import structural_map
from kiln.tir.symbols import Extent, extent, greatest, is_open, product, ranges, variables
from kiln.tir.symbols import int64 as int64  # every family writes indices with it
from kiln.tir.tuning_records import Choices

Array = npt.NDArray[Any]
Pack = Callable[[Array], Array]
Expr = Any


@dataclass(frozen=True)
class Kernel:
    """A PrimFunc in the form of the kernel ABI, but for its pointers, which tir/abi.py makes.

    Parameters are the fused function's, in order, then int32 `begin` and `end` when `tasks` is set: the
    function then computes tasks [begin, end), which are independent. `packs` says how the constant behind
    a parameter (by position) is rearranged at build time. `in_place`: positions of inputs of which each
    element is read only to compute the output's element of the same index, so that both may share memory.
    """

    func: tirx.PrimFunc
    tasks: Any = None  # int, or an expression of `sizes`
    packs: dict[int, Pack] = field(default_factory=dict)
    family: str = ""
    in_place: tuple[int, ...] = ()
    saving: float = 1.0  # how many times fewer multiplications it has than the operator
    fetches: bool = False  # whether it heeds Machine.upcoming

    @property
    def sizes(self) -> list[Any]:
        """The variables of the fused function whose values the kernel gets, as int32, behind its buffers."""
        names = [param.name for param in self.func.params]
        return [variable for variable in ranges() if size_name(variable) in names]


# Bytes of a cache line, and sets of the first cache: so on nearly all CPUs, whatever its size.
CACHE_LINE, CACHE_SETS = 64, 64

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
    l1_bytes: int = 32 << 10
    isa: str = "none"  # sse4, avx2, avx512 or neon
    dot: str = "none"  # int8 dot-product instructions: none, sdot or vnni
    cores: int = 1
    winograd: str = "off"  # the model's policy: auto, off, f2 or f4
    weight_growth: float = 1.0  # how many times their size weights may be stored in to save arithmetic
    choices: Choices = field(default_factory=dict)  # what was measured on this CPU
    shared_bytes: int = 0  # of the last cache, which all cores share; 0: of no use to fetch ahead into
    forms: tuple[int, ...] | None = None  # in which weights may be stored (lower/packings.py); None: any
    pairs: bool = True  # whether a panel may be packed by pairs (gemm.pairs_pay)
    upcoming: tuple[int, int] | None = None  # bytes from a kernel's weights on that it fetches for later ones

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
    shape: Sequence[Extent]
    dtype: str


def argument(param: Any) -> Argument:
    """The argument that stands for a parameter of a fused PrimFunc."""
    return Argument(param.name, [extent(size) for size in param.shape], str(param.dtype))


@dataclass(frozen=True)
class Sized:
    """A buffer whose shape is known only at run time, as flat memory of its greatest size."""

    memory: Any
    shape: Sequence[Extent]

    def place(self, indices: Sequence[Expr]) -> Expr:
        """The position of an element."""
        position: Expr = int64(0)
        for index, size in zip(indices, self.shape, strict=True):
            position = position * int64(size) + index
        return position


def _declared(item: Argument) -> tuple[str, list[int], bool]:
    if not any(is_open(size) for size in item.shape):
        return item.name, [int(size) for size in item.shape], False
    return item.name, [greatest(product(item.shape))], True


Body = Callable[[list[Any], Expr, Expr], None]


def size_name(variable: Any) -> str:
    """What the parameter is called that brings the value of a variable."""
    return f"{variable.name}_size"


def define(arguments: Sequence[Argument], tasks: Extent | None, body: Body, aliases: bool) -> tirx.PrimFunc:
    """A PrimFunc with `arguments`; `body` gets their buffers and the range of tasks to compute.

    `aliases`: the output may be one of the inputs, so LLVM must not assume otherwise. Where variables of
    tir/symbols.py are used, their values become parameters behind the buffers.
    """
    values = {}
    with IRBuilder() as ir, builder.prim_func(is_private=False, s_tir=True):
        builder.func_name("kernel")
        builder.func_attr({"tirx.noalias": not aliases, "global_symbol": "kernel"})
        buffers = []
        for item in arguments:
            name, shape, is_sized = _declared(item)
            memory = builder.arg(name, builder.buffer(shape, item.dtype))
            buffers.append(Sized(memory, item.shape) if is_sized else memory)
        for variable, (least, most) in ranges().items():
            name = size_name(variable)
            value = builder.arg(name, tirx.Var(name, "int32"))
            values[variable] = value, _between(value, least, most)
        begin: Expr = int64(0)
        end: Expr = int64(1)
        if tasks is not None:
            begin = _between(builder.arg("begin", tirx.Var("begin", "int32")), 0, tasks)
            end = _between(builder.arg("end", tirx.Var("end", "int32")), 0, tasks)
        body(buffers, begin, end)
    return _with_values(ir.get(), values) if values else ir.get()


def _with_values(func: tirx.PrimFunc, values: Mapping[Any, tuple[Any, Expr]]) -> tirx.PrimFunc:
    """`func` with its open sizes read from parameters, of which those that it does not need are dropped."""
    used = variables(func.body)
    kept = [(variable, *values[variable]) for variable in values if _holds(used, variable)]
    given = {variable: tirx.Var(variable.name, "int64") for variable, _, _ in kept}
    dropped = [param for variable, (param, _) in values.items() if not _holds(used, variable)]
    params = [param for param in func.params if not _holds(dropped, param)]

    def on_variable(variable: Any) -> Any:
        return given.get(variable, variable)

    body = structural_map(func.body, ((tirx.Var, on_variable),))
    binds = [tirx.Bind(given[variable], value) for variable, _, value in kept]
    body = tirx.SeqStmt([*binds, body]) if binds else body
    return tirx.PrimFunc(params, body, None, attrs=func.attrs)


def _holds(found: Sequence[Any], wanted: Any) -> bool:
    return any(wanted.same_as(item) for item in found)


def _between(number: Expr, low: int, high: Extent) -> Expr:
    """An int32 as an index. Its range is spelt out: only then can indices be narrowed to 32 bits,
    and 32-bit targets divide without a library."""
    return tirx.max(tirx.min(tirx.Cast("int64", number), int64(high)), int64(low))


def bind(value: Expr) -> Expr:
    """Compute `value` once, here, and use it by name."""
    return builder.Bind(value)


def store(buffer: Any, indices: Sequence[Expr], value: Expr) -> None:
    """buffer[indices] = value."""
    if isinstance(buffer, Sized):
        builder.buffer_store(buffer.memory, value, [buffer.place(indices)])
    else:
        builder.buffer_store(buffer, value, list(indices))


def load(buffer: Any, indices: Sequence[Expr]) -> Expr:
    """buffer[indices]."""
    if isinstance(buffer, Sized):
        return tirx.BufferLoad(buffer.memory, [buffer.place(indices)])
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


def divide(numerator: Expr, denominator: Extent) -> Expr:
    """floor(numerator / denominator) for values that are not negative."""
    one = isinstance(denominator, int) and denominator == 1
    return numerator if one else tirx.floordiv(numerator, int64(denominator))


def modulo(numerator: Expr, denominator: Extent) -> Expr:
    """numerator mod denominator for values that are not negative."""
    one = isinstance(denominator, int) and denominator == 1
    return int64(0) if one else tirx.floormod(numerator, int64(denominator))


def padded(array: Array, axis: int, multiple: int) -> Array:
    """`array` with zeros added at the end of `axis` up to a multiple."""
    missing = -array.shape[axis] % multiple
    widths = [(0, missing if position == axis else 0) for position in range(array.ndim)]
    return np.pad(array, widths)
