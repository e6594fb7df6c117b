"""Legalisation rule for relax.image.grid_sample with channels last, which TVM 0.27 does not compute.

A position is then the same for all channels of a pixel: it is computed once, and neighbours are read as
vectors of channels.
"""

from __future__ import annotations

from typing import Any

from tvm import te, topi
from tvm.ir import Op


def grid_sample(builder: Any, call: Any) -> Any:
    """Samples of an NHWC image at positions of a grid [N, 2, H, W]; other layouts are left to TVM's rule."""
    attrs = call.attrs
    if str(attrs.layout) != "NHWC":
        return Op.get("relax.image.grid_sample").get_attr("FLegalize")(builder, call)

    def compute(data: Any, grid: Any) -> Any:
        batch, height, width, channels = data.shape
        first = te.compute(
            (batch, channels, height, width), lambda n, c, h, w: data[n, h, w, c], name="channels_first"
        )
        sampled = topi.image.grid_sample(
            first,
            grid,
            method=str(attrs.method),
            layout="NCHW",
            padding_mode=str(attrs.padding_mode),
            align_corners=bool(attrs.align_corners),
        )
        shape = (batch, *sampled.shape[2:], channels)
        return te.compute(shape, lambda n, h, w, c: sampled[n, c, h, w], name="channels_last")

    return builder.call_te(compute, *call.args, primfunc_name_hint="grid_sample")
