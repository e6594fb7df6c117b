"""Lowering of a fused PrimFunc to kernels for an NVIDIA GPU: TVM's dlight schedules, then device functions.

dlight's rules are tried in order (Matmul also handles convolutions, as implicit matmuls); the last rule,
Fallback, handles everything else, with one thread per element. A group may become several kernels, each
launched with a grid of its own. Tensors between kernels become scratch parameters, so that the memory planner
owns every byte on the GPU too. After SplitHostDevice, the host function contains nothing but launches;
`lower` reads them and the plan executes them.

Dynamic sizes are variables of the function; its kernels get the variables that they use as arguments, and the
grids are expressions of the variables.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, PointerType, StringImm
from tvm.s_tir import dlight

from kiln.callbacks import prim_func_pass, structural_walk
from kiln.config.target import Cuda
from kiln.kernels.gpu import attention, serial_loops
from kiln.kernels.gpu.block_tile import Gpu, ProductTiles
from kiln.kernels.gpu.global_loads import in_stages, without_branches
from kiln.kernels.gpu.grid_limits import within_limits
from kiln.kernels.gpu.reductions import Careful, Finished, SharedReduction, Spread, with_finite_identities
from kiln.kernels.gpu.rounding import with_ties_away
from kiln.kernels.gpu.short_indices import with_short_indices
from kiln.kernels.gpu.tensor_cores import TensorProduct
from kiln.kernels.gpu.unit_reductions import without_unit_reductions
from kiln.kernels.gpu.vector_conditions import without_vector_conditions
from kiln.kernels.gpu.warp_masks import whole_warps
from kiln.kernels.gpu.whole_vectors import whole_vectors
from kiln.kernels.gpu.wmma import with_tf32_fragments
from kiln.kernels.gpu.write_back import with_joined_conditions
from kiln.tir import abi
from kiln.tir.symbols import is_dynamic
from kiln.tir.truncated_division import round_down

_TILED = dlight.gpu.Matmul()
_SHARED_SUMS = (
    *map(Careful, (dlight.gpu.GEMV(), dlight.gpu.Reduction(), dlight.gpu.GeneralReduction())),
    Careful(SharedReduction()),
)
# The rules in _SHARED_SUMS divide a sum among the threads of a block, up to 256. Depthwise convolutions and
# pooling sum so few elements that most of these threads would be idle; a sum of fewer elements than _LONG_SUM
# is computed by one thread. Several sums of one function, as in softmax, would then be as many kernels: where
# there are at most _LINES lines for each multiprocessor, a block of threads computes a line in one kernel.
_LONG_SUM = 64
_LINES = 8  # blocks of 256 threads, which a multiprocessor has at once
# The first passes of TVM's own pipeline for GPUs (tvm.s_tir.pipeline, 0.27); then parameters become pointers.
_STRUCTURE = [
    s_tir.transform.CanonicalizeLoop(),
    prim_func_pass(lambda func, *_: with_joined_conditions(func), opt_level=0, name="JoinedConditions"),
    s_tir.transform.LowerCrossThreadReduction(),
    s_tir.transform.LowerInitBlock(),
    s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
    s_tir.transform.ConvertBlocksToOpaque(),
    s_tir.transform.LiftThreadBinding(),
    s_tir.transform.ManifestSharedMemoryLocalStage(),
    s_tir.transform.CompactBufferAllocation(),
    s_tir.transform.LowerAutoCopy(),
    s_tir.transform.UnifyThreadBinding(),
    s_tir.transform.LowerMatchBuffer(),
    s_tir.transform.StmtSimplify(),
    s_tir.transform.InjectPermutedLayout(),
    s_tir.transform.AnnotateIrregularLoop(),
    s_tir.transform.InjectSoftwarePipeline(),
    s_tir.transform.TransformMmaBufferLayout(),
    s_tir.transform.LowerOpaqueBlock(),
    tirx.transform.FlattenBuffer(),
]
# The other passes of that pipeline, without CommonSubexprElim: nvcc eliminates common subexpressions, and
# TVM's pass leaves values that nothing reads.
_CODE = [
    tirx.transform.NarrowDataType(32),
    s_tir.transform.LoopPartition(),
    prim_func_pass(lambda func, *_: whole_vectors(func), opt_level=0, name="WholeVectors"),
    prim_func_pass(lambda func, *_: without_vector_conditions(func), opt_level=0, name="VectorConditions"),
    prim_func_pass(lambda func, *_: round_down(func), opt_level=0, name="RoundDown"),
    tirx.transform.VectorizeLoop(True),
    s_tir.transform.InjectVirtualThread(),
    s_tir.transform.InjectDoubleBuffer(),
    tirx.transform.StorageRewrite(),
    s_tir.transform.HoistIfThenElse(),
    tirx.transform.UnrollLoop(),
    s_tir.transform.RenormalizeSplitPattern(),
    tirx.transform.StmtSimplify(),
    tirx.transform.RemoveNoOp(),
    s_tir.transform.RewriteUnsafeSelect(),
    tirx.transform.VerifyMemory(),
    tirx.transform.AnnotateEntryFunc(),
    s_tir.transform.ThreadSync("shared"),
    s_tir.transform.ThreadSync("shared.dyn"),
    s_tir.transform.ThreadSync("warp"),
    s_tir.transform.InferFragment(),
    s_tir.transform.LowerThreadAllreduce(),
    s_tir.transform.MergeSharedMemoryAllocations(),
    tirx.transform.StmtSimplify(),  # of the places in the merged memory
    tirx.transform.SplitHostDevice(),
]
_DEVICE = [
    tirx.transform.LowerWarpMemory(),
    tirx.transform.StmtSimplify(),
    tirx.transform.LowerIntrin(),
]
# Of kernels written by hand: nvcc unrolls their loops, and functions that they call use whole buffers.
_BY_HAND = {"tirx.UnrollLoop": {"explicit_unroll": False}}
_NOT_BY_HAND = ["s_tir.CompactBufferAllocation", "s_tir.ThreadSync"]
_AXES = ("x", "y", "z")
_KERNEL = 2  # calling_conv of a function that is launched, CallingConv::kDeviceKernelLaunch


@dataclass(frozen=True)
class LaunchArgument:
    """A parameter of a device function: the position of its tensor, and whether the tensor is written.

    Positions count the buffers of the fused function, then the scratch tensors. If `value` is not None, the
    parameter is not a tensor but a number, the value of this expression of sizes; `position` is then -1.
    """

    position: int
    dtype: str
    written: bool
    value: Any = None


@dataclass(frozen=True)
class KernelLaunch:
    """One kernel and its launch: number of blocks (`grid`) and threads per block (`block`) along x, y and z.

    The numbers of blocks may be expressions of sizes.
    """

    func: tirx.PrimFunc
    arguments: list[LaunchArgument]
    grid: tuple[Any, Any, Any]
    block: tuple[int, int, int]


@dataclass(frozen=True)
class Launches:
    """The launches that compute a fused function, and data type and bytes of each scratch tensor."""

    launches: list[KernelLaunch]
    scratch: list[tuple[str, int]]


def tvm_target(cuda: Cuda) -> tvm.target.Target:
    """TVM's target for all GPUs of `cuda`: they share one code, so the limits are the oldest GPU's limits."""
    description = {
        "kind": "cuda",
        "arch": cuda.oldest,
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,  # on every GPU, without an opt-in
        "thread_warp_size": 32,
    }
    return tvm.target.Target(description)


def lower(
    func: tirx.PrimFunc,
    target: tvm.target.Target,
    size: Callable[[Any], int] = int,
    multiprocessors: int = 1,
    tiles: ProductTiles | None = None,
) -> Launches:
    """The launches that compute `func`, in order; `size` returns the greatest value of an extent.

    `multiprocessors`: of the GPU that tiles are chosen for; with 1 every tile has enough blocks. `tiles`:
    chooses those of products on tensor cores; None: by the rule.

    Raises ValueError if a statement of `func` is not mapped to threads by any rule.
    """
    fused = attention.applies(func)
    if fused is not None:
        kernel = attention.make(fused, size, multiprocessors).with_attr("global_symbol", "kernel")
        kernel = with_short_indices(kernel, size)
        by_hand = _launches(tvm.IRModule({"kernel": kernel}), target, size, written=True)
        assert by_hand is not None, "it has no shuffles of TVM's"
        return by_hand
    named = func.with_attr("global_symbol", "kernel").with_attr("dlight.do_not_tensorize", True)
    named = without_unit_reductions(serial_loops.mapped(with_ties_away(named)))
    identities = with_finite_identities(with_short_indices(named, size))
    tensor = TensorProduct(tiles or ProductTiles(Gpu(multiprocessors)))
    plain = Careful(Finished(multiprocessors)), Spread(multiprocessors)
    scheduled = None
    if _longest_sum(func) >= _LONG_SUM or _has_few_lines(func, multiprocessors):
        with contextlib.suppress(Exception):  # TVM's passes refuse some forms that its rules make
            scheduled = _with_rules(identities.func, (tensor, _TILED, *_SHARED_SUMS, *plain), target, size)
    if scheduled is None:
        scheduled = _with_rules(identities.func, (tensor, _TILED, *plain), target, size)
    assert scheduled is not None, "without sums over threads there is no shuffle"
    launches = [replace(one, func=identities.back(one.func)) for one in scheduled.launches]
    return replace(scheduled, launches=launches)


def _with_rules(
    func: tirx.PrimFunc, rules: tuple[Any, ...], target: tvm.target.Target, size: Callable[[Any], int]
) -> Launches | None:
    """The launches of a function under the first of dlight's `rules` that fits.

    None if it has a shuffle that not all lanes of a warp reach (kiln.kernels.gpu.warp_masks), or a tensor of
    dynamic size in a block's memory. Raises ValueError if a statement is not mapped to threads.
    """
    mod = tvm.IRModule({"kernel": func})  # a new one each time: dlight changes the module that it is given
    with target:
        mod = dlight.ApplyDefaultSchedule(*rules)(mod)
    return _launches(mod, target, size)


def _launches(
    mod: tvm.IRModule, target: tvm.target.Target, size: Callable[[Any], int], written: bool = False
) -> Launches | None:
    """The launches of a scheduled function; None as _with_rules.

    `written`: the function is a kernel written by hand, with its own barriers and unrolled loops.
    """
    mod = tirx.transform.BindTarget(target.with_host("llvm"))(mod)
    disabled = _NOT_BY_HAND if written else []
    with tvm.transform.PassContext(disabled_pass=disabled):
        mod = tvm.transform.Sequential(_STRUCTURE)(mod)
    lowered = abi.pointers(mod["kernel"], 0, size)
    # TVM's passes see no conflict of accesses to different tensors in one place of merged memory;
    # without_branches separates them by a barrier in functions with stages.
    merged = in_stages(lowered.func.body)
    config = {"tirx.merge_static_smem": merged, **(_BY_HAND if written else {})}
    with tvm.transform.PassContext(config=config, disabled_pass=disabled):
        mod = tvm.transform.Sequential(_CODE)(tvm.IRModule({"kernel": lowered.func}))
    kernels = [whole_warps(f) for f in mod.functions.values() if _is_kernel(f)]
    functions = {str(f.attrs["global_symbol"]): without_branches(f) for f in kernels if f is not None}
    if len(functions) < len(kernels) or any(map(_allocates_dynamic_sizes, functions.values())):
        return None
    device = tvm.transform.Sequential(_DEVICE)(tvm.IRModule(functions))
    device = tvm.IRModule({v.name_hint: with_tf32_fragments(f) for v, f in device.functions_items()})
    host = mod["kernel"]
    positions = {param: index for index, param in enumerate(host.params)}
    owners: dict[Any, int] = {}
    launches = []
    for statement in host.body.seq if isinstance(host.body, tirx.SeqStmt) else [host.body]:
        if isinstance(statement, tirx.DeclBuffer) and statement.data in positions:
            owners[statement.buffer] = positions[statement.data]
        elif isinstance(statement, tirx.Evaluate) and _is_launch(statement.value):
            launches.append(_launch(statement.value, device, owners, size))
        else:
            raise ValueError("a part of it was not mapped to the threads of a GPU")
    return Launches(launches, lowered.scratch)


def _longest_sum(func: tirx.PrimFunc) -> int:
    """The most elements that one reduction of `func` combines; a dynamic extent counts as _LONG_SUM."""
    longest = 1

    def on_block(block: Any) -> None:
        nonlocal longest
        count = 1
        for axis in block.iter_vars:
            if int(axis.iter_type) == tirx.IterVar.CommReduce:
                count *= _LONG_SUM if is_dynamic(axis.dom.extent) else int(axis.dom.extent)
        longest = max(longest, count)

    structural_walk(func.body, [(s_tir.SBlock, on_block)])
    return longest


def _has_few_lines(func: tirx.PrimFunc, multiprocessors: int) -> bool:
    """Whether `func` has several reductions, and a GPU has a block of threads for each result at once."""
    counts: list[int] = []

    def on_block(block: Any) -> None:
        reduced = [int(axis.iter_type) == tirx.IterVar.CommReduce for axis in block.iter_vars]
        if any(reduced):
            extents = [
                a.dom.extent for a, is_reduced in zip(block.iter_vars, reduced, strict=True) if not is_reduced
            ]
            counts.append(-1 if any(map(is_dynamic, extents)) else prod(map(int, extents)))

    structural_walk(func.body, [(s_tir.SBlock, on_block)])
    return len(counts) > 1 and min(counts) >= 0 and max(counts) <= _LINES * multiprocessors


def _allocates_dynamic_sizes(func: tirx.PrimFunc) -> bool:
    """Whether a device function has a tensor of dynamic size of its own."""
    dynamic_sizes: list[Any] = []

    def on_allocation(node: Any) -> None:
        if any(is_dynamic(size) for size in node.buffer.shape):
            dynamic_sizes.append(node)

    structural_walk(func.body, [(tirx.AllocBuffer, on_allocation)])
    return bool(dynamic_sizes)


def _is_kernel(func: Any) -> bool:
    return int((func.attrs or {}).get("calling_conv", 0)) == _KERNEL


def _is_launch(value: Any) -> bool:
    return isinstance(value, Call) and str(getattr(value.op, "name", "")) == "tirx.call_ffi_kernel"


def _launch(
    call: Call, device: tvm.IRModule, owners: dict[Any, int], size: Callable[[Any], int]
) -> KernelLaunch:
    """The Launch for a call of a device function; `owners`: positions of tensors, by buffer."""
    name, *values = call.args
    assert isinstance(name, StringImm)
    func = device[name.value]
    words = [str(word) for word in call.attrs.launch_params]
    tensors, extents = values[: len(values) - len(words)], values[len(values) - len(words) :]
    sizes = {}
    for word, extent in zip(words, extents, strict=True):
        kind, _, axis = word.partition(".")
        if kind not in ("blockIdx", "threadIdx") or (kind == "threadIdx" and is_dynamic(extent)):
            raise ValueError(f"its launch needs {word} {extent}, which the runtime does not set")
        sizes[kind, axis] = extent if is_dynamic(extent) else int(extent)
    written = abi.written(func)
    arguments = []
    for param, tensor in zip(func.params, tensors, strict=True):
        if not isinstance(param.ty, PointerType):
            arguments.append(LaunchArgument(-1, str(param.ty.dtype), False, tensor))
            continue
        owner = next((at for buffer, at in owners.items() if _is_data_of(tensor, buffer)), None)
        if owner is None:
            raise ValueError(f"its kernel takes {param.name}, which is not a tensor")
        dtype = str(param.ty.element_type.dtype)
        arguments.append(LaunchArgument(owner, dtype, param in written))
    grid, block = (tuple(sizes.get((kind, axis), 1) for axis in _AXES) for kind in ("blockIdx", "threadIdx"))
    func, blocks = within_limits(func, grid, size)  # type: ignore[arg-type]  # three axes
    return KernelLaunch(func, arguments, blocks, block)  # type: ignore[arg-type]


def _is_data_of(expr: Any, buffer: tirx.Buffer) -> bool:
    return bool(tvm_ffi.structural_equal(expr, tirx.buffer_data(buffer)))
