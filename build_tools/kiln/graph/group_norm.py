"""Group normalisation as means over H and W, which stay in any layout, and a few numbers a channel.

TVM's own form reduces pairs over the channels of a group and all pixels, one element at a time, and fixes
NCHW. Here each channel's mean is taken first; that of a group is the mean of its channels', as all have the
same number of elements. The variance is that of the centred tensor: two passes, no cancellation (Wu and He,
"Group Normalization", 2018, says what is computed).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from kiln.graph.bindings import CallRewriter, const, integers, rewrite_calls, static_shape

op = relax.op


def _group_norm(rewriter: CallRewriter, call: Any) -> Any:
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

    def mean(of: Any) -> Any:
        """The mean of each channel's group, for each channel."""
        found = emit(op.mean(of, spatial, keepdims=True))
        if groups == channels:
            return found
        apart = emit(op.reshape(found, [batch, groups, channels // groups]))
        together = emit(op.mean(apart, [2], keepdims=True))
        spread = emit(op.broadcast_to(together, [batch, groups, channels // groups]))
        return emit(op.reshape(spread, column))

    centred = emit(op.subtract(data, mean(data)))
    variance = mean(emit(op.multiply(centred, centred)))
    factor = emit(op.rsqrt(emit(op.add(variance, const(float(attrs.epsilon), "float32")))))
    if attrs.scale:
        factor = emit(op.multiply(factor, emit(op.reshape(gamma, [1, *column[1:]]))))
    result = op.multiply(centred, factor)
    return op.add(emit(result), emit(op.reshape(beta, [1, *column[1:]]))) if attrs.center else result


def group_norms(mod: tvm.IRModule) -> tvm.IRModule:
    """See the module's docstring."""
    return rewrite_calls(mod, {"relax.nn.group_norm": _group_norm})
