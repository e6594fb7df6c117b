"""Operations after a product in the same kernel: activations, named by constants."""

import triton
import triton.language as tl


@triton.jit
def activated(x, KIND: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Activation KIND of float32 x. clip has limits LOW and HIGH, relu and none have neither."""
    if KIND == "relu":
        x = tl.where(x < 0.0, 0.0, x)
    elif KIND == "clip":
        x = tl.where(x < LOW, LOW, x)
        x = tl.where(x > HIGH, HIGH, x)
    elif KIND == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x / (1.0 + tl.exp(-2.0 * inner))
    elif KIND == "silu":
        x = x / (1.0 + tl.exp(-x))
    elif KIND == "sigmoid":
        x = 1.0 / (1.0 + tl.exp(-x))
    elif KIND == "tanh":
        x = 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0
    return x


@triton.jit
def rounded_tf32(x):
    """float32 x rounded to 10 bits of mantissa, ties away from zero, as cvt.rna.tf32 does; NaN stays."""
    bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)


@triton.jit
def product(a, w, total, TF32: tl.constexpr):
    """total + a · w in float32.

    TF32: the operands are float32; `a` is rounded to tf32, and of `w` the tensor cores ignore the low bits.
    Otherwise the operands have 16 bits, or are float32 and multiplied without loss.
    """
    if TF32:
        return tl.dot(rounded_tf32(a), w, total, input_precision="tf32")
    return tl.dot(a, w, total, input_precision="ieee")


@triton.jit
def finish(
    total, bias, residual, y, row, column, part, rows,
    COLUMNS: tl.constexpr, SPLIT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
):  # fmt: skip
    """Store a block's sums in y (rows, COLUMNS), after bias, residual and activation.

    SPLIT > 1: the sums are those of one part of the depth; y is (SPLIT, rows, COLUMNS), without an epilogue.
    """
    inside = (row < rows)[:, None] & (column < COLUMNS)[None, :]
    index = row[:, None] * COLUMNS + column[None, :]
    if SPLIT > 1:
        tl.store(y + part * rows * COLUMNS + index, total, mask=inside)
    else:
        if HAS_BIAS:
            total += tl.load(bias + column)[None, :]
        if HAS_RESIDUAL:
            total += tl.load(residual + index, mask=inside, other=0.0).to(tl.float32)
        total = activated(total, ACTIVATION, LOW, HIGH)
        tl.store(y + index, total.to(y.dtype.element_ty), mask=inside)
