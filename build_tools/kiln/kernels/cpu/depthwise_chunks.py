"""Chunks of the channels of a depthwise convolution: how many vectors of channels are computed together.

A chunk is computed for all lines of the image before the next chunk, so that the lines of x that several
output lines read stay in a cache from one of them to the next. It reads few adjacent bytes of each pixel.
"""

from __future__ import annotations

import math

from kiln.kernels.cpu.convolution import Convolution
from kiln.tir.builder import CACHE_LINE, CACHE_SETS, Machine

# Least bytes of a chunk's channels, which are contiguous: shorter runs load no faster.
_LEAST_RUN_BYTES = 128


def chunk_vectors(machine: Machine, conv: Convolution) -> int:
    """Vectors of channels in a chunk, which is computed for all lines before the next chunk; 0: no chunks.

    As many as leave the lines of x that an output line reads, and the weights, in the L1 cache: each line is
    read for several output lines. Measured on AVX-512 with 14x14x384 and 7x7x960: twice as fast.
    """
    lines = (conv.kernel_h - 1) * conv.dilation_h + 1
    width = conv.ranges.greatest(conv.width)
    read = lines * width + conv.kernel_h * conv.kernel_w
    step = machine.vector_bits // 8
    whole_vectors = conv.channels // machine.lanes("float32")
    if is_distant(machine, conv):
        return 0
    if exceeds_l2(machine, conv):
        upper, least = (
            _vectors_outside(machine, conv, (read + conv.ranges.greatest(conv.out_w)) * step, whole_vectors),
            1,
        )
    else:
        upper = machine.l1_bytes * 3 // 4 // (read * step)
        upper, least = 0 if upper * step < _LEAST_RUN_BYTES else upper, upper // 2 + 1
    if not upper or upper >= whole_vectors:
        return 0
    # Chunks of equal size need no code for a narrower one.
    return max((n for n in range(least, upper + 1) if whole_vectors % n == 0), default=upper)


def exceeds_l2(machine: Machine, conv: Convolution) -> bool:
    """Whether x is larger than the L2 cache."""
    greatest = conv.ranges.greatest
    return greatest(conv.height) * greatest(conv.width) * conv.channels * 4 > machine.l2_bytes


# Bytes of an L2 cache of processors whose last-level cache is distant: a mesh of the caches of many cores.
_LARGE_L2 = 2 << 20


def is_distant(machine: Machine, conv: Convolution) -> bool:
    """Whether x and the result come from and go to a last-level cache that is distant.

    Lines from there take so long (100 ns on Emerald Rapids) that a core's own loads reach a third of the
    rate of hardware prefetches, which need lines in order: a chunk reads few lines of each pixel.
    Measured on Emerald Rapids with AVX-512, microseconds with and without chunks: 112x112x96 of stride 2 514
    and 240, 56x56x144 190 and 140, 56x56x128 157 and 120, 5x5 on 80x80x480 2210 and 1490.
    """
    if machine.vector_bits // 8 < CACHE_LINE or machine.l2_bytes < _LARGE_L2:
        return False
    ranges, channels = conv.ranges, conv.channels
    read = ranges.product([conv.batch, conv.height, conv.width, channels])
    written = ranges.product([conv.batch, conv.out_h, conv.out_w, channels])
    return 4 * (ranges.greatest(read) + ranges.greatest(written)) > machine.l2_bytes


def _vectors_outside(machine: Machine, conv: Convolution, line_bytes: int, count: int) -> int:
    """Most vectors of channels in a chunk where x is larger than the L2 cache; 0: no chunks.

    `line_bytes`: bytes that a vector of channels reads and writes for one output line; `count`: number of
    vectors. Where the lines are too long for the L1 cache they stay in the L2 cache.

    Measured on a Zen 5: with AVX-512, where a vector is a cache line, 1.3 to 1.7 times as fast, with AVX2 a
    few per cent slower. No chunks where the columns of a line map to few sets of the cache, as with 128 or
    256 channels: the columns evict each other, however few there are.
    """
    step = machine.vector_bits // 8
    if step < CACHE_LINE:
        return 0
    if line_bytes <= machine.l1_bytes:
        room, upper = machine.l1_bytes, max(1, machine.l1_bytes * 5 // 8 // line_bytes)
    elif count * line_bytes > machine.l2_bytes // 2:
        room, upper = machine.l2_bytes // 8, machine.l2_bytes // 8 // line_bytes
    else:
        return 0
    column = conv.pitch * 4
    set_step = math.gcd(CACHE_SETS, column // CACHE_LINE) if column % CACHE_LINE == 0 else 1
    return 0 if line_bytes > 2 * room // set_step else upper
