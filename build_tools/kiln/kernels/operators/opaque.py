"""Opaque kernels: functions that are not loop nests (sorts, scans, scatters), as TVM's code on one thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import s_tir, te, tirx
from tvm.ir import Call, Range, TensorLoad
from tvm_ffi import structural_equal

from kiln.callbacks import structural_map, structural_walk
from kiln.extents import extent
from kiln.opinfo.attach import ATTRIBUTE
from kiln.tir.builder import Kernel, Sized, with_sizes
from kiln.tir.symbols import NO_RANGES, SymbolRanges, int64, is_dynamic


def _serial(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body, annotations=loop.annotations
    )


def refuse_library(func: tirx.PrimFunc) -> None:
    """Raise ValueError for code that calls a function of TVM's runtime, which devices do not have."""

    def on_call(call: Call) -> None:
        if str(getattr(call.op, "name", "")) == "tirx.tvm_call_packed":
            raise ValueError(f"it calls {call.args[0].value}, a function of TVM's runtime")

    structural_walk(func.body, ((Call, on_call),))


def make(func: tirx.PrimFunc, ranges: SymbolRanges = NO_RANGES) -> Kernel:
    """A kernel from a fused function: all of its loops become serial, its inner buffers scratch memory.

    Buffers of dynamic shape become flat memory of their greatest size, for the `ranges` of the variables. Op
    info is removed, so that equal code becomes one kernel, whatever operators it was made from. Raises
    ValueError if the code calls TVM's runtime (see `refuse_library`).
    """
    refuse_library(func)
    func = func.with_body(structural_map(func.body, ((tirx.For, _serial),))).without_attr(ATTRIBUTE)
    if ranges.ranges:
        func = with_sizes(_flat(func, ranges), ranges)
    return Kernel(func, None, {}, "opaque", ranges=ranges)


def copy_and_rest(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, tuple[Any, Any], tirx.PrimFunc] | None:
    """The two parts of a function that copies a parameter whole to its result, then changes some elements.

    Returns the copy, the parameter and the result, and the function of the other parameters that changes the
    result; None for other functions. As a kernel of its own the copy is left out where both have the same
    memory: a scatter into a value of the state then writes its updates alone.
    """
    sequence = func.body
    while isinstance(sequence, (s_tir.SBlockRealize, s_tir.SBlock, tirx.AttrStmt)):
        sequence = sequence.block if isinstance(sequence, s_tir.SBlockRealize) else sequence.body
    if not isinstance(sequence, tirx.SeqStmt) or not isinstance(sequence[0], tirx.For):
        return None
    loop = sequence[0]
    store = loop.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, TensorLoad):
        return None
    source, result = store.value.source, store.buffer
    is_param = [any(buffer.same_as(param) for param in func.params) for buffer in (source, result)]
    whole = structural_equal(list(source.shape), list(result.shape)) and all(is_param)
    if not whole or not structural_equal(list(store.value.indices), list(store.indices)):
        return None
    rest = structural_map(func.body, ((tirx.For, lambda node: _NOTHING if node.same_as(loop) else node),))
    reads: list[Any] = []
    structural_walk(rest, ((TensorLoad, lambda node: reads.append(node.source)),))
    if any(read.same_as(source) for read in reads):
        return None
    data = te.placeholder(source.shape, str(source.dtype), "data")
    copied = te.create_prim_func([data, te.compute(source.shape, lambda *index: data(*index), name="copy")])
    others = [param for param in func.params if not param.same_as(source)]
    return copied, (source, result), tirx.PrimFunc(others, rest, None, attrs=func.attrs)


_NOTHING = tirx.Evaluate(tirx.IntImm("int32", 0))


def _flat(func: tirx.PrimFunc, ranges: SymbolRanges) -> tirx.PrimFunc:
    """`func` with each buffer of dynamic shape in a flat buffer of its greatest size."""
    buffers: list[Any] = [param for param in func.params if tirx.is_buffer_var(param)]
    structural_walk(func.body, ((s_tir.SBlock, lambda block: buffers.extend(block.alloc_buffers)),))
    flat: dict[Any, Sized] = {}
    for buffer in buffers:
        shape = [extent(size) for size in buffer.shape]
        if any(is_dynamic(size) for size in shape):
            memory = tirx.decl_buffer(
                [ranges.greatest(ranges.product(shape))], str(buffer.dtype), buffer.name
            )
            flat[buffer] = Sized(memory, shape)
    body = structural_map(
        func.body,
        (
            (TensorLoad, lambda node: _load(node, flat)),
            (tirx.BufferStore, lambda node: _store(node, flat)),
            (s_tir.SBlock, lambda node: _block(node, flat)),
        ),
    )
    params = [flat[param].memory if param in flat else param for param in func.params]
    return tirx.PrimFunc(params, body, None, attrs=func.attrs)


def _place(sized: Sized, indices: Any) -> Any:
    """The position of an element; code that is written for flat memory has one index already."""
    return sized.place(indices) if len(indices) == len(sized.shape) else indices[0]


def _load(node: Any, flat: Mapping[Any, Sized]) -> Any:
    sized = flat.get(node.source)
    return node if sized is None else tirx.BufferLoad(sized.memory, [_place(sized, node.indices)])


def _store(node: Any, flat: Mapping[Any, Sized]) -> Any:
    sized = flat.get(node.buffer)
    return (
        node if sized is None else tirx.BufferStore(sized.memory, node.value, [_place(sized, node.indices)])
    )


def _block(node: Any, flat: Mapping[Any, Sized]) -> Any:
    """A block whose flat buffers are read and written in any place."""

    def region(access: Any) -> Any:
        sized = flat.get(access.source)
        if sized is None:
            return access
        return tirx.BufferRegion(sized.memory, [Range(int64(0), int64(int(sized.memory.shape[0])))])

    return s_tir.SBlock(
        node.iter_vars,
        [region(access) for access in node.reads],
        [region(access) for access in node.writes],
        node.name_hint,
        node.body,
        node.init,
        [flat[buffer].memory if buffer in flat else buffer for buffer in node.alloc_buffers],
        node.match_buffers,
        node.annotations,
    )
