"""Tensor intrinsics for CUDA's wmma fragments, which accumulate in float32, or integers in int32.

Source: CUDA C++ Programming Guide, "Warp Matrix Functions". A tensor intrinsic of TVM is a pair of functions:
loops that describe the computation, which TVM compares with the loops that a schedule selects, and the call
that replaces these loops. TVM 0.27 has wmma intrinsics, but not for tf32 and bf16, and in a module that
parses the intrinsics of every device on import: half a minute of each build. The intrinsics of this module
are built from TIR nodes, on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import tvm
from tvm import s_tir, tirx

from kiln.callbacks import structural_map, structural_walk
from kiln.tir import loop_nest

EDGE = 16  # elements of a fragment along i and along j
_ALIGN = 64


def sum_type(dtype: str) -> str:
    """The type in which products of operands of `dtype` are accumulated."""
    return "int32" if dtype in ("int8", "uint8") else "float32"


@dataclass(frozen=True)
class Intrinsics:
    """Names under which the intrinsics for one kind of operands are registered, for Schedule.tensorize."""

    fill: str
    load_a: str
    load_b: str
    multiply: str
    store: str


@cache
def intrinsics(dtype: str, depth: int, inside: bool) -> Intrinsics:
    """Register the intrinsics for operands of `dtype` and return their names.

    `depth`: elements of a fragment along k. `inside`: B is [j, k], else [k, j]. A is [i, k]. All operands are
    loaded from shared memory.
    """
    b = (EDGE, depth) if inside else (depth, EDGE)
    functions = {
        "fill": _fill(depth, sum_type(dtype)),
        "load_a": _load("a", dtype, depth, (EDGE, depth), "row_major"),
        "load_b": _load("b", dtype, depth, b, "col_major" if inside else "row_major"),
        "multiply": _multiply(dtype, depth, inside),
        "store": _store(depth, sum_type(dtype)),
    }
    side = "inside" if inside else "outside"
    names = {use: f"kiln_{dtype}_{depth}_{use}_{side}" for use in functions}
    for use, (description, code) in functions.items():
        s_tir.TensorIntrin.register(names[use], description, code)
    return Intrinsics(**names)


def _fill(depth: int, sum_dtype: str) -> tuple[Any, Any]:
    compact, strided = _pair("sums", sum_dtype, (EDGE, EDGE), "wmma.accumulator")
    zero = tirx.const(0, sum_dtype)
    call = tirx.tvm_fill_fragment(tirx.buffer_data(strided), EDGE, EDGE, depth, _number(strided), zero)
    loops = _function([], [compact], loop_nest.fill(compact, zero))
    return loops, _function([], [strided], tirx.Evaluate(call))


def _load(operand: str, dtype: str, depth: int, shape: tuple[int, int], layout: str) -> tuple[Any, Any]:
    sources, targets = (
        _pair(name, dtype, shape, scope)
        for name, scope in (("source", "shared"), ("target", f"wmma.matrix_{operand}"))
    )
    call = tirx.tvm_load_matrix_sync(
        tirx.buffer_data(targets[1]), EDGE, EDGE, depth, _number(targets[1]),
        sources[1].access_ptr("r", ptr_type=dtype), sources[1].strides[0], layout,
    )  # fmt: skip
    return _moving(sources, targets, call)


def _store(depth: int, sum_dtype: str) -> tuple[Any, Any]:
    sources, targets = (
        _pair(name, sum_dtype, (EDGE, EDGE), scope)
        for name, scope in (("source", "wmma.accumulator"), ("target", "shared"))
    )
    call = tirx.tvm_store_matrix_sync(
        tirx.buffer_data(sources[1]), EDGE, EDGE, depth, _number(sources[1]),
        targets[1].access_ptr("w", ptr_type=sum_dtype), targets[1].strides[0], "row_major",
    )  # fmt: skip
    return _moving(sources, targets, call)


def _moving(sources: Sequence[Any], targets: Sequence[Any], call: Any) -> tuple[Any, Any]:
    loops = loop_nest.copy(sources[0], targets[0], lambda value: value)
    return (
        _function([sources[0]], [targets[0]], loops),
        _function([sources[1]], [targets[1]], tirx.Evaluate(call)),
    )


def _multiply(dtype: str, depth: int, inside: bool) -> tuple[Any, Any]:
    a = _pair("a", dtype, (EDGE, depth), "wmma.matrix_a")
    b = _pair("b", dtype, (EDGE, depth) if inside else (depth, EDGE), "wmma.matrix_b")
    sum_dtype = sum_type(dtype)
    c = _pair("c", sum_dtype, (EDGE, EDGE), "wmma.accumulator")
    i, j, k = (
        tirx.IterVar(tvm.ir.Range(0, extent), tirx.Var(name, "int32"), kind)
        for name, extent, kind in (
            ("i", EDGE, tirx.IterVar.DataPar), ("j", EDGE, tirx.IterVar.DataPar),
            ("k", depth, tirx.IterVar.CommReduce),
        )
    )  # fmt: skip
    factors = [
        tirx.BufferLoad(a[0], [i.var, k.var]),
        tirx.BufferLoad(b[0], [j.var, k.var] if inside else [k.var, j.var]),
    ]
    if dtype != sum_dtype:
        factors = [tirx.Cast(sum_dtype, factor) for factor in factors]
    indices = [i.var, j.var]
    value = tirx.Add(tirx.BufferLoad(c[0], indices), tirx.Mul(*factors))
    loops = loop_nest.around([i, j], [k], c[0], indices, value, None)
    sums, left, right = ((tirx.buffer_data(x), _number(x)) for x in (c[1], a[1], b[1]))
    call = tirx.tvm_mma_sync(*sums, *left, *right, *sums)
    return _function([a[0], b[0]], [c[0]], loops, True), _function(
        [a[1], b[1]], [c[1]], tirx.Evaluate(call), True
    )


def _pair(name: str, dtype: str, shape: tuple[int, int], scope: str) -> tuple[Any, Any]:
    """A tile as two buffers: compact, for the loops, and with strides in a larger buffer, for the call."""
    common = {"scope": scope, "data_alignment": _ALIGN, "offset_factor": shape[1], "layout": None}
    strides = [tirx.Var(f"{name}_{axis}", "int32") for axis in ("row", "column")]
    compact, strided = (
        tirx.decl_buffer(list(shape), dtype, name, strides=s, **common) for s in (None, strides)
    )
    return compact, strided


def _number(fragment: Any) -> Any:
    """Index of a fragment in its array of fragments, which are the tiles of a matrix in row-major order."""
    rows, columns = fragment.shape
    stride, offset = fragment.strides[0], fragment.elem_offset
    return offset // stride // rows * (stride // columns) + offset % stride // columns


def _function(read: list[Any], written: list[Any], body: Any, added: bool = False) -> Any:
    """A PrimFunc of `body`, which reads `read` and writes `written`; `added`: accumulates into it."""
    reads, writes = (
        [
            tirx.BufferRegion(buffer, [tvm.ir.Range(0, int(extent)) for extent in buffer.shape])
            for buffer in side
        ]
        for side in ([*(written if added else []), *read], written)
    )
    root = s_tir.SBlock([], reads, writes, "root", body)
    return tirx.PrimFunc([*read, *written], s_tir.SBlockRealize([], True, root)).with_attr("s_tir", True)


def with_tf32_fragments(func: tirx.PrimFunc) -> Any:
    """A device function in which float32 operand fragments have the data type float16.

    TVM 0.27's code generator rejects float32 operand fragments; kiln.emit.cuda_objects replaces float16 by
    tf32 in the fragments with the size 16 x 16 x 8.
    """
    replacements: dict[Any, Any] = {}

    def on_buffer(node: Any) -> None:
        old = node.buffer
        if old.scope().startswith("wmma.matrix_") and str(old.dtype) == "float32":
            replacements[old] = tirx.decl_buffer(list(old.shape), "float16", old.name, scope=old.scope())

    structural_walk(func.body, ((tirx.AllocBuffer, on_buffer),))
    if not replacements:
        return func
    return func.with_body(
        structural_map(func.body, ((tirx.Var, lambda variable: replacements.get(variable, variable)),))
    )
