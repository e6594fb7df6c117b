"""The Kernel record that kernel families return, and the helpers with which families write loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as builder

from kiln.arrays import Array as Array
from kiln.extents import Extent, extent
from kiln.params.encodings import Encoding
from kiln.tir.stored import StoredBuffer, Table
from kiln.tir.symbols import NO_RANGES, SymbolRanges, is_dynamic
from kiln.tir.symbols import int64 as int64  # every family writes indices with it
from kiln.tir.tuning_records import TuningRecords

Pack = Callable[[Array], Array]
NO_TABLES: Mapping[Any, Table] = MappingProxyType({})


@dataclass(frozen=True)
class Packing:
    """How the weights of a kernel are stored: the variants of a target that read them agree on this.

    `columns`: columns of a panel. `form`: Winograd's m, 0 for direct convolution; `staged`: whether its
    phases are separate kernels. `paired`: whether the last panel is packed by pairs (cpu/gemm_tile.py).
    `arrangement`, `head_lanes`: of int8 weights, see cpu/gemm_int8.py; empty and 0 for others. `tables`: of
    each other constant that is stored in few bits, its encoding and shape (tir/stored.py).
    """

    columns: int
    form: int = 0
    staged: bool = False
    paired: bool = False
    arrangement: str = ""
    head_lanes: int = 0
    tables: tuple[tuple[Encoding, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class Kernel:
    """A PrimFunc in the form of the kernel ABI, but over buffers; tir/abi.py turns buffers into pointers.

    The parameters are those of the fused function, in order, then int32 `begin` and `end` when `tasks` is
    set: the function then computes tasks [begin, end), which are independent. `packs` maps the position of a
    parameter to the function that rearranges its constant at build time. `in_place`: positions of inputs
    whose elements are each read only to compute the output element of the same index, so that input and
    output may share memory. `copies`: whether the kernel only copies its first parameter to its second.
    """

    func: tirx.PrimFunc
    tasks: Any = None  # number of tasks: int, or an expression of `sizes`
    packs: dict[int, Pack] = field(default_factory=dict)
    family: str = ""
    in_place: tuple[int, ...] = ()
    saving: float = 1.0  # multiplications of the operator per multiplication of this kernel
    prefetches: bool = False  # whether the kernel prefetches the weights in Machine.prefetch_range
    ranges: SymbolRanges = NO_RANGES  # of the variables of the group that the kernel computes
    packing: Packing | None = None  # of the weights; None: they are read as they are
    # Whether positions are computed in 64 bits where pointers have 64 bits: see transposed.make.
    wide_positions: bool = False
    # What stored tensors are that a constant in fewer bits is made of, by position.
    labels: dict[int, str] = field(default_factory=dict)
    copies: bool = False

    @property
    def sizes(self) -> list[Any]:
        """Variables whose values are int32 parameters of the kernel, after its buffers."""
        names = [param.name for param in self.func.params]
        return [variable for variable, name in size_names(self.ranges).items() if name in names]


# A kernel, and the buffers of the fused function that its parameters stand for.
KernelAndBuffers = tuple[Kernel, list[tirx.Buffer]]

# Bytes of a cache line, and sets of the L1 cache: the same on nearly all CPUs, whatever the size of the
# cache.
CACHE_LINE, CACHE_SETS = 64, 64

# A kernel with fewer vector operations is one task.
SHARED = 1 << 14


@dataclass(frozen=True)
class Machine:
    """The facts about a target that schedules use; most come from the target's YAML file."""

    vector_bits: int
    registers: int
    in_order: bool
    l2_bytes: int
    parallel: bool
    l1_bytes: int = 32 << 10
    isa: str = "none"  # sse4, avx2, avx512 or neon
    dot: str = "none"  # int8 dot-product instructions: none, sdot, i8mm or vnni
    tiles: bool = False  # whether tile registers multiply 8-bit integers: AMX
    cores: int = 1
    winograd: str = "off"  # the model's policy: auto, off, f2 or f4
    weight_growth: float = 1.0  # limit of packed size over plain size of weights, to save arithmetic
    choices: TuningRecords = field(default_factory=dict)  # tuning records measured on this CPU
    shared_bytes: int = 0  # size of the last-level cache, which all cores share; 0: not used for prefetch
    forms: tuple[int, ...] | None = None  # forms that weights may be stored in (lower/packings.py); None: any
    pairs: bool = True  # whether a panel may be packed by pairs (gemm.pairs_pay)
    packing: Packing | None = None  # in which the weights are stored; None: the kernel decides
    # Types of x for which panels of int8 weights have a head, which kernels of other variants read.
    heads: frozenset[str] = frozenset()
    half: bool = False  # whether an instruction converts float16 to float32
    fma: bool = True  # whether an instruction multiplies and adds float32
    word_bits: int = 64  # of a general register
    # Byte range, counted from the start of a kernel's weights, that the kernel prefetches for later kernels.
    prefetch_range: tuple[int, int] | None = None

    def shares(self, steps: int) -> bool:
        """Whether `steps` vector operations justify starting threads, which takes a few microseconds."""
        return self.parallel and steps >= SHARED

    def lanes(self, dtype: str) -> int:
        """Number of elements of `dtype` in one vector register."""
        return max(1, self.vector_bits // int(tvm.DataType(dtype).bits))


@dataclass(frozen=True)
class Argument:
    """A kernel parameter: a buffer of `shape` elements of `dtype`.

    `table`: set if it is a constant that is stored in fewer bits; the kernel then has a parameter for each of
    the stored tensors.
    """

    name: str
    shape: Sequence[Extent]
    dtype: str
    table: Table | None = None


def argument(param: Any, tables: Mapping[Any, Table] = NO_TABLES) -> Argument:
    """The Argument with the name, shape and data type of a parameter of a fused PrimFunc.

    `tables`: constants that the kernel reads in fewer bits, by parameter.
    """
    shape = [extent(size) for size in param.shape]
    return Argument(param.name, shape, str(param.dtype), tables.get(param))


@dataclass(frozen=True)
class Sized:
    """A buffer with a dynamic shape, stored in a flat buffer of the greatest size that the shape can have."""

    memory: Any
    shape: Sequence[Extent]

    def place(self, indices: Sequence[Expr]) -> Expr:
        """Position in `memory` of the element at `indices`."""
        position: Expr = int64(0)
        for index, size in zip(indices, self.shape, strict=True):
            position = position * int64(size) + index
        return position


def _declared(item: Argument, ranges: SymbolRanges) -> tuple[str, list[int], bool]:
    """Name and static shape to declare for an argument, and whether it is flat (its shape is dynamic)."""
    if not any(is_dynamic(size) for size in item.shape):
        return item.name, [int(size) for size in item.shape], False
    return item.name, [ranges.greatest(ranges.product(item.shape))], True


Body = Callable[[list[Any], Expr, Expr], None]


def size_names(ranges: SymbolRanges) -> dict[Any, str]:
    """The name of the kernel parameter that holds the value of each variable; variables may share a name."""
    names: dict[Any, str] = {}
    for variable in ranges.ranges:
        name = f"{variable.name}_size"
        number = sum(other.name == variable.name for other in names)
        names[variable] = f"{name}_{number}" if number else name
    return names


def define(
    arguments: Sequence[Argument], tasks: Extent | None, body: Body, aliases: bool,
    ranges: SymbolRanges = NO_RANGES,
) -> tirx.PrimFunc:  # fmt: skip
    """Build a PrimFunc with `arguments`; `body` is called with their buffers and the range of tasks.

    `aliases`: the output may be one of the inputs, so LLVM must not assume otherwise. The values of the
    variables in `ranges` that the body uses become parameters after the buffers.
    """
    values = {}
    with IRBuilder() as ir, builder.prim_func(is_private=False, s_tir=True):
        builder.func_name("kernel")
        builder.func_attr({"tirx.noalias": not aliases, "global_symbol": "kernel"})
        buffers: list[Any] = []
        for item in arguments:
            name, shape, is_sized = _declared(item, ranges)
            if item.table is not None:
                parts = item.table.parts()
                stored = [builder.arg(f"{name}{end}", builder.buffer([n], t)) for end, t, n in parts]
                buffers.append(StoredBuffer(item.table, stored))
                continue
            memory = builder.arg(name, builder.buffer(shape, item.dtype))
            buffers.append(Sized(memory, item.shape) if is_sized else memory)
        names = size_names(ranges)
        for variable, (least, most) in ranges.ranges.items():
            name = names[variable]
            value = builder.arg(name, tirx.Var(name, "int32"))
            values[variable] = value, _between(value, least, most)
        begin: Expr = int64(0)
        end: Expr = int64(1)
        if tasks is not None:
            begin = _between(builder.arg("begin", tirx.Var("begin", "int32")), 0, tasks)
            end = _between(builder.arg("end", tirx.Var("end", "int32")), 0, tasks)
        body(buffers, begin, end)
    return _with_values(ir.get(), values) if values else ir.get()


def with_sizes(func: tirx.PrimFunc, ranges: SymbolRanges) -> tirx.PrimFunc:
    """`func` with the values of its variables in `ranges` as int32 parameters after the others.

    A variable that the body does not use gets no parameter.
    """
    values, names = {}, size_names(ranges)
    for variable, (least, most) in ranges.ranges.items():
        value = tirx.Var(names[variable], "int32")
        values[variable] = value, _between(value, least, most)
    params = [*func.params, *(value for value, _ in values.values())]
    return _with_values(tirx.PrimFunc(params, func.body, None, attrs=func.attrs), values)


def _with_values(func: tirx.PrimFunc, values: Mapping[Any, tuple[Any, Expr]]) -> tirx.PrimFunc:
    """Bind the dynamic sizes of `func` to its size parameters; drop the size parameters that it does not use.

    `values`: size parameter, and value to bind, by variable.
    """
    used = tirx.analysis.undefined_vars(func.body)
    used_values = [(variable, *values[variable]) for variable in values if _contains(used, variable)]
    dropped = [param for variable, (param, _) in values.items() if not _contains(used, variable)]
    params = [param for param in func.params if not _contains(dropped, param)]
    binds = [tirx.Bind(variable, value) for variable, _, value in used_values]
    body = tirx.SeqStmt([*binds, func.body]) if binds else func.body
    return tirx.PrimFunc(params, body, None, attrs=func.attrs)


def _contains(nodes: Sequence[Any], target: Any) -> bool:
    """Whether `nodes` contains the TVM node `target` itself."""
    return any(target.same_as(node) for node in nodes)


def _between(number: Expr, low: int, high: Extent) -> Expr:
    """An int32 as an int64 index, clamped to [low, high].

    The clamp gives the compiler the range: only then can indices be narrowed to 32 bits, and can 32-bit
    targets divide without a library.
    """
    return tirx.max(tirx.min(tirx.Cast("int64", number), int64(high)), int64(low))


def bind(value: Expr) -> Expr:
    """Compute `value` once at this point of the code; returns the variable that holds it."""
    return builder.Bind(value)


def store(buffer: tirx.Buffer, indices: Sequence[Expr], value: Expr) -> None:
    """Write the statement buffer[indices] = value."""
    if isinstance(buffer, Sized):
        builder.buffer_store(buffer.memory, value, [buffer.place(indices)])
    else:
        builder.buffer_store(buffer, value, list(indices))


def load(buffer: tirx.Buffer, indices: Sequence[Expr]) -> Expr:
    """The expression buffer[indices]."""
    if isinstance(buffer, StoredBuffer):
        return buffer.element(list(indices))
    if isinstance(buffer, Sized):
        return tirx.BufferLoad(buffer.memory, [buffer.place(indices)])
    return tirx.BufferLoad(buffer, list(indices))


def registers(shape: Sequence[int], dtype: str, scope: str = "global") -> Any:
    """Allocate a local buffer that LLVM keeps in registers: below 1 KiB and only indexed by constants.

    `scope`: TVM's name of its memory; "local" in a kernel for a GPU.
    """
    return builder.alloc_buffer(list(shape), dtype, scope=scope)


def vector(width: int) -> Any:
    """A loop of `width` (a power of two) lanes that becomes one vector operation."""
    return builder.vectorized(int64(0), int64(width))


def serial(extent: int | Expr, start: int | Expr = 0) -> Any:
    """A plain loop over [start, start + extent)."""
    first = int64(start) if isinstance(start, int) else start
    count = int64(extent) if isinstance(extent, int) else extent
    return builder.serial(first, first + count)


def chunks(extent: int, width: int) -> Iterator[tuple[int, int]]:
    """Cut [0, extent) into (offset, size): as many chunks of `width` as fit, then falling powers of two.

    `width` is a power of two. LLVM turns vectors of other sizes into scalar code (24 lanes of float: a tenth
    of the speed).
    """
    offset = 0
    while offset < extent:
        while width > extent - offset:
            width //= 2
        yield offset, width
        offset += width


def divide(numerator: Expr, denominator: Extent) -> Expr:
    """floor(numerator / denominator) for values that are not negative."""
    is_one = isinstance(denominator, int) and denominator == 1
    return numerator if is_one else tirx.floordiv(numerator, int64(denominator))


def modulo(numerator: Expr, denominator: Extent) -> Expr:
    """numerator mod denominator for values that are not negative."""
    is_one = isinstance(denominator, int) and denominator == 1
    return int64(0) if is_one else tirx.floormod(numerator, int64(denominator))


def unravel(position: Expr, sizes: Sequence[Extent]) -> list[Expr]:
    """The indices of the element at flat `position` of a dense array of shape `sizes`, such as of a task."""
    indices: list[Expr] = []
    for size in reversed(sizes):
        indices.insert(0, modulo(position, size) if len(indices) + 1 < len(sizes) else position)
        position = divide(position, size)
    return indices


def padded(array: Array, axis: int, multiple: int) -> Array:
    """`array` with zeros appended along `axis` until its extent is a multiple of `multiple`."""
    missing = -array.shape[axis] % multiple
    widths = [(0, missing if position == axis else 0) for position in range(array.ndim)]
    return np.pad(array, widths)
