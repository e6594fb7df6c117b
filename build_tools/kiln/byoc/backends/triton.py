"""Triton: products and attention as kernels of the project's own templates, compiled ahead of time.

Triton is a compiler: the device needs no library, and the bundle contains its machine code. On GPUs of sm_90
matmuls use wgmma, on older ones mma; operands reach shared memory by asynchronous copies in several stages.
Sizes of the subgraph are constants of the code, dynamic ones parameters. Weights are padded to the tile.

With `precision: fp16` or bf16 tensor cores multiply 16-bit numbers and add in float32, with `tf32` they
multiply float32 numbers rounded to 10 bits of mantissa; float32 is computed without tensor cores. Products of
quantised tensors are sums of 8-bit integers in int32 on tensor cores, with any precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.byoc.backend import Backend, Code, Library, TargetFacts

if TYPE_CHECKING:
    from kiln.byoc.match import Match
    from kiln.config import Target

LIBRARY = Library(name="Triton", licence="MIT", symbols=(), heap="none")
_OLDEST = 80


def refusal(target: Target) -> str | None:
    """Why Triton cannot compile for a target's GPUs; None if it can."""
    assert target.cuda is not None
    old = [arch for arch in target.cuda.archs if int(arch[3:]) < _OLDEST]
    if not old:
        return None
    names = ", ".join(old)
    return f"Triton compiles for sm_{_OLDEST} and newer, the target names {names}; use byoc=cutlass"


def patterns() -> list[Any]:
    """Graph patterns: attention, dense layers, matmuls and convolutions with epilogues; quantised ones."""
    from kiln.byoc import products
    from kiln.byoc.triton import attention, integers

    smooth = products.SMOOTH
    table = [*attention.patterns(), *products.dense(smooth, norm=True), *products.matmul()]
    return [*table, *products.conv2d(smooth), *integers.patterns()]


def generate(match: Match, facts: TargetFacts) -> Code | None:
    """Compile one kernel; None for grouped convolutions and for weights that 16 bits cannot hold."""
    from kiln.byoc.triton import attention, integers, products

    makers: dict[str, Any] = {
        "attention": attention.generate, "dense": products.dense, "matmul": products.matmul,
        "conv2d": products.convolution, "dense_int8": integers.generate, "conv2d_int8": integers.generate,
    }  # fmt: skip
    code: Code | None = makers[match.pattern](match, facts)
    return code


def prepare(mod: Any) -> Any:
    """Merge the products of q, k and v of attention."""
    from kiln.byoc.triton.merge import merge_projections

    return merge_projections(mod)


BACKEND = Backend(
    "triton",
    archs=("x86_64", "aarch64"),
    library=LIBRARY,
    generate=generate,
    patterns=patterns,
    prepare=prepare,
    layouts={"x": "(…, k) or NHWC", "w": "(k, n), padded to the tile"},
    device="cuda",
    refusal=refusal,
)
