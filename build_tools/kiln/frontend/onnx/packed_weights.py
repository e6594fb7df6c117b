"""Products and look-ups of weights in packed blocks: MatMulNBits, MatMulBnb4 and GatherBlockQuantized."""

from __future__ import annotations

import numpy as np

from kiln.arrays import Array
from kiln.config.sizes import ceil_div
from kiln.frontend.onnx.body import Body, Expansion


def unpacked(packed: Array, bits: int, count: int) -> Array:
    """The first `count` numbers of `bits` bits in each row of bytes of the last axis, lowest bits first."""
    per_byte = 8 // bits
    shifts = (np.arange(per_byte) * bits).astype("uint8")
    values = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    flat: Array = values.reshape(*packed.shape[:-1], -1)[..., :count]
    return flat


def constant(body: Body, index: int, noun: str) -> Array:
    array = body.constant(body.input(index))
    if array is None:
        raise ValueError(f"its {noun} ('{body.input(index)}') are computed by the model, allowed: constants")
    return array


def matmul_nbits(body: Body) -> list[str]:
    """com.microsoft.MatMulNBits: A @ W^T + bias, W (N, K) with a scale and zero point for each block of K.

    The input g_idx gives the block of each of the K columns, where they are in another order.
    """
    columns, depth = int(body.required("N")), int(body.required("K"))
    bits, block = int(body.only("bits", 4, 2, 8)), int(body.required("block_size"))
    body.only("weight_prepacked", 0)
    body.accept_attributes("accuracy_level")  # allows, but does not require, products of lower precision
    if block < 16 or block & (block - 1):
        raise ValueError(f"its attribute 'block_size' is {block}, allowed: a power of two of at least 16")
    blocks = ceil_div(depth, block)
    scales = constant(body, 2, "scales").astype("float32").reshape(columns, blocks)
    if not np.isfinite(scales).all():
        raise ValueError(f"its scales ('{body.input(2)}') contain a number that is not finite")
    packed = constant(body, 1, "weights").reshape(columns, blocks, -1)
    levels = unpacked(packed, bits, block).reshape(columns, -1)[:, :depth].astype("float32")
    points: Array = np.full((columns, blocks), 1 << (bits - 1), "float32")
    if body.has(3):
        zero_points = constant(body, 3, "zero points")
        packs = zero_points.dtype == np.uint8
        rows = zero_points.reshape(columns, -1)
        points = (unpacked(rows, bits, blocks) if packs else rows).astype("float32")
    at = _blocks_of_columns(body, depth, block)
    whole = np.clip(np.rint(points), 0, (1 << bits) - 1)
    rests = (whole - points) * scales
    weights = (levels - whole[:, at]) * scales[:, at]
    dtype, x = body.dtype(body.input(0)), body.input(0)
    places = np.argsort(at, kind="stable")
    if not np.array_equal(places, np.arange(depth)) and np.array_equal(at[places], np.arange(depth) // block):
        # The columns of a block lie together again, so that the weights are stored in few bits.
        x = body.op("Gather", x, body.const(places.astype("int64")), axis=body.rank(x) - 1)
        weights = weights[:, places]
    product = body.op("MatMul", x, body.const(np.ascontiguousarray(weights.T), dtype))
    if rests.any():
        product = body.op("Add", product, _product_of_sums(body, x, rests, block))
    return [body.op("Add", product, body.input(5)) if body.has(5) else product]


def _product_of_sums(body: Body, x: str, rests: Array, block: int) -> str:
    """The sums of each block of the last axis of x (…, K), times `rests` (N, blocks), in the type of x.

    With z = w + (z - w), w an integer, x @ ((q - z) * s)^T is x @ ((q - w) * s)^T plus this with (w - z) * s:
    weights whose zero points are floats, as HQQ writes them, are stored in few bits.
    """
    blocks = rests.shape[1]
    *rows, depth = body.shape(x)
    wide = body.cast(x, "float32")
    missing = blocks * block - int(depth)
    if missing:
        pads = [0] * (2 * len(rows) + 1) + [missing]
        wide = body.op("Pad", wide, body.const(pads, "int64"))
    parts = body.reshape(wide, [*rows, blocks, block])
    sums = body.op("ReduceSum", parts, body.const([-1], "int64"), keepdims=0)
    product = body.op("MatMul", sums, body.const(np.ascontiguousarray(rests.T), "float32"))
    return body.cast(product, body.dtype(x))


# The numbers of the codes 0 to 15. Of a 4-bit float, codes from 8 on are the negative ones of 0 to 7; those
# of NF4 are quantiles of the normal distribution (Dettmers et al., QLoRA, 2023, appendix E).
_FLOATS = (0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
_NORMAL = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


def matmul_bnb4(body: Body) -> list[str]:
    """com.microsoft.MatMulBnb4: A @ W^T of weights W (N, K) as bitsandbytes packs them in 4 bits.

    Each block of the flat W has a greatest absolute value; a byte has two codes, the first in its high bits.
    """
    rows, depth = int(body.required("N")), int(body.required("K"))
    block, normal = int(body.required("block_size")), body.only("quant_type", 1, 0)
    body.only("training_mode", 0)
    body.only("transB", 1)  # others are of training, and ONNX Runtime reads past the weights
    if block < 16 or block & (block - 1):
        raise ValueError(f"its attribute 'block_size' is {block}, allowed: a power of two of at least 16")
    packed = constant(body, 1, "weights").reshape(-1)
    greatest = constant(body, 2, "greatest values of the blocks").astype("float32").reshape(-1)
    count = rows * depth
    for given, needed, noun in (
        (len(packed), ceil_div(count, 2), "bytes of weights"),
        (len(greatest), ceil_div(count, block), "blocks"),
    ):
        if given != needed:
            raise ValueError(f"it has {given} {noun}, allowed for N = {rows} and K = {depth}: {needed}")
    numbers = np.array(_NORMAL if normal else [*_FLOATS, *(-number for number in _FLOATS)], "float32")
    codes = np.stack([packed >> 4, packed & 15], -1).reshape(-1)[:count]
    weights = (numbers[codes] * np.repeat(greatest, block)[:count]).reshape(rows, depth)
    matrix = np.ascontiguousarray(weights.T)
    return [body.op("MatMul", body.input(0), body.const(matrix, body.dtype(body.input(0))))]


def _blocks_of_columns(body: Body, depth: int, block: int) -> Array:
    """The block of each column of a MatMulNBits. Raises ValueError for other numbers."""
    if not body.has(4):
        consecutive: Array = np.arange(depth) // block
        return consecutive
    given = constant(body, 4, "blocks of the columns").reshape(-1)
    blocks = ceil_div(depth, block)
    wrong = given[(given < 0) | (given >= blocks)]
    if len(given) < depth or len(wrong):
        what = f"the number {wrong[0]}" if len(wrong) else f"{len(given)} numbers"
        raise ValueError(
            f"its input 'g_idx' ('{body.input(4)}') has {what}, allowed: {depth} of 0..{blocks - 1}"
        )
    if body.has(3):
        raise ValueError(
            f"its inputs 'zero_points' ('{body.input(3)}') and 'g_idx' ('{body.input(4)}') are both given, "
            "which runtimes do not agree about: allowed is one of them; quantise symmetrically"
        )
    order: Array = given[:depth]
    return order


def gather_block_quantized(body: Body) -> list[str]:
    """com.microsoft.GatherBlockQuantized: rows of a table with a scale and zero point for each of its blocks.

    Integers of 4 bits are elements of the table, or two in each byte of its last axis; then 8 stands for 0.
    """
    bits, block = int(body.only("bits", 4, 8)), int(body.attribute("block_size", 128))
    if block < 16 or block & (block - 1):
        raise ValueError(f"its attribute 'block_size' is {block}, allowed: a power of two of at least 16")
    table, scales = constant(body, 0, "table"), constant(body, 2, "scales")
    gathered, axis = (int(body.attribute(key, n)) for key, n in (("gather_axis", 0), ("quantize_axis", 1)))
    gathered, axis = gathered % table.ndim, axis % table.ndim
    in_bytes = table.dtype == np.uint8
    points: Array = np.zeros(scales.shape, "float32")
    if in_bytes:
        if axis != table.ndim - 1:
            raise ValueError(f"its attribute 'quantize_axis' is {axis}, allowed: the last axis of its bytes")
        table = unpacked(table, bits, table.shape[-1] * 8 // bits)
        points = np.full(scales.shape, 1 << (bits - 1), "float32")
    if body.has(3):
        zero_points = constant(body, 3, "zero points")
        points = (unpacked(zero_points, bits, scales.shape[-1]) if in_bytes else zero_points).astype(
            "float32"
        )
    size = table.shape[axis]
    wide = [
        np.repeat(per_block.astype("float32"), block, axis).take(range(size), axis)
        for per_block in (points, scales)
    ]
    values = (table.astype("float32") - wide[0]) * wide[1]
    return [body.op("Gather", body.const(values, str(scales.dtype)), body.input(1), axis=gathered)]


MICROSOFT: dict[str, Expansion] = {
    "GatherBlockQuantized": gather_block_quantized,
    "MatMulBnb4": matmul_bnb4,
    "MatMulNBits": matmul_nbits,
}
