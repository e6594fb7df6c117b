"""Depthwise convolutions as kernels of the template: blocks of pixels by channels, without tensor cores."""

from __future__ import annotations

from typing import Any

import numpy as np

from kiln.byoc import products
from kiln.byoc.backend import Code, TargetFacts
from kiln.byoc.match import Match
from kiln.byoc.triton.kernel_call import MOST_BLOCKS, KernelCall, epilogue, narrow_types, window
from kiln.config.precisions import holds, is_narrow, stored
from kiln.tir.symbols import ceil_div, product

WINDOW = 64  # most taps of a window, whose loads are unrolled
WARPS = 4
_LEAST = 32  # threads of a block have at least one element each


def is_depthwise(match: Match) -> bool:
    """Whether each output channel is a sum over a window of the input channel of the same number."""
    shape = match.operands["w"].shape
    return bool(
        match.anchor["attrs"]["groups"] == shape[3] == match.operands["x"].shape[-1] and shape[2] == 1
    )


def generate(match: Match, facts: TargetFacts) -> Code | None:
    """A depthwise convolution; None for large windows, and if a 16-bit type cannot hold the weights."""
    weights, dtype = match.operands["w"].value, stored(facts.precision)
    assert weights is not None
    height, width, _, columns = weights.shape
    if height * width > WINDOW or (is_narrow(facts.precision) and not holds(dtype, weights)):
        return None
    rows = product(match.output.shape[:-1])
    tile = tile_of(match, rows, columns, facts)
    if tile is None:
        return None
    m, n = tile
    wide = ceil_div(columns, n) * n
    if wide // n > MOST_BLOCKS:
        return None
    gap = ((0, 0), (0, wide - columns))
    constants = {"w": np.pad(weights.reshape(-1, columns), gap).astype(dtype)}
    bias = products.bias_of(match)
    if bias is not None:
        constants["bias"] = np.pad(bias.reshape(-1).astype(np.float32), (0, wide - columns))
    call = KernelCall(facts)
    numbers = window(call, match)
    epilogue(call, match)
    call.constants |= {"COLUMNS": columns, "W_COLUMNS": wide, "M": m, "N": n}
    has_residual = call.constants["HAS_RESIDUAL"]
    call.pointer("x", dtype)
    call.pointer("w", dtype)
    call.pointer("bias", None if bias is None else "float32")
    call.pointer("residual", dtype if has_residual else None)
    call.pointer("y", dtype)
    for name, size in numbers:
        call.size(name, size)
    grid = ceil_div(rows, m), wide // n, 1
    source, launch, sizes = call.launch("depthwise", "depthwise", grid, WARPS, 1)
    added = [*(["bias"] if bias is not None else []), *(["residual"] if has_residual else [])]
    return Code(
        source, ["x", "w", *added], constants, sizes, in_place=["residual"] if has_residual else (),
        launch=launch, dtypes=narrow_types(facts, ["x", "residual"]), tile=tile,
    )  # fmt: skip


def tile_of(match: Match, rows: Any, columns: int, facts: TargetFacts) -> tuple[int, int] | None:
    """Pixels and channels of a block: the measured tile, else the largest with two blocks for each GPU core.

    None: no tile has `TargetFacts.rank`.
    """
    assert facts.cuda is not None
    n = min(64, 1 << (columns - 1).bit_length())
    heights = [m for m in (32, 16, 8, 4, 2, 1) if m * n >= _LEAST * WARPS] or [_LEAST * WARPS // n]
    least_blocks = 2 * facts.cuda.multiprocessors
    many = rows if isinstance(rows, int) else 4096
    enough = [m for m in heights if ceil_div(many, m) * ceil_div(columns, n) >= least_blocks]
    first = enough[0] if enough else heights[-1]
    order = [(first, n), *((m, n) for m in heights if m != first)]
    measured = facts.tiles.get(match.key)
    if measured in order:
        return measured[0], measured[1]
    return order[facts.rank] if facts.rank < len(order) else None
