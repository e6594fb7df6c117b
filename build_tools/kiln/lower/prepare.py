"""The last passes on the Relax graph before kernels are made from it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from kiln.extents import shape_of
from kiln.graph.bindings import CallRewriter, Rule, constant, count_uses, integers, operator, rewrite_calls
from kiln.kernels.cpu.gemm_tile import choose_tile
from kiln.kernels.cpu.skipped_taps import axes_of, pays
from kiln.tir.builder import Machine


def _skips_taps(call: relax.Call, machine: Machine) -> bool:
    """Whether the kernel of a conv2d (NHWC) on `machine` skips what reads padding."""
    attrs, weights = call.attrs, constant(call.args[1])
    sizes = [*shape_of(call.args[0])[1:3], *shape_of(call)[1:3]]
    if weights is None or str(attrs.kernel_layout) != "HWIO" or not all(isinstance(n, int) for n in sizes):
        return False
    if str(call.ty.dtype) != "float32" or weights.dtype != "float32" or int(attrs.groups) != 1:
        return False
    if weights.shape[:2] == (3, 3) and [*integers(attrs.strides), *integers(attrs.dilation)] == [1] * 4:
        return False  # Winograd's kernels take fewer products
    if not np.isfinite(weights).all():
        return False  # padding times infinity is NaN
    described = {name: integers(getattr(attrs, name)) for name in ("padding", "strides", "dilation")}
    image, out = sizes[:2], sizes[2:]
    tile = choose_tile(machine, out[0] * out[1], weights.shape[3])
    return pays(*axes_of(image, weights.shape, out, described), tile)


def _pad_before_conv2d(machine: Machine, rewriter: CallRewriter, call: relax.Call) -> Any:
    attrs = call.attrs
    top, left, bottom, right = integers(attrs.padding)
    if str(attrs.data_layout) != "NHWC" or not any((top, left, bottom, right)) or _skips_taps(call, machine):
        return None
    widths = [0, 0, top, bottom, left, right, 0, 0]
    data = rewriter.emit(relax.op.nn.pad(call.args[0], widths, "constant", 0.0))
    return relax.op.nn.conv2d(
        data,
        call.args[1],
        strides=integers(attrs.strides),
        padding=[0, 0, 0, 0],
        dilation=integers(attrs.dilation),
        groups=int(attrs.groups),
        data_layout="NHWC",
        kernel_layout=str(attrs.kernel_layout),
        out_dtype=str(call.ty.dtype),
    )


def explicit_padding(machine: Machine, mod: tvm.IRModule) -> tvm.IRModule:
    """Make the padding of each conv2d a separate op, so that its kernel reads without bounds checks.

    Padding that is wide for its image stays where kernels for `machine` skip it.
    """
    return rewrite_calls(mod, {"relax.nn.conv2d": partial(_pad_before_conv2d, machine)})


def _keep(rewriter: CallRewriter, call: relax.Call) -> Any:
    value = rewriter.emit(call)
    return relax.op.reshape(value, list(call.ty.shape))


def _moved_levels(uses: Mapping[Any, int]) -> Rule:
    """The rule that transposes or reshapes the integers of a dequantised tensor that nothing else reads."""

    def rule(rewriter: CallRewriter, call: relax.Call) -> Any:
        source = rewriter.definition(call.args[0])
        if operator(source) != "relax.dequantize" or uses.get(call.args[0], 0) != 1:
            return None
        numbers = [constant(argument) for argument in source.args[1:]]
        if any(value is None or value.size != 1 for value in numbers):
            return None
        levels = rewriter.emit(
            relax.Call(call.op, [source.args[0], *call.args[1:]], call.attrs, call.ty_args)
        )
        return relax.op.dequantize(levels, *source.args[1:], 0, str(source.ty.dtype))

    return rule


def store_quantised(mod: tvm.IRModule) -> tvm.IRModule:
    """Store quantised tensors as integers: a reshape to the same shape follows each relax.quantize.

    Fusion would otherwise append the next op's dequantize to the producer, which then stores floats, four
    times as many bytes. The reshape costs nothing at run time, and fusion stops at it. Transposes are of the
    integers, too: those around operators with channels last that compute with floats, such as resizing.
    """
    moved = _moved_levels(count_uses(mod))
    rules = {"relax.quantize": _keep, "relax.permute_dims": moved, "relax.reshape": moved}
    return relax.transform.DeadCodeElimination()(rewrite_calls(mod, rules))


def _as_reshape(rewriter: CallRewriter, call: relax.Call) -> Any:
    return relax.op.reshape(call.args[0], list(call.ty.shape))


def free_reshapes(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace squeeze, expand_dims and flatten by reshapes, which move no data."""
    names = ("relax.squeeze", "relax.expand_dims", "relax.flatten")
    return rewrite_calls(mod, dict.fromkeys(names, _as_reshape))


def _clipped(_rewriter: CallRewriter, call: relax.Call) -> Any:
    if str(call.attrs.mode) != "fast":
        return None
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    return relax.op.take(call.args[0], call.args[1], axis, "clip")


def _clip_image_index(rewriter: CallRewriter, call: relax.Call) -> Any:
    """Clip the first of the five numbers of each region, the index of its image, to the batch."""
    op, emit = relax.op, rewriter.emit
    images, regions = shape_of(call.args[0])[0], call.args[1]
    first = emit(op.strided_slice(regions, [1], [0], [1]))
    if isinstance(images, int):
        first = emit(op.clip(first, 0, images - 1))
    else:
        ends = (relax.prim_value(size) for size in (images - 1, images, tirx.IntImm("int64", 1)))
        last = emit(op.astype(emit(op.arange(*ends, "int64")), str(regions.ty.dtype)))
        first = emit(op.minimum(emit(op.maximum(first, relax.const(0.0, str(regions.ty.dtype)))), last))
    corners = emit(op.strided_slice(regions, [1], [1], [5]))
    clipped = emit(op.concat([first, corners], 1))
    return relax.Call(call.op, [call.args[0], clipped], call.attrs, call.ty_args)


def safe_indices(mod: tvm.IRModule) -> tvm.IRModule:
    """Clip indices that come from data to the tensor; TVM's default reads outside of it."""
    regions = ("relax.vision.roi_align", "relax.vision.roi_pool")
    return rewrite_calls(mod, {"relax.take": _clipped, **dict.fromkeys(regions, _clip_image_index)})
