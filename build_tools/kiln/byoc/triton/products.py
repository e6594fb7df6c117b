"""Dense layers, matmuls and convolutions as kernels of the templates: packed weights and launches."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.byoc import products
from kiln.byoc.backend import Code, TargetFacts
from kiln.byoc.match import Match
from kiln.byoc.triton import depthwise
from kiln.byoc.triton.kernel_call import (
    MOST_BLOCKS,
    KernelCall,
    epilogue,
    limits_of,
    narrow_types,
    window,
)
from kiln.byoc.triton.tiles import GpuTile, ProductSizes, choose, measured
from kiln.config.precisions import holds, is_narrow, stored
from kiln.tir.symbols import ceil_div, product

SUMMED = 512  # elements that a block adds up over the parts of a divided sum
NARROW = 32  # channels: with fewer, the places of a window are not padded one by one


def tile_of(match: Match, facts: TargetFacts, sizes: ProductSizes) -> GpuTile | None:
    """The measured tile of a match, else the one that the cost model prefers; None: no tile has the rank."""
    limits = limits_of(facts)
    sizes = replace(sizes, residual="residual" in match.operands)
    if match.key in facts.tiles:
        tile = measured(facts.tiles[match.key], sizes, limits)
        if tile is not None:
            return tile
    return choose(sizes, limits, facts.rank)


def dense(match: Match, facts: TargetFacts) -> Code | None:
    """The code of a dense layer; None if a 16-bit type cannot hold the weights."""
    x, weights = match.operands["x"], match.operands["w"].value
    assert weights is not None
    rows, bias = product(x.shape[:-1]), products.bias_of(match)
    depth, columns = weights.shape
    call = KernelCall(facts)
    if match.options.get("norm"):
        weights, bias = _with_norm_folded(match, weights, bias)
    norm = bool(match.options.get("norm"))
    tile = tile_of(match, facts, replace(_sizes(facts, rows, columns, depth, not norm), norm=norm))
    if tile is None:
        return None
    call.constants |= {
        "NORM": bool(match.options.get("norm")),
        "EPSILON": float(products.norm_of(match)["epsilon"]) if match.options.get("norm") else 0.0,
        "DEPTH": depth,
    }  # fmt: skip
    product_of_rows = _ConstantProduct(rows, weights, bias)
    return _code(match, facts, call, ("dense", "dense"), tile, product_of_rows, [("rows", rows)])


def convolution(match: Match, facts: TargetFacts) -> Code | None:
    """The code of a convolution of one group, or with a group for each channel.

    None for other convolutions, and if a 16-bit type cannot hold the weights.
    """
    attrs, weights = match.anchor["attrs"], match.operands["w"].value
    assert weights is not None
    if depthwise.is_depthwise(match):
        return depthwise.generate(match, facts)
    if attrs["groups"] != 1:
        return None
    if products.is_product(match):
        x = match.operands["x"]
        flat = replace(
            match, operands={**match.operands, "w": replace(match.operands["w"], value=weights[0, 0])}
        )
        assert x.shape[-1] == weights.shape[2]
        return dense(flat, facts)
    height, width, channels, columns = weights.shape
    rows = product(match.output.shape[:-1])
    # Few channels: a row of the window is one run of numbers, unless dilation leaves gaps in it.
    in_rows = channels < NARROW and width > 1 and int(attrs["dilation"][1]) == 1
    runs = weights.reshape((height, width * channels, columns) if in_rows else (-1, channels, columns))
    tile = tile_of(match, facts, _sizes(facts, rows, columns, height * width * channels, True, runs.shape[1]))
    if tile is None:
        return None
    gap = ceil_div(runs.shape[1], tile.k) * tile.k - runs.shape[1]
    matrix = np.pad(runs, ((0, 0), (0, gap), (0, 0))).reshape(-1, columns)
    call = KernelCall(facts)
    numbers = window(call, match)
    call.constants["CHANNELS"] = channels
    edges = any(attrs["padding"][1::2])
    call.constants |= {"TF32": facts.precision == "tf32", "ROWS": in_rows, "EDGES": edges}
    product_of_windows = _ConstantProduct(rows, matrix, products.bias_of(match))
    return _code(match, facts, call, ("convolution", "convolution"), tile, product_of_windows, numbers)


def matmul(match: Match, facts: TargetFacts) -> Code | None:
    """The code of a matmul of two computed tensors; None for a batch of more than 65535."""
    x, w, dtype = match.operands["x"].shape, match.operands["w"].shape, stored(facts.precision)
    rows, depth, columns, batch = x[-2], x[-1], w[-1], product(x[:-2])
    if isinstance(batch, int) and batch > MOST_BLOCKS:
        return None
    call = KernelCall(facts)
    for name in ("x", "w", "y"):
        call.pointer(name, dtype)
    sizes = _sizes(facts, rows, columns, depth if isinstance(depth, int) else 256, False)
    tile = tile_of(match, facts, replace(sizes, batch=batch))
    if tile is None:
        return None
    for name, size in (("rows", rows), ("columns", columns), ("depth", depth)):
        call.size(name, size)
    fills_steps = isinstance(depth, int) and depth % tile.k == 0
    call.constants |= {"TRANSPOSED": False, "WHOLE": fills_steps, "M": tile.m, "N": tile.n, "K": tile.k}
    grid = ceil_div(rows, tile.m), ceil_div(columns, tile.n), batch
    source, launch, numbers = call.launch("dense", "matmul", grid, tile.warps, tile.stages)
    return Code(
        source,
        ["x", "w"],
        sizes=numbers,
        launch=launch,
        dtypes=narrow_types(facts, ["x", "w"]),
        tile=astuple(tile),
    )


def _sizes(
    facts: TargetFacts, rows: Any, columns: Any, depth: int, splits: bool, run: int | None = None
) -> ProductSizes:
    """The product for the choice of a tile; `run`: of the depth, the numbers that are padded together."""
    itemsize = 2 if is_narrow(facts.precision) else 4
    tensor = facts.precision != "fp32"
    return ProductSizes(rows, columns, depth, itemsize=itemsize, tensor=tensor, splits=splits, run=run)


def _with_norm_folded(match: Match, weights: Array, bias: Array | None) -> tuple[Array, Array]:
    """Weights and bias with the scale and the shift of the layer norm before them multiplied in."""
    scale, shift = (match.operands[name].value for name in ("scale", "shift"))
    assert scale is not None and shift is not None
    added = shift.astype(np.float64).reshape(-1) @ weights.astype(np.float64)
    total = added if bias is None else added + bias.astype(np.float64)
    return (weights.astype(np.float64) * scale.reshape(-1, 1)).astype(np.float32), total.astype(np.float32)


@dataclass(frozen=True)
class _ConstantProduct:
    """A product of `rows` rows with constant weights (depth, columns), plus a bias for each column."""

    rows: Any
    weights: Array
    bias: Array | None


def _code(
    match: Match, facts: TargetFacts, call: KernelCall, names: tuple[str, str], tile: GpuTile,
    computed: _ConstantProduct, numbers: list[tuple[str, Any]],
) -> Code | None:  # fmt: skip
    """The code of a product, as one kernel or as parts and their sum.

    None if a 16-bit type cannot hold the weights. `names`: of the template and of its kernel. `numbers`:
    sizes that the kernel is given, by name.
    """
    rows, weights, bias = computed.rows, computed.weights, computed.bias
    dtype, columns = stored(facts.precision), weights.shape[1]
    if is_narrow(facts.precision) and not holds(dtype, weights):
        return None
    wide = ceil_div(columns, tile.n) * tile.n
    if ceil_div(columns, tile.n) > MOST_BLOCKS:
        return None
    packed = _padded_weights(weights, tile, facts.precision)
    padded_bias = None if bias is None else np.pad(bias.reshape(-1).astype(np.float32), (0, wide - columns))
    epilogue(call, match)
    has_residual, split = call.constants["HAS_RESIDUAL"], tile.split
    epilogue_constants = {
        name: call.constants[name] for name in ("HAS_BIAS", "HAS_RESIDUAL", "ACTIVATION", "LOW", "HIGH")
    }
    if split > 1:
        call.constants |= {"HAS_BIAS": False, "HAS_RESIDUAL": False, "ACTIVATION": "none"}
    single = split == 1
    call.pointer("x", dtype)
    call.pointer("w", dtype)
    norm = bool(match.options.get("norm"))
    if names[1] == "dense":
        call.pointer("sums", "float32" if norm and facts.precision != "tf32" else None)
    call.pointer("bias", "float32" if single and padded_bias is not None else None)
    call.pointer("residual", dtype if single and has_residual else None)
    call.pointer("y", dtype if single else "float32")
    for name, size in numbers:
        call.size(name, size)
    call.constants |= {"COLUMNS": columns, "W_COLUMNS": wide, "SPLIT": split}
    call.constants |= {"M": tile.m, "N": tile.n, "K": tile.k}
    grid = ceil_div(rows, tile.m), ceil_div(columns, tile.n), split
    source, launch, sizes = call.launch(*names, grid, tile.warps, tile.stages)
    added = [*(["bias"] if padded_bias is not None else []), *(["residual"] if has_residual else [])]
    constants = {"w": packed, **({} if padded_bias is None else {"bias": padded_bias})}
    if norm and facts.precision != "tf32":  # replaces the norm's scale, which is part of the weights
        constants["scale"] = packed.astype(np.float64).sum(0).astype(np.float32)
    if single:
        operands = ["x", "w", *(["scale"] if "scale" in constants else []), *added]
        return _one_kernel(match, facts, Code(source, operands, constants, sizes, launch=launch), tile)
    partial_sums = Code(
        source, ["x", "w"], {"w": packed}, sizes, launch=launch, shape=[split, rows, columns],
        dtypes={**narrow_types(facts, ["x"]), "output": "float32"},
    )  # fmt: skip
    return replace(
        _sum_of_parts(facts, partial_sums, epilogue_constants, padded_bias, rows, columns),
        tile=astuple(tile),
    )


def _padded_weights(weights: Array, tile: GpuTile, precision: str) -> Array:
    """`weights` (depth, columns) with zeros up to whole tiles, in the type that the precision stores."""
    deep, wide = (ceil_div(n, step) * step for n, step in zip(weights.shape, (tile.k, tile.n), strict=True))
    packed = np.zeros((deep, wide), np.float32)
    packed[: weights.shape[0], : weights.shape[1]] = weights
    return rounded_tf32(packed) if precision == "tf32" else packed.astype(stored(precision))


def _one_kernel(match: Match, facts: TargetFacts, code: Code, tile: GpuTile) -> Code:
    """The code of a product as one kernel.

    After a layer norm, the norm's shift becomes a bias of the product; where the graph has no bias, the
    operand `shift` takes its place.
    """

    def place(name: str) -> str:
        return "shift" if name == "bias" and "bias" not in match.operands else name

    return replace(
        code, operands=[place(name) for name in code.operands],
        constants={place(name): value for name, value in code.constants.items()},
        in_place=["residual"] if "residual" in code.operands else (),
        dtypes=narrow_types(facts, ["x", "residual"]), tile=astuple(tile),
    )  # fmt: skip


def _sum_of_parts(
    facts: TargetFacts,
    partial_sums: Code,
    epilogue_constants: dict[str, Any],
    bias: Array | None,
    rows: int,
    columns: int,
) -> Code:
    """The code that adds partial sums and computes the epilogue, whose constants are `epilogue_constants`."""
    dtype, call = stored(facts.precision), KernelCall(facts)
    assert partial_sums.shape is not None
    call.pointer("parts", "float32")
    call.pointer("bias", None if bias is None else "float32")
    call.pointer("residual", dtype if epilogue_constants["HAS_RESIDUAL"] else None)
    call.pointer("y", dtype)
    del call.constants["TF32"]
    call.constants |= {
        **epilogue_constants,
        "rows": rows,
        "COLUMNS": columns,
        "SPLIT": partial_sums.shape[0],
        "N": SUMMED,
    }
    source, launch, sizes = call.launch("dense", "sum_parts", (ceil_div(rows * columns, SUMMED), 1, 1), 4, 1)
    added = [
        *(["bias"] if bias is not None else []),
        *(["residual"] if epilogue_constants["HAS_RESIDUAL"] else []),
    ]
    return Code(
        source, ["parts", *added], {} if bias is None else {"bias": bias}, sizes,
        in_place=["residual"] if epilogue_constants["HAS_RESIDUAL"] else (), launch=launch,
        dtypes=narrow_types(facts, ["residual"]), first=partial_sums,
    )  # fmt: skip


def rounded_tf32(values: Array) -> Array:
    """float32 values rounded to 10 bits of mantissa, ties away from zero, as cvt.rna.tf32 does."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isnan(values), values, rounded)
