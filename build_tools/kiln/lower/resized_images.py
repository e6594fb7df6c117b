"""ResizedImages: images of many channels are transposed before and after they are resized, not by the same
kernel.

Resizing, or sampling at positions of a grid, reads a few pixels for each pixel that it writes. With channels
last these are vectors; fused with a transpose to channels first, each element is gathered alone, at positions
that are computed for each element.
Marks the transposes as opaque to fusion, which then are kernels of their own (kernels/cpu/transposed.py).
Applies to NHWC of so many channels that vectors along them are mostly full.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.tirx import PrimFunc

from kiln.graph.bindings import operator
from kiln.lower.views.in_place_padding import OPAQUE
from kiln.opinfo.attach import of
from kiln.tir.symbols import is_dynamic

_RESIZING = (["image.resize2d"], ["image.grid_sample"])


def keep_transposes_separate(mod: tvm.IRModule, lanes: int) -> tvm.IRModule:
    """Mark the transposes next to resized images, for vectors of `lanes` elements."""
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    calls = [binding for binding in bindings if operator(binding.value) == "relax.call_tir"]
    calls_by_result = {binding.var: binding.value for binding in calls}
    names = {
        variable.name_hint: [op["name"] for op in of(func)]
        for variable, func in mod.functions_items()
        if isinstance(func, PrimFunc)
    }

    def is_transpose(call: Any) -> bool:
        return names[call.args[0].name_hint] == ["permute_dims"]

    def is_resized(call: Any) -> bool:
        if names[call.args[0].name_hint] not in _RESIZING or lanes == 1:
            return False
        channels = call.ty.shape[-1]
        attrs = next(op["attrs"] for op in of(mod[call.args[0]]))
        return attrs["layout"] == "NHWC" and not is_dynamic(channels) and 2 * int(channels) >= lanes

    separate = set()
    for call in calls_by_result.values():
        operands = [calls_by_result[item] for item in call.args[1].fields if item in calls_by_result]
        if is_resized(call):
            separate |= {transpose.args[0].name_hint for transpose in operands if is_transpose(transpose)}
        elif is_transpose(call) and any(map(is_resized, operands)):
            separate.add(call.args[0].name_hint)
    for variable, func in list(mod.functions_items()):
        if variable.name_hint in separate:
            mod.update_func(variable, func.with_attr("op_pattern", OPAQUE))
    return mod
