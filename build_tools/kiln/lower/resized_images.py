"""ResizedImages: resizing an image is fused with elementwise operators, not with transposes of many channels.

TVM's analysis knows the pattern of a resizing of known sizes alone. With dynamic sizes an interpolation would
be a kernel of its own, and a dequantised image before it, of four times as many bytes, would be stored.
Nearest neighbours are moved as they are.

Resizing, or sampling at positions of a grid, reads a few pixels for each pixel that it writes. With channels
last these are vectors; fused with a transpose to channels first, each element is gathered alone, at positions
that are computed for each element.
Marks the transposes as opaque to fusion, which then are kernels of their own (kernels/cpu/transposed.py),
where so many channels are last that vectors along them are mostly full.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.tirx import PrimFunc

from kiln.graph.bindings import operator
from kiln.opinfo.attach import of
from kiln.opinfo.kinds import KINDS, OPAQUE, PATTERN, nests_of
from kiln.tir.symbols import is_dynamic

_RESIZE = ["image.resize2d"]
_RESIZING = (_RESIZE, ["image.grid_sample"])
_INJECTIVE = next(number for number, name in KINDS.items() if name == "injective")


def fuse_interpolations(mod: tvm.IRModule) -> tvm.IRModule:
    """Mark functions that interpolate images, each element by itself, as injective to fusion."""
    for variable, func in list(mod.functions_items()):
        ops = of(func) if isinstance(func, PrimFunc) else []
        if [op["name"] for op in ops] != _RESIZE or ops[0]["attrs"]["method"] == "nearest_neighbor":
            continue
        nests = nests_of(func) or []
        if len(nests) == 1 and not nests[0].reduced:
            mod.update_func(variable, func.with_attr(PATTERN, _INJECTIVE))
    return mod


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

    def is_transpose(call: tvm.ir.Call) -> bool:
        return names[call.args[0].name_hint] == ["permute_dims"]

    def operands_of(call: tvm.ir.Call) -> list[Any]:
        """The calls that make the operands of `call`, or the integers of operands that are dequantised."""
        producers = [calls_by_result[item] for item in call.args[1].fields if item in calls_by_result]
        return [
            made
            for operand in producers
            for made in (
                operands_of(operand) if names[operand.args[0].name_hint] == ["dequantize"] else [operand]
            )
        ]

    def is_resized(call: tvm.ir.Call) -> bool:
        if names[call.args[0].name_hint] not in _RESIZING or lanes == 1:
            return False
        channels = call.ty.shape[-1]
        attrs = next(op["attrs"] for op in of(mod[call.args[0]]))
        return attrs["layout"] == "NHWC" and not is_dynamic(channels) and 2 * int(channels) >= lanes

    separate = set()
    for call in calls_by_result.values():
        operands = operands_of(call)
        if is_resized(call):
            separate |= {transpose.args[0].name_hint for transpose in operands if is_transpose(transpose)}
        elif is_transpose(call) and any(map(is_resized, operands)):
            separate.add(call.args[0].name_hint)
    for variable, func in list(mod.functions_items()):
        if variable.name_hint in separate:
            mod.update_func(variable, func.with_attr(PATTERN, OPAQUE))
    return mod
