"""Products of quantised tensors: patterns of the graph, and kernels whose sums and results are integers.

    x · w (int8 or uint8 by constant int8) → [+ bias] → float32 * scale → [+ shift] → [limits] → quantize

with the padding of x before it, which the kernel fills in where it reads. Products are sums on tensor cores,
depthwise convolutions sums of each channel. A quantize with another scale than 1 has not been requantised
(kiln.graph.requantise) and is left to Kiln's own kernels, as are other grouped convolutions.
"""

from __future__ import annotations

import itertools
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from tvm.relax.dpl import is_const, is_op, wildcard

from kiln.arrays import Array
from kiln.byoc.backend import Code, TargetFacts
from kiln.byoc.match import Match, Pattern
from kiln.byoc.products import either
from kiln.byoc.triton import depthwise
from kiln.byoc.triton.kernel_call import MOST_BLOCKS, KernelCall
from kiln.byoc.triton.products import NARROW, SUMMED, tile_of
from kiln.byoc.triton.tiles import GpuTile, ProductSizes
from kiln.tir.symbols import ceil_div, product

SUFFIX = "_int8"  # of the names of the patterns
_TYPES = ("int8", "uint8")
_LIMITS = ("max", "min")


def patterns() -> list[Pattern]:
    """Patterns of convolutions and dense layers with each epilogue, the longest first."""
    patterns_in_order = []
    forms = itertools.product((True, False), repeat=2 + len(_LIMITS))
    for form in sorted(forms, key=lambda flags: -sum(flags)):
        for kind, padded in (("conv2d", True), ("conv2d", False), ("dense", False)):
            patterns_in_order.append(_pattern(kind, padded, *form))
    return patterns_in_order


def _pattern(kind: str, padded: bool, bias: bool, shift: bool, least: bool, most: bool) -> Pattern:
    """One pattern; `least`, `most`: whether a maximum and a minimum limit the result."""
    operands = {"x": wildcard(), "w": is_const()}
    data = is_op("relax.nn.pad")(operands["x"]) if padded else operands["x"]
    anchor = is_op("relax.nn.conv2d" if kind == "conv2d" else "relax.matmul")(data, operands["w"])
    root = anchor

    def constant(name: str) -> Any:
        operands[name] = is_const()
        return operands[name]

    root = either("relax.add", root, constant("bias")) if bias else root
    root = is_op("relax.multiply")(is_op("relax.astype")(root), constant("scale"))
    root = either("relax.add", root, constant("shift")) if shift else root
    root = either("relax.maximum", root, constant("max")) if least else root
    root = either("relax.minimum", root, constant("min")) if most else root
    root = is_op("relax.quantize")(root, constant("level"), constant("point"))
    options = {"pad": padded or None, "bias": bias or None, "clip": (least or most) or None}
    return Pattern(kind + SUFFIX, root, anchor, operands, _is_supported, options, _multiply_adds)


def _multiply_adds(match: Match) -> int:
    """Multiply-adds for one element of the output."""
    return int(np.prod(match.operands["w"].shape[:-1]))


def _is_supported(match: Match) -> bool:
    """Whether the kernel supports the types and shapes of a match."""
    operands, output = match.operands, match.output
    w, columns = operands["w"].value, output.shape[-1]
    if operands["x"].dtype not in _TYPES or output.dtype not in _TYPES:
        return False
    if w is None or str(w.dtype) != "int8" or match.anchor["out_dtype"] != "int32":
        return False
    if any(
        _by_column(match, name, columns) is None for name in ("bias", "scale", "shift") if name in operands
    ):
        return False
    if any(_number(match, name) is None for name in ("level", "point", *_LIMITS) if name in operands):
        return False
    low, high = _limits(match)
    if _number(match, "level") != 1.0 or low > high:
        return False
    return _is_convolution(match) if match.pattern == "conv2d" + SUFFIX else w.ndim == 2


def _is_convolution(match: Match) -> bool:
    attrs = match.anchor["attrs"]
    if (attrs["data_layout"], attrs["kernel_layout"]) != ("NHWC", "HWIO"):
        return False
    height, width = match.operands["w"].shape[:2]
    if attrs["groups"] != 1 and not (depthwise.is_depthwise(match) and height * width <= depthwise.WINDOW):
        return False
    if attrs["out_layout"] not in ("NHWC", ""):
        return False
    pad = _padding_before(match)
    if pad is None:
        return True
    widths = [int(width) for width in pad["pad_width"]]
    level = float(pad["pad_value"])
    info = np.iinfo(match.operands["x"].dtype)
    is_level = level == int(level) and info.min <= level <= info.max
    return (
        pad["pad_mode"] == "constant" and is_level and len(widths) == 8 and min(widths) >= 0
        and not any(widths[:2] + widths[6:]) and not any(attrs["padding"])
    )  # fmt: skip


def _padding_before(match: Match) -> dict[str, Any] | None:
    """The attributes of the padding before the convolution."""
    return next((op["attrs"] for op in match.ops if op["name"] == "nn.pad"), None)


def _number(match: Match, name: str) -> float | None:
    value = match.operands[name].value
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def _by_column(match: Match, name: str, columns: int) -> Array | None:
    """The constant `name`, one number or one for each column, as a vector of `columns` numbers; else None."""
    value = match.operands[name].value
    if value is None or not (value.size == 1 or (value.size == columns == value.shape[-1])):
        return None
    return np.broadcast_to(value.reshape(-1), (columns,))


def _limits(match: Match) -> tuple[float, float]:
    """Least and greatest number before the zero point is added."""
    info, point = np.iinfo(match.output.dtype), _number(match, "point") or 0.0
    low, high = info.min - point, info.max - point
    if "max" in match.operands:
        low = max(low, _number(match, "max") or 0.0)
    if "min" in match.operands:
        high = min(high, _number(match, "min") or 0.0)
    return low, high


@dataclass(frozen=True)
class _Filters:
    """The window of a product: filters (height, width, channels, columns), its steps, and the padding of x.

    `corner`: padding above and left of x; `padding`: the padding's value; `edges`: whether x is padded at its
    sides.
    """

    filters: Array
    strides: tuple[int, int]
    dilation: tuple[int, int]
    corner: tuple[int, int]
    padding: int
    edges: bool
    sizes: tuple[tuple[str, Any], ...]

    @property
    def in_rows(self) -> bool:
        """Whether a row of the window is one run of numbers: few channels without gaps between them."""
        _, width, channels, _ = self.filters.shape
        return bool(channels < NARROW and width > 1 and self.dilation[1] == 1)


_NAMES = ("batch", "height", "width", "out_height", "out_width")


def _filters_of(match: Match) -> _Filters:
    weights, x, y = match.operands["w"].value, match.operands["x"].shape, match.output.shape
    assert weights is not None
    if match.pattern == "dense" + SUFFIX:
        sizes = tuple(zip(_NAMES, (product(x[:-1]), 1, 1, 1, 1), strict=True))
        return _Filters(weights[None, None], (1, 1), (1, 1), (0, 0), 0, False, sizes)
    attrs, pad = match.anchor["attrs"], _padding_before(match)
    top, left, _, right = (int(width) for width in attrs["padding"])
    level = 0
    if pad is not None:
        widths = [int(width) for width in pad["pad_width"]]
        top, left, right, level = widths[2], widths[4], widths[5], int(float(pad["pad_value"]))
    strides, dilation = ((int(n[0]), int(n[1])) for n in (attrs["strides"], attrs["dilation"]))
    sizes = tuple(zip(_NAMES, (*x[:3], *y[1:3]), strict=True))
    return _Filters(weights, strides, dilation, (top, left), level, bool(left or right), sizes)


def generate(match: Match, facts: TargetFacts) -> Code | None:
    """The code of a product, as one kernel or as partial sums and their sum; None: no tile has the rank."""
    window = _filters_of(match)
    if match.pattern == "conv2d" + SUFFIX and match.anchor["attrs"]["groups"] != 1:
        return _depthwise_code(match, facts, window)
    height, width, channels, columns = window.filters.shape
    rows, unsigned = product(match.output.shape[:-1]), match.operands["x"].dtype == "uint8"
    runs = (height, width * channels, columns) if window.in_rows else (height * width, channels, columns)
    sizes = ProductSizes(rows, columns, height * width * channels, itemsize=1, run=runs[1])
    tile = tile_of(match, facts, sizes)
    if tile is None or ceil_div(columns, tile.n) > MOST_BLOCKS:
        return None
    filters = window.filters.reshape(runs)
    depth_gap = ceil_div(runs[1], tile.k) * tile.k - runs[1]
    column_gap = ceil_div(columns, tile.n) * tile.n - columns
    packed = np.pad(filters, ((0, 0), (0, depth_gap), (0, 0))).reshape(-1, columns).T
    packed = np.pad(np.ascontiguousarray(packed), ((0, column_gap), (0, 0)))
    bias = 128 * packed.astype(np.int64).sum(1) if unsigned else np.zeros(len(packed), np.int64)
    if "bias" in match.operands:
        model_bias = _by_column(match, "bias", columns)
        assert model_bias is not None
        bias[:columns] += model_bias
    constants = _constants(match, bias)
    return _code(match, facts, window, tile, packed, constants)


def _constants(match: Match, bias: Array) -> dict[str, Array]:
    """The vectors of the epilogue by operand, in order, as long as `bias`, with zeros at the end.

    `bias` replaces the operand `bias`, or the operand `level` where there is no bias.
    """
    columns = match.output.shape[-1]
    constants = {"bias" if "bias" in match.operands else "level": bias.astype(np.int32)}
    for name in ("scale", "shift"):
        if name in match.operands:
            numbers = _by_column(match, name, columns)
            assert numbers is not None
            constants[name] = np.pad(numbers.astype(np.float32), (0, len(bias) - columns))
    return constants


def _epilogue_numbers(match: Match) -> dict[str, Any]:
    """The epilogue's constants by the names of the template's parameters."""
    low, high = _limits(match)
    return {
        "LOW": low, "HIGH": high, "ZERO_POINT": int(_number(match, "point") or 0),
        "COLUMNS": match.output.shape[-1],
    }  # fmt: skip


def _epilogue_types(constants: dict[str, Array]) -> dict[str, str | None]:
    """The types of the epilogue's vectors; None for a vector that the product does not have."""
    return {"bias": "int32", "scale": "float32", "shift": "float32" if "shift" in constants else None}


def _call(
    match: Match, facts: TargetFacts, window: _Filters, types: dict[str, str | None], y: str
) -> KernelCall:
    """The parameters of a kernel over windows; `types`: of the epilogue's vectors, `y`: of the result."""
    call = KernelCall(facts)
    del call.constants["TF32"]
    call.pointer("x", match.operands["x"].dtype)
    call.pointer("w", "int8")
    for name, dtype in types.items():
        call.pointer(name, dtype)
    call.pointer("y", y)
    for name, size in window.sizes:
        call.size(name, size)
    height, width, *_ = window.filters.shape
    pairs = ("STRIDE", window.strides), ("DILATE", window.dilation), ("PAD", window.corner)
    call.constants |= {
        **_epilogue_numbers(match),
        "FILTER_H": height,
        "FILTER_W": width,
        "PADDING": window.padding,
    }
    call.constants |= {
        f"{name}_{axis}": n for name, pair in pairs for axis, n in zip("HW", pair, strict=True)
    }
    return call


def _depthwise_code(match: Match, facts: TargetFacts, window: _Filters) -> Code | None:
    """The code of a depthwise convolution; None if no tile has `TargetFacts.rank`."""
    columns, rows = match.output.shape[-1], product(match.output.shape[:-1])
    tile = depthwise.tile_of(match, rows, columns, facts)
    if tile is None or ceil_div(columns, tile[1]) > MOST_BLOCKS:
        return None
    m, n = tile
    wide = ceil_div(columns, n) * n
    model_bias = _by_column(match, "bias", columns) if "bias" in match.operands else None
    bias = np.zeros(wide, np.int32)
    bias[:columns] = 0 if model_bias is None else model_bias
    constants = _constants(match, bias)
    packed = np.pad(window.filters.reshape(-1, columns), ((0, 0), (0, wide - columns)))
    call = _call(match, facts, window, _epilogue_types(constants), match.output.dtype)
    call.constants |= {"W_COLUMNS": wide, "M": m, "N": n}
    grid = ceil_div(rows, m), wide // n, 1
    source, launch, sizes = call.launch("integers", "depthwise", grid, depthwise.WARPS, 1)
    constants_by_operand = {"w": packed, **constants}
    return Code(source, ["x", *constants_by_operand], constants_by_operand, sizes, launch=launch, tile=tile)


def _code(
    match: Match,
    facts: TargetFacts,
    window: _Filters,
    tile: GpuTile,
    packed: Array,
    constants: dict[str, Array],
) -> Code:
    """The code for packed weights (columns, depth); `constants`: of the epilogue, by operand, in order."""
    columns, rows = window.filters.shape[3], product(match.output.shape[:-1])
    split, types = tile.split, _epilogue_types(constants)
    if split == 1:
        call = _call(match, facts, window, types, match.output.dtype)
    else:
        call = _call(match, facts, window, dict.fromkeys(types), "int32")
    call.constants |= {
        "CHANNELS": window.filters.shape[2], "W_DEPTH": packed.shape[1], "SPLIT": split,
        "ROWS": window.in_rows, "EDGES": window.edges, "M": tile.m, "N": tile.n, "K": tile.k,
    }  # fmt: skip
    grid = ceil_div(rows, tile.m), ceil_div(columns, tile.n), split
    source, launch, sizes = call.launch("integers", "product", grid, tile.warps, tile.stages)
    if split == 1:
        constants_by_operand = {"w": packed, **constants}
        return Code(
            source,
            ["x", *constants_by_operand],
            constants_by_operand,
            sizes,
            launch=launch,
            tile=astuple(tile),
        )
    parts = Code(
        source, ["x", "w"], {"w": packed}, sizes, launch=launch, shape=[split, rows, columns],
        dtypes={"output": "int32"},
    )  # fmt: skip
    total = KernelCall(facts)
    del total.constants["TF32"]
    total.pointer("parts", "int32")
    for name, dtype in types.items():
        total.pointer(name, dtype)
    total.pointer("y", match.output.dtype)
    total.constants |= {**_epilogue_numbers(match), "SPLIT": split, "rows": rows, "N": SUMMED}
    blocks = ceil_div(rows * columns, SUMMED), 1, 1
    source, launch, sizes = total.launch("integers", "sum_parts", blocks, 4, 1)
    summed = Code(source, ["parts", *constants], constants, sizes, launch=launch, first=parts)
    return replace(summed, tile=astuple(tile))
