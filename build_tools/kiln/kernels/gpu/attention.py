"""Attention as one kernel for a GPU: blocks of queries against blocks of keys, with an online softmax.

Computation  out[lead, query] = g(sum over keys of softmax(f(q . k))[key] * v[key]). f: scale, masks and
             biases as the graph has them; g: what follows the second product. float32, or operands of 16
             bits or tf32 on tensor cores, with sums in float32.
Schedule     A block of threads has four warps, each with 16 queries of one head: four times 16, or twice 16
             whose keys two warps divide, or 16 whose keys four warps divide, where blocks would be too few
             otherwise. For each block of keys: its scores, which stay in registers; exponentials relative to
             the greatest score so far; and the weighted values, added to the result so far, which is scaled
             when the greatest score has grown (M. Milakov, N. Gimelshein: Online normalizer calculation for
             softmax, 2018; T. Dao: FlashAttention-2, 2023). Copies of the values are under way while scores
             are computed, those of the next keys while values are weighted. At the end the results of warps
             that divide keys are added. With a causal mask, keys after all of a block's queries are skipped.
Memory       Queries, a block of keys, one of values, and results to add in shared memory; nothing in global
             memory.
Applies      Functions with the attribute MARK (kiln.kernels.gpu.attention_nests), keys and values of up to
             WIDEST elements, numbers of queries and keys of any kind, tensors with axes in any order.
Accuracy     Scores and sums are float32; weights are rounded to the type of the values where tensor cores
             multiply them, before the division by their sum. A row whose scores are all -inf is NaN, or zeros
             where the graph asks for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as builder

from kiln.kernels.gpu.attention_block import ThreadBlock
from kiln.kernels.gpu.attention_nests import FusedAttention, read_fused_attention
from kiln.kernels.gpu.attention_tile import LANES, tile_of
from kiln.tir.symbols import ceil_div, int64

WIDEST = 256  # elements of a key, and of a value
LEAST = 8  # queries, and keys: with fewer, most of a block would be padding


def applies(func: tirx.PrimFunc) -> FusedAttention | None:
    """The attention that a function computes, if one kernel can compute it, else None."""
    attention = read_fused_attention(func)
    return None if attention is None or max(attention.widths) > WIDEST else attention


def make(attention: FusedAttention, greatest: Callable[[Any], int], multiprocessors: int) -> tirx.PrimFunc:
    """The kernel, with the launch's extents as attributes; `greatest`: of an extent."""
    fused, (queries, keys) = attention.fused, attention.sizes
    heads = fused.ranges.product(attention.lead)
    tile = tile_of(
        attention.factor,
        greatest(queries),
        greatest(keys),
        greatest(heads),
        attention.widths,
        multiprocessors,
    )
    blocks = fused.ranges.product([*attention.lead, ceil_div(queries, tile.rows)])
    with IRBuilder() as ir, builder.prim_func(is_private=False, s_tir=True):
        builder.func_name("kernel")
        with (
            builder.launch_thread("blockIdx.x", int64(blocks)) as block,
            builder.launch_thread("threadIdx.y", int64(tile.warps * tile.parts)) as warp,
            builder.launch_thread("threadIdx.x", int64(LANES)) as lane,
        ):
            ThreadBlock(attention, tile, block, warp, lane).emit()
    func = fused.func
    return tirx.PrimFunc(func.params, ir.get().body, None, attrs=func.attrs)
