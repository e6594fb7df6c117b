"""Pools along one axis: convert max_pool1d and avg_pool1d to pools of images with a single line.

Data (N, C, W) becomes (N, 1, W, C), as in graph/convolutions.py: vectors run along the channels, and between
1-D convolutions no transpose remains. Along W the elements of a vector would have windows of their own, whose
padding is a condition on each element. Guarantees: same results.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from kiln.extents import shape_of
from kiln.graph.bindings import CallRewriter, integers

_TURNED = [0, 2, 1]  # (N, C, W) as (N, W, C), and back


def _in_one_line(make: Any) -> Any:
    """The rule that replaces a pool along one axis by `make`, a pool of images."""

    def rule(rewriter: CallRewriter, call: relax.Call) -> Any:
        attrs = call.attrs
        if str(attrs.layout) != "NCW" or str(attrs.out_layout) != "NCW":
            return None
        data = rewriter.emit(relax.op.permute_dims(call.args[0], _TURNED))
        batch, width, channels = shape_of(data)
        left, right = integers(attrs.padding)
        lines = rewriter.emit(
            make(
                rewriter.emit(relax.op.reshape(data, [batch, 1, width, channels])),
                pool_size=[1, *integers(attrs.pool_size)],
                strides=[1, *integers(attrs.strides)],
                padding=[0, left, 0, right],
                dilation=[1, *integers(attrs.dilation)],
                ceil_mode=bool(attrs.ceil_mode),
                count_include_pad=bool(attrs.count_include_pad),
                layout="NHWC",
            )
        )
        batch, _, width, channels = shape_of(lines)
        result = rewriter.emit(relax.op.reshape(lines, [batch, width, channels]))
        return relax.op.permute_dims(result, _TURNED)

    return rule


RULES: dict[str, Any] = {
    "relax.nn.max_pool1d": _in_one_line(relax.op.nn.max_pool2d),
    "relax.nn.avg_pool1d": _in_one_line(relax.op.nn.avg_pool2d),
}
