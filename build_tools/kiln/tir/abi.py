"""The kernel ABI: lowers a PrimFunc over buffers to a C function over pointers.

    void k(const T *in, …, T *out, T *scratch, …, int32_t begin, int32_t end);

TVM's own pipeline ends in MakePackedAPI, whose functions have boxed arguments and call TVM's runtime. The
pipeline of this module stops before MakePackedAPI. After FlattenBuffer (TVM 0.27) the body begins with one
DeclBuffer for each parameter, whose data is the parameter's pointer; each of these buffers is declared again
on a plain pointer parameter. Buffers that the body allocates at its top become pointer parameters too, so
that the memory planner owns every byte; small buffers allocated further inside become registers or stack.
The result is a leaf function that calls nothing but memset and memcpy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import PointerType, TensorLoad

from kiln.callbacks import prim_func_pass, structural_map, structural_walk
from kiln.tir.bound_sizes import bind_sizes
from kiln.tir.bound_values import bound_values
from kiln.tir.builder import Kernel
from kiln.tir.flatten import flatten
from kiln.tir.inline_bindings import inline_bindings
from kiln.tir.math import lower_math
from kiln.tir.symbols import variables
from kiln.tir.truncated_division import round_down

# TVM's own code declares buffers larger than it uses. The buffers of Kiln's kernel families have the size
# that they need, and the pass would make that size depend on the range of tasks.
_COMPACT = s_tir.transform.CompactBufferAllocation()

_STRUCTURE = [
    s_tir.transform.CanonicalizeLoop(),
    s_tir.transform.LowerInitBlock(),
    s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
    s_tir.transform.ConvertBlocksToOpaque(),
    _COMPACT,
    s_tir.transform.LowerMatchBuffer(),
    prim_func_pass(lambda func, *_: inline_bindings(func), opt_level=0, name="InlineBindings"),
    s_tir.transform.StmtSimplify(),
    s_tir.transform.LowerOpaqueBlock(),
]
_FLATTEN = tirx.transform.FlattenBuffer()

_HOIST = s_tir.transform.HoistIfThenElse()

_BEFORE_HOIST = [
    s_tir.transform.LoopPartition(),
    prim_func_pass(lambda func, *_: round_down(func), opt_level=0, name="RoundDown"),
    tirx.transform.VectorizeLoop(True),
    tirx.transform.StorageRewrite(),
]
_AFTER_HOIST = [
    tirx.transform.UnrollLoop(),
    s_tir.transform.RenormalizeSplitPattern(),
    tirx.transform.StmtSimplify(),
    s_tir.transform.RewriteUnsafeSelect(),
    prim_func_pass(lambda func, *_: _safe_divisions(func), opt_level=0, name="SafeDivisions"),
    prim_func_pass(bind_sizes, opt_level=0, name="BindSizes"),
    tirx.transform.CommonSubexprElim(),
    tirx.transform.LowerTVMBuiltin(),
    # After every pass that simplifies: the simplifier copies a shared subexpression to each of its uses,
    # which makes a chain of functions grow exponentially.
    prim_func_pass(lambda func, *_: lower_math(func), opt_level=0, name="LowerMath"),
    tirx.transform.LowerIntrin(),
    prim_func_pass(lambda func, *_: bound_values(func), opt_level=0, name="BoundValues"),
]

# A buffer of the body with at least this many bytes is scratch memory that the planner places, not stack.
STACK_BYTES = 1024


@dataclass(frozen=True)
class Lowered:
    """A PrimFunc over pointers, ready for code generation; data type and bytes of each scratch parameter."""

    func: tirx.PrimFunc
    scratch: list[tuple[str, int]]


# Bound on indices computed from floats: larger than any position in a tensor, and small enough that an int32
# index can still add offsets to it.
_FARTHEST = 2**30


def _short_positions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Clamp indices that are computed from floats (as in resizing), so that they too narrow to 32 bits.

    Returns `func` in which every cast from float to int64 inside an index is clamped to ±_FARTHEST.
    """

    def is_long(cast: Any) -> bool:
        return str(cast.ty.dtype) == "int64" and str(cast.value.ty.dtype).startswith("float")

    def on_cast(cast: Any) -> Any:
        if not is_long(cast):
            return cast
        limit = tirx.IntImm("int32", _FARTHEST)
        short = tirx.max(tirx.min(tirx.Cast("int32", cast.value), limit), tirx.IntImm("int32", -_FARTHEST))
        return tirx.Cast("int64", short)

    def on_load(load: TensorLoad) -> Any:
        indices = [structural_map(index, ((tirx.Cast, on_cast),)) for index in load.indices]
        return tirx.BufferLoad(load.source, indices)

    # Few kernels have such a cast, and a walk takes a tenth of the time of the map.
    first = structural_walk(
        func.body, [(tirx.Cast, lambda cast: tvm_ffi.VisitInterrupt() if is_long(cast) else None)]
    )
    if first is None:
        return func
    return func.with_body(structural_map(func.body, ((TensorLoad, on_load),)))


def _bytes(buffer: tirx.Buffer, size: Callable[[Any], int]) -> int:
    """Bytes of a buffer; `size` returns an extent's greatest value."""
    count = 1
    for extent in buffer.shape:
        count *= size(extent)
    return count * ((int(tvm.DataType(str(buffer.dtype)).bits) + 7) // 8)


def _at_start(func: tirx.PrimFunc) -> Any:
    """The body of `func` with the element offset of each parameter set to 0.

    te.extern declares its buffers with a variable offset; kernels always get a pointer to the first element.
    """
    offsets = {p.elem_offset for p in func.params if tirx.is_buffer_var(p)}
    zeros = {
        offset: tirx.const(0, str(offset.ty.dtype)) for offset in offsets if isinstance(offset, tirx.Var)
    }
    return structural_map(func.body, ((tirx.Var, lambda var: zeros.get(var, var)),)) if zeros else func.body


def _safe_divisions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with 1 in place of sizes of 0 that divide.

    A size that may be 0 divides only inside loops that then run no iteration. But CommonSubexprElim computes
    a division before the loops, and processors such as x86 trap.
    """
    sizes = {param: None for param in func.params if not isinstance(param.ty, PointerType)}
    if not sizes:
        return func

    def is_size(expr: Any) -> bool:
        loaded = structural_walk(expr, [(TensorLoad, lambda _: tvm_ffi.VisitInterrupt())])
        return loaded is None and all(variable in sizes for variable in variables(expr))

    def on_bind(node: Any) -> None:
        if is_size(node.value):
            sizes[node.var] = None

    structural_walk(func.body, [(tirx.Bind, on_bind)])

    def on_division(node: Any) -> Any:
        dtype = "" if isinstance(node.b, tirx.IntImm) else str(node.b.ty.dtype)
        if dtype not in ("int32", "int64") or not is_size(node.b):
            return node
        return type(node)(node.a, tirx.max(node.b, tirx.IntImm(dtype, 1)))

    divisions = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
    return func.with_body(structural_map(func.body, ((divisions, on_division),)))


def _large_first(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func`, whose loops are serial, with each large buffer allocated at its top.

    TVM allocates a buffer in the innermost loop that contains all of its uses.
    """
    moved: list[Any] = []

    def on_allocation(node: Any) -> Any:
        if _bytes(node.buffer, int) < STACK_BYTES:
            return node
        moved.append(node)
        return tirx.Evaluate(tirx.IntImm("int32", 0))

    body = structural_map(func.body, ((tirx.AllocBuffer, on_allocation),))
    statements = body.seq if isinstance(body, tirx.SeqStmt) else [body]
    return func.with_body(tirx.SeqStmt([*moved, *statements])) if moved else func


def pointers(
    func: tirx.PrimFunc, stack_bytes: int = STACK_BYTES, size: Callable[[Any], int] = int
) -> Lowered:
    """Rewrite `func` from buffers to pointers; large buffers allocated at its top become scratch parameters.

    A buffer is large when it has at least `stack_bytes` bytes. `size` returns the greatest value of an
    extent.
    """
    body = _at_start(func)
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    pointers: dict[Any, Any] = {}
    parameters = []
    for param in func.params:
        if tirx.is_buffer_var(param):
            pointers[param] = tirx.Var(param.name, tirx.buffer_data_pointer_type(param))
            parameters.append(pointers[param])
        else:
            parameters.append(param)
    scratch, scratch_parameters, rewritten = [], [], []
    for statement in statements:
        if isinstance(statement, tirx.DeclBuffer):
            owner = next(
                (p for p in pointers if tvm_ffi.structural_equal(statement.data, tirx.buffer_data(p))), None
            )
            if owner is not None:
                statement = tirx.DeclBuffer(statement.buffer, data=pointers[owner])
        elif isinstance(statement, tirx.AllocBuffer) and _bytes(statement.buffer, size) >= stack_bytes:
            buffer = statement.buffer
            pointer = tirx.Var(buffer.name, tirx.buffer_data_pointer_type(buffer))
            scratch_parameters.append(pointer)
            scratch.append((str(buffer.dtype), _bytes(buffer, size)))
            statement = tirx.DeclBuffer(buffer, data=pointer)
        rewritten.append(statement)
    scalars = [p for p in parameters if p not in pointers.values()]
    buffers = [p for p in parameters if p in pointers.values()]
    result = tirx.PrimFunc(
        [*buffers, *scratch_parameters, *scalars], tirx.SeqStmt(rewritten), None, attrs=func.attrs
    )
    return Lowered(result, scratch)


def lower(kernel: Kernel, target: tvm.target.Target) -> Lowered:
    """Lower one kernel to the ABI. The function is called `kernel`; the caller gives it its final name."""
    func = _short_positions(kernel.func).with_attr("global_symbol", "kernel")
    mod = tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule({"kernel": func}))
    compact = kernel.family == "opaque" and not kernel.sizes  # a size of memory must be a number
    structure = [item for item in _STRUCTURE if item is not _COMPACT or compact]
    # Simplifiers take a third of the time of kernels with dynamic sizes. Those of _STRUCTURE and _HOIST leave
    # the code as it is, since later passes simplify, too; without that of _AFTER_HOIST it grows by a third.
    without = ["s_tir.StmtSimplify"] if kernel.sizes else []
    with tvm.transform.PassContext(disabled_pass=[] if kernel.family == "opaque" else without):
        mod = tvm.transform.Sequential(structure)(mod)
    mod = _FLATTEN(mod) if kernel.family == "opaque" else flatten(mod)
    lowered = pointers(_large_first(mod["kernel"]) if kernel.family == "opaque" else mod["kernel"])
    mod = tvm.IRModule({"kernel": lowered.func.with_attr("calling_conv", 0)})
    has_branches = _branches(mod["kernel"])
    position_bits = 64 if kernel.wide_positions and "64" in str(target.attrs["mtriple"]).split("-")[0] else 32
    mod = tirx.transform.NarrowDataType(position_bits)(mod)
    mod = tvm.transform.Sequential(_BEFORE_HOIST)(mod)
    if has_branches:
        with tvm.transform.PassContext(disabled_pass=without):
            mod = _HOIST(mod)  # ends in a simplifier
    mod = tvm.transform.Sequential(_AFTER_HOIST)(mod)
    return Lowered(mod["kernel"], lowered.scratch)


def _branches(func: tirx.PrimFunc) -> bool:
    """Whether a function has a branch."""
    interrupted = structural_walk(func.body, [(tirx.IfThenElse, lambda _: tvm_ffi.VisitInterrupt())])
    return interrupted is not None


def written(func: tirx.PrimFunc) -> set[Any]:
    """Pointer parameters of a lowered function through which the function stores."""
    data: dict[Any, Any] = {}
    stored = set()

    def on_declared(node: Any) -> None:
        data[node.buffer] = node.data

    def on_store(node: Any) -> None:
        stored.add(node.buffer)

    structural_walk(func.body, [(tirx.DeclBuffer, on_declared), (tirx.BufferStore, on_store)])
    return {data[buffer] for buffer in stored if buffer in data}
