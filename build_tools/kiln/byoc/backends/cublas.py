"""cuBLASLt: dense layers, 1x1 convolutions and matmuls of activations on NVIDIA GPUs.

The library is loaded on the device when a session is opened; it has several hundred megabytes and is
installed there with CUDA, so it is not part of a bundle, and a program starts without it.
runtime_c/cuda/cuda_cublas.c calls the library; the C generated here only holds the sizes. With
`precision: fp16` or bf16 the inputs, the bias and the stored output have 16 bits, and the library multiplies
and adds in float32; with `precision: tf32` it rounds float32 to tf32 where it multiplies.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.byoc.backend import Backend, Code, Library, TargetFacts
from kiln.config.precisions import holds, is_narrow, stored

if TYPE_CHECKING:
    from kiln.byoc.match import Match

LIBRARY = Library(
    name="cuBLASLt",
    licence="LicenseRef-NVIDIA-CUDA-EULA",
    symbols=("cublasLtMatmul",),
    heap="library",
)
# NVIDIA's documentation (cuBLAS, "cuBLAS Workspace") recommends 32 MiB from Hopper on, else 4 MiB.
_WORKSPACE = {True: 32 << 20, False: 4 << 20}
_HOPPER = 90
_TYPES = {"float32": "KILN_CUBLAS_FLOAT", "float16": "KILN_CUBLAS_HALF", "bfloat16": "KILN_CUBLAS_BRAIN"}
_SIZES = ("rows", "columns", "depth", "batch")

_TEXT = """\
#include "cuda_cublas.h"

kiln_cuda_function SYMBOL;

int32_t SYMBOL(kiln_cuda_call *call, const void *const *args) {{
    static const kiln_cublas_product product = {{
        .type = {type}, .rows = {rows}, .columns = {columns}, .depth = {depth}, .batch = {batch},
        .tf32 = {tf32}, .inside = {inside}, .bias = {bias}, .residual = {residual}, .relu = {relu},
        .workspace_bytes = {workspace},
    }};
    return kiln_cublas_compute(call, &product, args);
}}
"""


def patterns() -> list[Any]:
    """Graph patterns, matmuls first; `generate` rejects convolutions that are not matmuls."""
    from kiln.byoc import products

    return [*products.dense(), *products.matmul(), *products.conv2d()]


def generate(match: Match, facts: TargetFacts) -> Code | None:
    """Generate one call of cublasLtMatmul: bias and ReLU are the epilogue, the residual is the C matrix.

    Returns None for other limits than ReLU's, for a convolution that is not a matmul, and for constants that
    exceed the range of the model's precision.
    """
    from kiln.byoc import products
    from kiln.tir.symbols import product

    if products.limits(match) not in (None, (0.0, float("inf"))):
        return None
    if match.pattern == "conv2d" and not products.is_product(match):
        return None
    x, w = match.operands["x"].shape, match.operands["w"]
    batched = match.pattern == "matmul"
    extents = {
        "rows": match.output.shape[-2] if batched else product(match.output.shape[:-1]),
        "columns": w.shape[-1],
        "depth": w.shape[-2],
        "batch": product(x[:-2]) if batched else 1,
    }
    dtype, narrow = stored(facts.precision), is_narrow(facts.precision)
    weights = None if w.value is None else w.value.reshape(w.value.shape[-2:]).T
    values = {"w": weights, "bias": products.bias_of(match)}
    constants = {name: value for name, value in values.items() if value is not None}
    if not all(holds(dtype, value) for value in constants.values()):
        return None
    constants = {name: value.astype(dtype, order="C") for name, value in constants.items()}
    added = [name for name in ("bias", "residual") if name in match.operands]
    workspace = _WORKSPACE[facts.gpu >= _HOPPER]
    source = _TEXT.format(
        **{name: size if isinstance(size, int) else "KILN_CUBLAS_DYNAMIC" for name, size in extents.items()},
        **{name: str(name in added).lower() for name in ("bias", "residual")},
        type=_TYPES[dtype],
        tf32=str(facts.precision == "tf32").lower(),
        inside=str(not batched).lower(),
        relu=str(products.limits(match) is not None).lower(),
        workspace=f"{workspace}u",
    )
    return Code(
        source,
        ["x", "w", *added],
        constants,
        [extents[name] for name in _SIZES if not isinstance(extents[name], int)],
        in_place=[name for name in added if name == "residual"],
        scratch=workspace,
        dtypes=dict.fromkeys(("x", "w", "residual", "output"), dtype) if narrow else {},
    )


def runtime() -> list[Path]:
    """C file that loads the library and calls it."""
    from kiln.paths import data_dir

    return [data_dir("runtime_c") / "cuda" / "cuda_cublas.c"]


BACKEND = Backend(
    "cublas",
    archs=("x86_64", "aarch64"),
    library=LIBRARY,
    generate=generate,
    patterns=patterns,
    layouts={"x": "(…, k)", "w": "(n, k), computed: (k, n)"},
    device="cuda",
    runtime=runtime,
)
