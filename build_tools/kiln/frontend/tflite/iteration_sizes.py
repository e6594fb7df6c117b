"""Finds sizes that an iteration of a loop computes: a loop of the plan has one size for each tensor."""

from __future__ import annotations

from typing import Any

from kiln.frontend.tflite.files import Kinds, indices

# Inputs that give the size of a result.
_SIZES_OF = {
    "BROADCAST_TO": (1,),
    "FILL": (0,),
    "PAD": (1,),
    "PADV2": (1,),
    "RANGE": (0, 1, 2),
    "RESHAPE": (1,),
    "RESIZE_BILINEAR": (1,),
    "RESIZE_NEAREST_NEIGHBOR": (1,),
    "SLICE": (2,),
    "TILE": (1,),
    "TOPK_V2": (1,),
    "TRANSPOSE_CONV": (0,),
}


def of_computed_size(kinds: Kinds, graph: Any) -> Any | None:
    """The first operator of a loop's `graph` whose size depends on values of the iteration; None without one.

    Arithmetic on shapes alone gives the same size in each iteration, and so does what the file has no mark of
    a dynamic axis for.
    """
    values = set(indices(graph.inputs))  # and what is computed from them
    for op in graph.operators:
        read = indices(op.inputs)
        results = [graph.tensors[index] for index in indices(op.outputs)]
        is_dynamic = any(-1 in indices(result.shapeSignature) for result in results)
        if is_dynamic and values & {
            index for at, index in enumerate(read) if at in _SIZES_OF.get(kinds.of(op), ())
        }:
            return op
        if kinds.of(op) not in ("SHAPE", "RANK") and values & set(read):
            values |= set(indices(op.outputs))
    return None
