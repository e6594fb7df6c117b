"""Kiln's own rules next to those of dlight: reductions that threads share, and small blocks of threads.

`Finished` computes what follows a short sum, such as the window of a pooling, in the kernel of the sum.

dlight 0.27 divides sums among threads, but neither maxima and minima nor products: one thread would read a
whole line. `SharedReduction` divides every reduction whose parts may be combined in any order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import tvm
from tvm import s_tir, sym, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight import analysis
from tvm.s_tir.dlight.base import try_inline

from kiln.callbacks import structural_map, structural_walk
from kiln.tir.symbols import is_dynamic, variables

_WARP = 32
# Threads of a block that share a reduction, and of one of few blocks.
_BLOCK, _LARGE_BLOCK, _FEW = 256, 1024, 64
_SMALL_BLOCK = 64  # least threads of a block of a kernel without a reduction among threads
_LIMITS = ("max_shared_memory_per_block", "thread_warp_size")
_LEAST = 64  # elements of a reduction that threads share; fewer are combined by one thread
_MANY = 1 << 20  # a dynamic number of iterations counts as many


@dataclass(frozen=True)
class Identities:
    """A function whose reductions begin with finite numbers, and the infinities that these replace.

    TVM 0.27 divides a maximum among threads only if it begins with the least finite number. But the greatest
    of numbers that are all -inf is -inf: so constants are exchanged before scheduling, and back afterwards.
    `exchanged`: by data type and finite value, the infinity.
    """

    func: tirx.PrimFunc
    exchanged: Mapping[tuple[str, float], float]

    def back(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """A device function with the infinities again."""
        return _exchanged(func, self.exchanged)


def with_finite_identities(func: tirx.PrimFunc) -> Identities:
    """`func` with the greatest finite numbers in place of infinities, unless it has both."""
    limits_found: set[tuple[str, float]] = set()
    structural_walk(
        func.body, [(tirx.FloatImm, lambda node: limits_found.add((str(node.ty.dtype), float(node.value))))]
    )
    exchanged: dict[tuple[str, float], float] = {}
    for dtype, value in limits_found:
        if value in (inf, -inf):
            finite = float((tirx.max_value if value > 0 else tirx.min_value)(dtype).value)
            if (dtype, finite) in limits_found:
                return Identities(func, {})
            exchanged[dtype, finite] = value
    finite_of = {(dtype, value): finite for (dtype, finite), value in exchanged.items()}
    return Identities(_exchanged(func, finite_of), exchanged)


def _exchanged(func: tirx.PrimFunc, values: Mapping[tuple[str, float], float]) -> tirx.PrimFunc:
    """`func` with constants replaced; `values`: the new constant by data type and value."""
    if not values:
        return func

    def replaced(node: Any) -> Any:
        dtype = str(node.ty.dtype)
        value = values.get((dtype, float(node.value)))
        return node if value is None else tirx.const(value, dtype)

    return func.with_body(structural_map(func.body, [(tirx.FloatImm, replaced)]))


def _inlined(rule: Any, func: Any, target: tvm.target.Target) -> tuple[Any, list[Any]]:
    """A schedule of `func` whose elementwise blocks are inlined where they can be, and its blocks.

    No blocks where `rule` does not serve the target, or dlight cannot read the function.
    """
    if not isinstance(func, tirx.PrimFunc) or not rule.is_target_available(target):
        return None, []
    sch = s_tir.Schedule(func)
    infos = analysis.normalize_prim_func(sch)
    return sch, (infos and try_inline(sch, infos)) or []


def _loops(sch: s_tir.Schedule, info: Any) -> tuple[list[Any], list[Any]] | None:
    """The loops of a block over results and over terms of a sum; None where it has other loops."""
    kinds, loops = info.dom_kind(), sch.get_loops(info.block_rv)
    if len(kinds) != len(loops) or set(kinds) - {"S", "R"}:
        return None
    pairs = list(zip(loops, kinds, strict=True))
    return [loop for loop, kind in pairs if kind == "S"], [loop for loop, kind in pairs if kind == "R"]


class SharedReduction(dlight.gpu.Fallback):  # type: ignore[misc]  # tvm is untyped
    """One reduction, with elementwise operators before it, as one block of threads for one or some results.

    Where neighbours in memory belong to one result, a block's threads read them together. Where they belong
    to different results, threads along x read neighbours, and those along y share the elements of each.
    """

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, _: bool) -> s_tir.Schedule | None:
        """The schedule; None for a function of another form."""
        sch, infos = _inlined(self, func, target)
        if len(infos) != 1 or not infos[0].is_reduction():
            return None
        block, kinds = infos[0].block_rv, infos[0].dom_kind()
        node, parts = sch.get(block), _loops(sch, infos[0])
        if len(node.writes) != 1 or parts is None:
            return None
        spatial, reduced = parts
        if _count(sch, reduced) < _LEAST:
            return None
        lanes = 1 if _innermost(node, kinds) == "R" else _neighbours(sch, spatial)
        _schedule(sch, block, spatial, reduced, lanes)
        return sch


def _count(sch: s_tir.Schedule, loops: list[Any]) -> int:
    """Iterations of nested loops."""
    count = 1
    for loop in loops:
        extent = sch.get(loop).extent
        count *= _MANY if is_dynamic(extent) else int(extent)
    return count


def _innermost(node: Any, kinds: str) -> str:
    """Whether the last axis of the largest tensor read depends on the reduction alone ("R") or not ("S")."""
    read = max(node.reads, key=lambda region: len(region.region), default=None)
    owners = [(axis_var.var, kind) for axis_var, kind in zip(node.iter_vars, kinds, strict=True)]
    for axis in reversed([] if read is None else list(read.region)):
        used = variables(axis.min)
        kinds_used = {kind for owner, kind in owners if any(owner.same_as(variable) for variable in used)}
        if kinds_used:
            return "R" if kinds_used == {"R"} else "S"
    return "R"


def _neighbours(sch: s_tir.Schedule, spatial: list[Any]) -> int:
    """The number of results that neighbouring threads compute: it divides their number; 1 if none does."""
    if any(is_dynamic(sch.get(loop).extent) for loop in spatial):
        return 1
    count = _count(sch, spatial)
    return next((lanes for lanes in (_WARP, 16, 8) if count % lanes == 0), 1)


def _schedule(sch: s_tir.Schedule, block: Any, spatial: list[Any], reduced: list[Any], lanes: int) -> None:
    """Give `lanes` results to a block of threads, and each result to its other threads."""
    if not spatial:
        spatial = [sch.add_unit_loop(reduced[0])]
    sch.reorder(*spatial, *reduced)
    results, line = sch.fuse(*spatial), sch.fuse(*reduced)
    threads = _WARP // min(lanes, _WARP)
    block_size = _LARGE_BLOCK if _count(sch, [results]) < _FEW * lanes else _BLOCK
    while threads * lanes < block_size and threads * 2 <= _count(sch, [line]):
        threads *= 2
    sch.split(results, [None, lanes])
    _, shared = sch.split(line, [None, threads])
    partial_block = sch.rfactor(shared, 0)
    blocks, neighbour, inner_loop, part_axis = sch.get_loops(partial_block)
    sch.reorder(blocks, neighbour, part_axis, inner_loop)
    names = ("threadIdx.y", "threadIdx.x") if lanes > 1 else ("threadIdx.x", "threadIdx.y")
    sch.bind(blocks, "blockIdx.x")
    sch.bind(part_axis, names[0])
    sch.bind(neighbour, names[1])
    sch.set_scope(partial_block, 0, "local")
    sch.decompose_reduction(partial_block, inner_loop)
    sch.reverse_compute_at(block, blocks, preserve_unit_loops=True)
    _, part_axis, *other_loops = sch.get_loops(block)
    neighbour = sch.fuse(*other_loops)
    sch.reorder(neighbour, part_axis)
    sch.bind(part_axis, names[0])
    sch.bind(neighbour, names[1])


class Finished(dlight.gpu.Fallback):  # type: ignore[misc]  # tvm is untyped
    """One reduction with elementwise operators after it, each element of the result by a thread of its own.

    dlight's rule makes two kernels of it: one stores the sums, the other reads them.
    """

    def __init__(self, multiprocessors: int) -> None:
        super().__init__()
        self.multiprocessors = multiprocessors

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, _: bool) -> s_tir.Schedule | None:
        """The schedule; None for a function of another form."""
        sch, infos = _inlined(self, func, target)
        if len(infos) != 2 or not infos[0].is_reduction() or infos[1].is_reduction():
            return None
        total, last = (info.block_rv for info in infos)
        parts = _loops(sch, infos[0])
        if len(sch.get_producers(last)) != 1 or parts is None:
            return None
        spatial, reduced = parts
        results = sch.get_loops(last)
        if not results or not _same_sizes(sch, spatial, results):
            return None
        terms = [sch.get(loop).extent for loop in reduced]
        threads = _threads(func, self.multiprocessors, int(target.attrs["max_threads_per_block"]))
        blocks, results_of_thread = sch.split(sch.fuse(*results), [None, threads])
        sch.bind(blocks, "blockIdx.x")
        sch.bind(results_of_thread, "threadIdx.x")
        sch.compute_at(total, results_of_thread, preserve_unit_loops=True)
        _, _, *inner = sch.get_loops(total)
        extents = [sch.get(loop).extent for loop in inner]
        if len(extents) != len(spatial) + len(reduced) or not _equal(extents[-len(terms) :], terms):
            return None
        if not _equal(extents[: -len(terms)], [tirx.const(1, "int64")] * len(spatial)):
            return None
        for result in range(len(sch.get(total).writes)):  # argmax has a place and a value
            sch.set_scope(total, result, "local")
        # Of dynamic sizes TVM proves too little: each term asks if it is the first.
        with contextlib.suppress(RuntimeError):
            sch.decompose_reduction(total, inner[0])
        return sch


def _same_sizes(sch: s_tir.Schedule, one: list[Any], other: list[Any]) -> bool:
    """Whether two nests of loops have the same extents, in this order, but for loops of one iteration."""
    sizes = [[sch.get(loop).extent for loop in loops] for loops in (one, other)]
    first, second = (
        [size for size in each if not _equal([size], [tirx.const(1, "int64")])] for each in sizes
    )
    return len(first) == len(second) and _equal(first, second)


def _equal(one: list[Any], other: list[Any]) -> bool:
    proved = map(sym.Analyzer().can_prove_equal, one, other)
    return len(one) == len(other) and all(proved)


def _threads(func: tirx.PrimFunc, multiprocessors: int, usual: int) -> int:
    """Threads of a block, one for an element of the last tensor: so many that no multiprocessor is idle."""
    shapes = [param.shape for param in func.params[-1:] if tirx.is_buffer_var(param)]
    count = _MANY
    if shapes and not any(is_dynamic(size) for size in shapes[0]):
        count = prod(int(size) for size in shapes[0])
    threads = usual
    while threads > _SMALL_BLOCK and count < threads * multiprocessors:
        threads //= 2
    return threads


class Spread(dlight.gpu.Fallback):  # type: ignore[misc]  # tvm is untyped
    """dlight's rule for everything else, one thread for an element, in blocks for all multiprocessors.

    dlight's blocks have as many threads as the target allows: a small tensor would be computed by few blocks.
    """

    def __init__(self, multiprocessors: int) -> None:
        super().__init__()
        self.multiprocessors = multiprocessors

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> Any:
        """The schedule of dlight's rule, in blocks of no more threads than leave a block for each."""
        usual = int(target.attrs["max_threads_per_block"])
        threads = _threads(func, self.multiprocessors, usual)
        if threads < usual:
            description = {"kind": "cuda", "arch": str(target.attrs["arch"])}
            limits = {key: int(target.attrs[key]) for key in _LIMITS}
            target = tvm.target.Target({**description, **limits, "max_threads_per_block": threads})
        return super().apply(func, target, tunable)


class Careful(dlight.gpu.Fallback):  # type: ignore[misc]  # tvm is untyped
    """A rule of dlight that may fail on a function: the function is then left to the rules after it."""

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.rule = rule

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> Any:
        """The schedule of the rule; None if it has none, or fails."""
        try:
            return self.rule.apply(func, target, tunable)
        except (AssertionError, RuntimeError, ValueError, IndexError):
            return None  # dlight asserts what its analysis has not shown
