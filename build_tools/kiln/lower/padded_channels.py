"""Images with few channels get channels of zeros, so that a GPU copies the channels of a pixel at once.

A convolution on tensor cores gathers its windows while it copies them to shared memory: element by element
where a pixel has 3 channels, 8 bytes at a time where it has 4 of 16 bits. The weights of the new channels are
zeros.

    conv2d(x of 3 channels, w) = conv2d(x and a channel of zeros, w and zeros)

Requires NHWC images, HWIO weights that are constants, and one group. Applies where the image is computed
element by element, such as by the transpose of a model's input: the zeros are stored by that kernel, and no
kernel is added. Runs before legalisation, for precisions that tensor cores multiply.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.config.sizes import ceil_div
from kiln.graph.bindings import CallRewriter, const, constant, count_uses, operator, rewrite_calls
from kiln.kernels.gpu.block_tile import LEAST
from kiln.tir.symbols import is_dynamic

CHANNELS = 4  # numbers that a thread copies at once
# Operators that compute an image element by element.
_ELEMENTWISE = {
    "permute_dims", "multiply", "add", "subtract", "divide", "maximum", "minimum", "astype", "clip",
    "dequantize", "strided_slice", "flip",
}  # fmt: skip


def padded_channels(mod: tvm.IRModule) -> tvm.IRModule:
    """Add channels of zeros to the images that convolutions on tensor cores read, and to their weights."""
    uses = count_uses(mod)

    def rule(rewriter: CallRewriter, call: relax.Call) -> Any:
        data, weights, attrs = call.args[0], constant(call.args[1]), call.attrs
        if weights is None or weights.ndim != 4 or str(weights.dtype) != "float32" or int(attrs.groups) != 1:
            return None
        if str(attrs.data_layout) != "NHWC" or str(attrs.kernel_layout) != "HWIO":
            return None
        channels, outputs = weights.shape[2:]
        missing = ceil_div(channels, CHANNELS) * CHANNELS - channels
        made = operator(rewriter.definition(data))
        if not 1 < channels < CHANNELS or outputs < LEAST or is_dynamic(data.ty.shape[3]):
            return None
        if made is None or made.removeprefix("relax.") not in _ELEMENTWISE:
            return None
        if uses.get(rewriter.original.args[0]) != 1:
            return None  # another operator reads the image as it is
        image = rewriter.emit(relax.op.nn.pad(data, [*[0] * 6, 0, missing], "constant", 0.0))
        longer = np.pad(weights, [(0, 0), (0, 0), (0, missing), (0, 0)])
        return relax.Call(call.op, [image, const(longer, "float32")], attrs, call.ty_args)

    return rewrite_calls(mod, {"relax.nn.conv2d": rule})
