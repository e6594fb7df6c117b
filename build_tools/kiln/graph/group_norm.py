"""Group normalisation as means over H and W, in any layout, and elementwise operators.

TVM's own form reduces pairs over the channels of a group and all pixels, one element at a time, and requires
NCHW. Here the mean of each channel is computed first; the mean of a group is the mean of its channels' means,
as all channels have the same number of elements. The variance is computed from the centred tensor: two
passes, without cancellation. Definition: Wu and He, "Group Normalization", 2018.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from kiln.graph.bindings import CallRewriter, const, integers, rewrite_calls, static_shape

op = relax.op


def _group_norm(rewriter: CallRewriter, call: relax.Call) -> Any:
    data, gamma, beta = call.args
    attrs, emit = call.attrs, rewriter.emit
    if any(not isinstance(size, tvm.tirx.IntImm) for size in data.ty.shape):
        return None
    batch, channels, *sizes = static_shape(data)
    spatial = list(range(2, 2 + len(sizes)))
    axes = sorted(axis % (2 + len(sizes)) for axis in integers(attrs.axes))
    if not sizes or int(attrs.channel_axis) != 1 or axes != spatial or str(data.ty.dtype) != "float32":
        return None
    groups = int(attrs.num_groups)
    column = [batch, channels, *(1 for _ in sizes)]

    def mean(values: Any) -> Any:
        """The mean of `values` over the group of each channel."""
        by_channel = emit(op.mean(values, spatial, keepdims=True))
        if groups == channels:
            return by_channel
        grouped = emit(op.reshape(by_channel, [batch, groups, channels // groups]))
        by_group = emit(op.mean(grouped, [2], keepdims=True))
        repeated = emit(op.broadcast_to(by_group, [batch, groups, channels // groups]))
        return emit(op.reshape(repeated, column))

    centred = emit(op.subtract(data, mean(data)))
    variance = mean(emit(op.multiply(centred, centred)))
    factor = emit(op.rsqrt(emit(op.add(variance, const(float(attrs.epsilon), "float32")))))
    if attrs.scale:
        factor = emit(op.multiply(factor, emit(op.reshape(gamma, [1, *column[1:]]))))
    result = op.multiply(centred, factor)
    return op.add(emit(result), emit(op.reshape(beta, [1, *column[1:]]))) if attrs.center else result


def group_norms(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace relax.nn.group_norm on static float32 tensors of layout NC…, see the module's docstring."""
    return rewrite_calls(mod, {"relax.nn.group_norm": _group_norm})
