"""Loads from global memory: conditions as predicates instead of branches, and copies that are asynchronous.

Kernels compute padding where they read an element: `if_then_else(inside, x[i], 0)`. TVM 0.27 writes that as
an `if` with a load in one branch; nvcc keeps the branch, so that loads which do not depend on each other wait
for each other. In device functions this module replaces

- copies of 4, 8 or 16 bytes from global to shared memory in kernels for tensor cores, with or without such a
  condition, by asynchronous copies (PTX ISA, `cp.async`, which writes zeros if the condition is false), for
  which the threads wait before the barrier after which they are read. GPUs older than sm_80 load with a
  predicate, and store. In other kernels a thread may read without a barrier what it wrote to shared memory
  itself.
- other loads of single elements under a condition by predicated loads, which read nothing and leave zero if
  the predicate is false.

Several of these instructions are under way at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call, TensorLoad

from kiln.callbacks import structural_map, structural_walk
from kiln.kernels.gpu.half import BRAIN, HALF
from kiln.tir import abi

COPY, DONE, LOAD = "kiln_copy_if", "kiln_copies_done", "kiln_load_if"
COMMIT, WAIT = "kiln_copies_commit", "kiln_copies_wait"
_COPIED = (4, 8, 16)  # bytes of one instruction
# C++ types of elements, as TVM's code generator names them.
_TYPES = {"float32": "float", HALF: "half", BRAIN: "nv_bfloat16"}
_HELPERS = ((COPY, "<"), (LOAD, "<"), (WAIT, "<"), (DONE, "("), (COMMIT, "("))  # as they are called
HELPERS = """
template <class V> static __device__ __forceinline__ V kiln_load_if(bool loads, const void* from) {
  union { unsigned word; unsigned short half; } loaded;
  const size_t global = __cvta_generic_to_global(from);
  if constexpr (sizeof(V) == 2)
    asm("{.reg .pred p; setp.ne.u32 p, %2, 0; mov.u16 %0, 0; @p ld.global.u16 %0, [%1];}"
        : "=h"(loaded.half) : "l"(global), "r"((unsigned)loads));
  else
    asm("{.reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.global.u32 %0, [%1];}"
        : "=r"(loaded.word) : "l"(global), "r"((unsigned)loads));
  return *reinterpret_cast<V*>(&loaded);
}
template <int BYTES>
static __device__ __forceinline__ void kiln_copy_if(void* to, bool loads, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)),
                  "n"(BYTES), "r"(loads ? BYTES : 0) : "memory");
#else
  unsigned word[BYTES / 4];
  for (int i = 0; i < BYTES / 4; ++i)
    asm("{.reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.global.u32 %0, [%1];}"
        : "=r"(word[i]) : "l"(__cvta_generic_to_global((const char*)from + 4 * i)), "r"((unsigned)loads));
  for (int i = 0; i < BYTES / 4; ++i)
    ((unsigned*)to)[i] = word[i];
#endif
}
static __device__ __forceinline__ void kiln_copies_done() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
static __device__ __forceinline__ void kiln_copies_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int GROUPS> static __device__ __forceinline__ void kiln_copies_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" :: "n"(GROUPS) : "memory");
#endif
}
"""


def with_helpers(source: str) -> str:
    """CUDA C with the functions that its kernels call, after the types that TVM defines."""
    if not any(f"{name}{end}" in source for name, end in _HELPERS):
        return source
    begin = source.index('extern "C"')
    return source[:begin] + HELPERS + source[begin:]


def without_branches(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A device function `func`, after barriers were inserted, with the loads replaced that the module names.

    A load is replaced if it reads a parameter that `func` does not write (the compiler may move it past
    stores), and if its condition, where it has one, is the same for all lanes and the alternative is zero.
    """
    read_only, has_fragments = _read_only(func)
    body = _with_copies(func.body, read_only) if has_fragments else func.body

    def on_call(call: Any) -> Any:
        read = _read(call)
        if read is None or read.condition is None or read.load.source not in read_only:
            return call
        dtype = str(read.load.ty.dtype)
        if dtype not in _TYPES:  # a vector, too
            return call
        address = tirx.address_of(read.load)
        loaded = tirx.call_pure_extern(dtype, f"{LOAD}<{_TYPES[dtype]}>", read.condition, address)
        for cast in read.casts:
            loaded = tirx.Cast(cast, loaded)
        return loaded

    return func.with_body(structural_map(body, [(Call, on_call)], order="pre"))


def _read_only(func: tirx.PrimFunc) -> tuple[set[Any], bool]:
    """The buffers of parameters that `func` does not write, and whether it loads fragments of matrices.

    In a function with fragments a warp reads what all its lanes wrote to shared memory, after a barrier.
    """
    read = set(func.params) - abi.written(func)
    buffers: set[Any] = set()
    fragments: list[Any] = []

    def on_declaration(node: Any) -> None:
        if node.data in read:
            buffers.add(node.buffer)

    def on_call(call: Any) -> None:
        if _name(call) == "tirx.tvm_load_matrix_sync":
            fragments.append(call)

    structural_walk(func.body, [(tirx.DeclBuffer, on_declaration), (Call, on_call)])
    return buffers, bool(fragments)


def _with_copies(body: Any, read_only: set[Any]) -> Any:
    """`body` with asynchronous copies from buffers in `read_only` to shared memory.

    In a loop that TVM's InjectSoftwarePipeline divided into stages, the copies of a stage are a group, and
    threads wait until at most as many later groups are under way as the pass allows. Elsewhere they wait for
    all of their copies before each barrier.
    """
    copies = []

    def on_store(store: Any) -> Any:
        read = _read(store.value) if store.buffer.scope() == "shared" else None
        if read is None or read.casts or read.load.source not in read_only:
            return store
        lanes = _lanes(store.value)
        size = lanes * int(tvm.DataType(str(read.load.source.dtype)).bits) // 8
        first_elements = [_first(node.indices, lanes) for node in (store, read.load)]
        if size not in _COPIED or None in first_elements:
            return store
        copies.append(store)
        target, source = (
            tirx.address_of(tirx.BufferLoad(buffer, [first_element]))
            for buffer, first_element in zip((store.buffer, read.load.source), first_elements, strict=True)
        )
        always = tirx.const(True, "bool")
        condition = always if read.condition is None else read.condition
        return _called(f"{COPY}<{size}>", target, condition, source)

    def on_attribute(node: Any) -> Any:
        if node.attr_key == "async_scope":
            return structural_map(node.body, [(tirx.BufferStore, on_store)])
        if node.attr_key == "async_commit_queue_scope":
            return tirx.SeqStmt([node.body, _called(COMMIT)])
        if node.attr_key == "async_wait_inflight_count":
            return tirx.SeqStmt([_called(f"{WAIT}<{int(node.value)}>"), node.body])
        return node.body if node.attr_key == "async_wait_queue_scope" else node

    def on_evaluate(node: Any) -> Any:
        if _name(node.value) != "tirx.tvm_storage_sync":
            return node
        return tirx.SeqStmt([_called(DONE), node])

    if in_stages(body):
        return _with_barrier(structural_map(body, [(tirx.AttrStmt, on_attribute)]))
    body = structural_map(body, [(tirx.BufferStore, on_store)])
    return structural_map(body, [(tirx.Evaluate, on_evaluate)]) if copies else body


def _with_barrier(body: Any) -> Any:
    """`body` with a barrier before sums are stored to shared memory: their place may be that of operands."""
    stores = []

    def on_evaluate(node: Any) -> Any:
        if _name(node.value) != "tirx.tvm_store_matrix_sync":
            return node
        stores.append(node)
        barrier = tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))
        return tirx.SeqStmt([barrier, node]) if len(stores) == 1 else node

    return structural_map(body, [(tirx.Evaluate, on_evaluate)])


def in_stages(body: Any) -> bool:
    """Whether `body` has a loop that InjectSoftwarePipeline divided into stages with asynchronous copies."""
    nodes: list[Any] = []
    structural_walk(
        body, [(tirx.AttrStmt, lambda node: nodes.append(node) if node.attr_key == "async_scope" else None)]
    )
    return bool(nodes)


def _called(function: str, *arguments: Any) -> Any:
    return tirx.Evaluate(tirx.call_extern("int32", function, *arguments))


@dataclass(frozen=True)
class _Read:
    """A load, casts of its value from the inside out, and the condition without which the value is zero.

    `condition` is None if there is none.
    """

    load: Any
    casts: list[str]
    condition: Any


def _read(value: Any) -> _Read | None:
    """`value` as a load inside casts and conditions whose alternative is zero; None for anything else."""
    casts: list[str] = []
    condition = None
    while not isinstance(value, TensorLoad):
        if isinstance(value, tirx.Cast):
            casts.insert(0, str(value.ty.dtype))
            value = value.value
        elif _name(value) == "prim.if_then_else" and _is_zero(value.args[2]) and _lanes(value.args[0]) == 1:
            inside, value, _ = value.args
            condition = inside if condition is None else tirx.And(condition, inside)
        else:
            return None
    dtype = str(value.ty.dtype)
    # From 16 bits to float32 and back changes nothing.
    if casts and casts[-1] == dtype and all(cast.startswith("float32") for cast in casts[:-1]):
        casts = []
    return _Read(value, casts, condition)


def _first(indices: Any, lanes: int) -> Any:
    """Index of the first of `lanes` adjacent elements; None if they are not adjacent."""
    if len(indices) != 1:
        return None
    (index,) = indices
    if isinstance(index, tirx.Ramp):
        return index.base if isinstance(index.stride, tirx.IntImm) and int(index.stride) == 1 else None
    return index if lanes == 1 else None


def _lanes(expr: Any) -> int:
    return int(tvm.DataType(str(expr.ty.dtype)).lanes)


def _name(expr: Any) -> str:
    return str(getattr(getattr(expr, "op", None), "name", ""))


def _is_zero(expr: Any) -> bool:
    while isinstance(expr, (tirx.Broadcast, tirx.Cast)):
        expr = expr.value
    return isinstance(expr, (tirx.FloatImm, tirx.IntImm)) and expr.value == 0
