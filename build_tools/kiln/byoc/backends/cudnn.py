"""cuDNN: convolutions on NVIDIA GPUs.

The library is loaded on the device when a session is opened; it has several hundred megabytes, so it is not
part of a bundle, and a program starts without it. runtime_c/cuda/cuda_cudnn.c calls the library; the C
generated here only holds the sizes. With `precision: fp16` or bf16 the inputs, the bias and the stored output
have 16 bits, and the library multiplies and adds in float32; with `precision: tf32` it rounds float32 to tf32
where it multiplies.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.byoc.backend import Backend, Code, Library, TargetFacts
from kiln.config.precisions import holds, is_narrow, stored

if TYPE_CHECKING:
    from kiln.byoc.match import Match

LIBRARY = Library(
    name="cuDNN",
    licence="LicenseRef-NVIDIA-cuDNN-SLA",
    symbols=("cudnnConvolutionBiasActivationForward",),
    heap="library",
)
_WORKSPACE = 32 << 20  # algorithms that need more are not used
_TYPES = {"float32": "KILN_CUDNN_FLOAT", "float16": "KILN_CUDNN_HALF", "bfloat16": "KILN_CUDNN_BRAIN"}
_SIZES = ("batch", "height", "width", "rows", "columns")

_TEXT = """\
#include "cuda_cudnn.h"

kiln_cuda_function SYMBOL;

int32_t SYMBOL(kiln_cuda_call *call, const void *const *args) {{
    static const kiln_cudnn_convolution convolution = {{
        .type = {type}, .tf32 = {tf32},
        .batch = {batch}, .height = {height}, .width = {width}, .rows = {rows}, .columns = {columns},
        .channels = {channels}, .filters = {filters},
        .filter_height = {filter_height}, .filter_width = {filter_width},
        .padding = {padding}, .stride = {stride}, .dilation = {dilation},
        .residual = {residual}, .relu = {relu},
        .workspace_bytes = {workspace}u,
    }};
    return kiln_cudnn_compute(call, &convolution, args);
}}
"""


def patterns() -> list[Any]:
    """Graph patterns: convolutions with their epilogues."""
    from kiln.byoc import products

    return products.conv2d()


def generate(match: Match, facts: TargetFacts) -> Code | None:
    """Generate one call of cudnnConvolutionBiasActivationForward.

    Returns None for a convolution that the function does not compute: without a bias, in groups, with other
    limits than ReLU's, with asymmetric padding, or with constants that exceed the range of the model's
    precision.
    """
    from kiln.byoc import products

    attrs, value, bias = match.anchor["attrs"], match.operands["w"].value, products.bias_of(match)
    padding = list(attrs["padding"])
    limits = products.limits(match)
    if bias is None or attrs["groups"] != 1 or limits not in (None, (0.0, float("inf"))):
        return None
    if padding[:2] != padding[2:]:
        return None
    assert value is not None
    dtype = stored(facts.precision)
    if not (holds(dtype, value) and holds(dtype, bias)):
        return None
    sizes = dict(zip(_SIZES, [*match.operands["x"].shape[:3], *match.output.shape[1:3]], strict=True))
    r, s, channels, filters = value.shape
    is_residual = "residual" in match.operands
    source = _TEXT.format(
        **{name: size if isinstance(size, int) else "KILN_CUDNN_DYNAMIC" for name, size in sizes.items()},
        type=_TYPES[dtype], tf32=str(facts.precision == "tf32").lower(),
        channels=channels, filters=filters, filter_height=r, filter_width=s,
        padding=_pair(padding[:2]), stride=_pair(attrs["strides"]), dilation=_pair(attrs["dilation"]),
        residual=str(is_residual).lower(), relu=str(limits is not None).lower(), workspace=_WORKSPACE,
    )  # fmt: skip
    added = ["residual"] if is_residual else []
    weights = value.transpose(3, 0, 1, 2).astype(dtype, order="C")
    return Code(
        source, ["x", "w", "bias", *added], {"w": weights, "bias": bias.astype(dtype)},
        [size for size in sizes.values() if not isinstance(size, int)],
        in_place=added, scratch=_WORKSPACE,
        dtypes=dict.fromkeys(("x", "w", "residual", "output"), dtype) if is_narrow(facts.precision) else {},
    )  # fmt: skip


def _pair(numbers: Any) -> str:
    return "{" + ", ".join(str(int(number)) for number in numbers) + "}"


def runtime() -> list[Path]:
    """C file that loads the library and calls it."""
    from kiln.paths import data_dir

    return [data_dir("runtime_c") / "cuda" / "cuda_cudnn.c"]


BACKEND = Backend(
    "cudnn",
    archs=("x86_64", "aarch64"),
    library=LIBRARY,
    generate=generate,
    patterns=patterns,
    layouts={"x": "NHWC", "w": "(n, h, w, c)"},
    device="cuda",
    runtime=runtime,
)
