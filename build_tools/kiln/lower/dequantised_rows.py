"""A normalisation or a softmax of a quantised tensor reads its levels.

Fusion appends operators to a reduction, and puts none in front of it: a dequantize before a layer_norm would
be a kernel of its own, which stores floats, four times as many bytes as it reads. Here both become one
function, where kernels/cpu/row_reduction.py computes it, which dequantises in registers in each loop over a
row. Transposes before the dequantize that undo one another, as around a convolution, move nothing.
Needs: fused functions with op info. Guarantees: same results.
"""

from __future__ import annotations

from typing import Any

import tvm

from kiln.graph.bindings import count_uses
from kiln.kernels.cpu import row_reduction
from kiln.lower.merged_calls import Chain, names_of, of_computed
from kiln.opinfo import attach
from kiln.tir.builder import Machine
from kiln.tir.fused import Fused, NotSimple

# Each of the two or three loops over a row converts again. One instruction of wide vectors widens bytes to
# the size of floats, narrow ones take two: there a conversion costs more than the load of a float.
_LEAST_LANES = 8
_ROWS = frozenset({"nn.layer_norm", "nn.rms_norm", "nn.softmax", "nn.log_softmax"})


def dequantised_rows(machine: Machine, mod: tvm.IRModule) -> tvm.IRModule:
    """One call for each dequantize and the only reader of its result, over rows."""
    if machine.lanes("float32") < _LEAST_LANES:
        return mod
    return of_computed(mod, _chains(mod), _computed, "rows")[0]


def _chains(mod: tvm.IRModule) -> list[Chain]:
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    bound: dict[Any, Any] = {binding.var: binding.value for binding in bindings}
    uses, found = count_uses(mod), []
    for result, call in bound.items():
        names = names_of(mod, call)
        if not names or names[0] not in _ROWS:
            continue
        data = call.args[1].fields[0]
        if _is_dequantised(mod, bound.get(data)) and uses.get(data) == 1:
            found.append(Chain((data, result), (bound[data], call)))
    return found


def _is_dequantised(mod: tvm.IRModule, call: Any) -> bool:
    """Whether `call` dequantises a tensor, and moves no element of it."""
    *moves, last = names_of(mod, call) or [""]
    if last != "dequantize" or any(name != "permute_dims" for name in moves):
        return False
    order = list(range(len(call.ty.shape)))
    for op in attach.of(mod[call.args[0]])[:-1]:
        axes = op["attrs"].get("axes") or list(reversed(range(len(order))))
        order = [order[int(axis)] for axis in axes]
    return order == sorted(order)


def _computed(func: tvm.tirx.PrimFunc) -> bool:
    """Whether one kernel over rows computes `func`, and stores no dequantised tensor."""
    try:
        rows = row_reduction.read_rows(Fused(func))
    except NotSimple:
        return False
    return rows is not None and rows.nests[0].reduced != []
