"""The kernel that converts a run's input on the GPU: uint8 or float16 where the model takes float32.

kiln_cuda_enqueue_scaled launches it (runtime_c/cuda/cuda_convert.h). It is part of the image of each model
with an input of float32. It waits for no earlier launch itself, so it is launched in the usual way.
"""

from __future__ import annotations

from collections.abc import Iterable

KERNEL = "kiln_convert_input"
# One thread for each element, in the order of the compact output. `kiln_conversion` is kiln_cuda_conversion
# of cuda_convert.h. The loop is not unrolled: a division has a hundred instructions.
_SOURCE = f"""
struct kiln_conversion {{
  const void *from;
  float *to;
  unsigned long long count, sizes[6];
  long long from_strides[6], to_strides[6];
  unsigned axes, channel_axis, is_half, channels;
  float scale[16], offset[16];
}};
static_assert(sizeof(kiln_conversion) == 312, "as kiln_cuda_conversion");

extern "C" __global__ void __launch_bounds__(256) {KERNEL}(const kiln_conversion c) {{
  unsigned long long rest = (unsigned long long)blockIdx.x * 256 + threadIdx.x;
  if (rest >= c.count) return;
  long long from = 0, to = 0;
  unsigned channel = 0;
  #pragma unroll 1
  for (int axis = 5; axis >= 0; axis--) {{
    if (axis >= (int)c.axes) continue;
    const unsigned long long next = rest / c.sizes[axis];
    const long long at = (long long)(rest - next * c.sizes[axis]);
    rest = next;
    from += at * c.from_strides[axis];
    to += at * c.to_strides[axis];
    if (axis == (int)c.channel_axis) channel = (unsigned)at;
  }}
  const float x = c.is_half ? static_cast<float>(((const half *)c.from)[from])
                            : static_cast<float>(((const unsigned char *)c.from)[from]);
  c.to[to] = fmaf(x, c.scale[channel], c.offset[channel]);
}}
"""


def with_conversion(source: str, input_dtypes: Iterable[str]) -> str:
    """CUDA C of a model's kernels, and of the conversion if an input of the model is float32."""
    return f"#include <cuda_fp16.h>\n{source}{_SOURCE}" if "float32" in input_dtypes else source
