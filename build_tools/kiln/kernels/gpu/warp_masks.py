"""Masks of warp shuffles: the whole warp by name, not the threads that happen to be active.

TVM 0.27 lowers a sum over the threads of a block to shuffles with the mask `__activemask()`. That is the set
of threads that happen to run together at this instruction; after a branch the hardware may not have brought a
warp together again (CUDA C++ Programming Guide, "Warp Vote Functions"), and a shuffle with a part of the warp
reads undefined values from the other lanes. All threads of a warp reach a shuffle that no condition on the
thread encloses; its mask is that of the whole warp, and the hardware then waits for every lane.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Call

from kiln.callbacks import structural_map, structural_walk

_ACTIVE = "tirx.tvm_warp_activemask"
_BARRIER = "tirx.tvm_storage_sync"
_WARP = 32
WHOLE = 0xFFFFFFFF


def whole_warps(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """A device function `func` whose shuffles name all 32 lanes; None if not all lanes reach each shuffle.

    That is the case if a shuffle is inside a condition, or if the threads of a block do not fill its warps.
    None as well if lanes exchange values in shared memory without a barrier: TVM does so with types that it
    does not shuffle, such as 8 bits, and prints nothing for its barriers of a warp.
    """
    counts: list[int] = []
    barriers: list[Any] = []
    threads = 1
    conditional = False

    def on_call(node: Any) -> None:
        if _is_active_mask(node):
            counts.append(1)
        if str(getattr(node.op, "name", "")) == _BARRIER and str(node.args[0].value) == "warp":
            barriers.append(node)

    def on_condition(node: Any) -> None:
        nonlocal conditional
        inside: list[Any] = []
        for branch in (node.then_case, node.else_case):
            if branch is not None:
                structural_walk(
                    branch, [(Call, lambda call: inside.append(call) if _is_active_mask(call) else None)]
                )
        conditional = conditional or bool(inside)

    def on_attribute(node: Any) -> None:
        nonlocal threads
        if node.attr_key == "thread_extent" and node.node.thread_tag.startswith("threadIdx"):
            threads *= int(node.value)

    structural_walk(
        func.body, [(Call, on_call), (tirx.IfThenElse, on_condition), (tirx.AttrStmt, on_attribute)]
    )
    if barriers:
        return None
    if not counts:
        return func
    if conditional or threads % _WARP != 0:
        return None
    all_lanes = tirx.const(WHOLE, "uint32")
    return func.with_body(
        structural_map(func.body, [(Call, lambda call: all_lanes if _is_active_mask(call) else call)])
    )


def _is_active_mask(call: Call) -> bool:
    return str(getattr(call.op, "name", "")) == _ACTIVE
