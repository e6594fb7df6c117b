"""In-place padding: a producer writes into the inside of the padded tensor, so no copy kernel runs.

A convolution with padding reads a larger tensor whose border holds the padding value. Instead of copying,
the producer stores into the inside of that larger tensor, and a small kernel fills the border. All other
readers of the producer's result read the inside too. This saves a copy of the tensor, in time and in the
arena.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.ir import Expr, TensorLoad
from tvm.tirx import PrimFunc

from kiln.callbacks import structural_map
from kiln.config.sizes import SizeExpr, ceil_div
from kiln.extents import Extent
from kiln.graph.bindings import operator, variables
from kiln.opinfo.attach import OpInfo, of
from kiln.tir.builder import (
    CACHE_LINE,
    CACHE_SETS,
    Argument,
    Kernel,
    Machine,
    chunks,
    define,
    int64,
    serial,
    store,
    vector,
)
from kiln.tir.fused import Fused, NotSimple
from kiln.tir.symbols import SymbolRanges, is_dynamic
from kiln.tir.tiled_loops import blocks
from kiln.tir.view import TensorView

# op_pattern of functions that FuseOps fuses with nothing (OpPatternKind: opaque).
OPAQUE = 8


def spatial_padding(ops: list[OpInfo]) -> tuple[list[int], float] | None:
    """(amounts before and after each axis, value) of a constant padding of H and W in NHWC, or None."""
    if len(ops) != 1 or ops[0]["name"] != "nn.pad":
        return None
    attrs = ops[0]["attrs"]
    widths = [int(width) for width in attrs["pad_width"]]
    inside = len(widths) == 8 and not any(widths[:2] + widths[6:]) and min(widths) >= 0
    return (widths, float(attrs["pad_value"])) if inside and attrs["pad_mode"] == "constant" else None


def padded_view(ops: list[OpInfo]) -> TensorView | None:
    """Place of a spatial padding's operand in its result; None for other operators."""
    padding = spatial_padding(ops)
    if padding is None:
        return None
    widths, value = padding
    return TensorView(tuple(widths[0::2]), tuple(widths[1::2]), value)


def copy_of(shape: Sequence[SizeExpr], dtype: str) -> tuple[PrimFunc, list[OpInfo]]:
    """A function that copies a tensor of `shape`, and its op info; dynamic sizes become variables."""
    extents = [
        size if isinstance(size, int) else te.var(f"n{axis}", "int64") for axis, size in enumerate(shape)
    ]
    data = te.placeholder(extents, dtype=dtype, name="data")
    info: OpInfo = {"name": "copy", "kind": "elementwise", "attrs": {}, "out_dtype": dtype}
    return te.create_prim_func([data, te.compute(extents, lambda *indices: data(*indices), name="copy")]), [
        info
    ]


def keep_padding_separate(mod: tvm.IRModule) -> tvm.IRModule:
    """Mark spatial paddings as opaque to fusion: as separate ops they can be done in place."""
    for variable, func in list(mod.functions_items()):
        if isinstance(func, PrimFunc) and spatial_padding(of(func)) is not None:
            mod.update_func(variable, func.with_attr("op_pattern", OPAQUE))
    return mod


def pixel_gap_of(machine: Machine, channels: int, dtype: str) -> int:
    """Elements to leave free after each pixel of an image that depthwise convolutions read.

    A depthwise convolution reads few channels of many pixels at a time. Where a pixel is a multiple of 512
    bytes long, the same channels of neighbouring pixels map to an eighth of the sets of a cache, or fewer,
    and evict each other; one cache line more from pixel to pixel spreads them over all sets. Measured on a
    Zen 5 with AVX-512: 14x14x512 and 28x28x256 take 1.6 to 1.9 times as long without the gap, 56x56x128 1.15
    times. Narrower vectors need the gap only where all pixels map to one set: with AVX2 7x7x1024 takes 1.7
    times as long without the gap, 14x14x512 does not take longer.
    """
    size = ceil_div(tvm.DataType(dtype).bits, 8)
    sets = CACHE_SETS // 8 if machine.vector_bits // 8 >= CACHE_LINE else CACHE_SETS
    return 0 if channels * size % (sets * CACHE_LINE) else CACHE_LINE // size


def find_views(mod: tvm.IRModule, ops: Mapping[str, list[OpInfo]], machine: Machine) -> dict[Any, TensorView]:
    """The variables of `main` whose tensors can be stored inside padded ones, each with its view."""
    main = mod["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    calls = [binding for binding in bindings if operator(binding.value) == "relax.call_tir"]
    calls_by_result = {binding.var: binding.value for binding in calls}
    blocked = used_otherwise(main, bindings)
    simple: dict[str, bool] = {}

    def is_simple(call: relax.Call) -> bool:
        name = call.args[0].name_hint
        if name not in simple:
            simple[name] = _is_simple(mod[call.args[0]]) and all(
                op["name"] not in ("matmul", "reshape") for op in ops.get(name, [])
            )
        return simple[name]

    readers: dict[Any, list[Any]] = {}
    for binding in calls:
        for item in binding.value.args[1].fields:
            readers.setdefault(item, []).append(binding)

    def gap_for(padded: Any) -> int:
        """`pixel_gap_of` of `padded` if every reader is a depthwise convolution of that image, else 0."""
        if not isinstance(padded.ty.shape[3], tirx.IntImm):  # an image with channels first
            return 0
        channels = int(padded.ty.shape[3])
        for reader in readers.get(padded, []):
            op = (ops.get(reader.value.args[0].name_hint) or [{"name": "", "attrs": {}}])[0]
            operands = list(reader.value.args[1].fields)
            once = operands[0].same_as(padded) and operands.count(padded) == 1 and is_simple(reader.value)
            if not once or op["name"] != "nn.conv2d" or op["attrs"]["groups"] != channels:
                return 0
        return pixel_gap_of(machine, channels, str(padded.ty.dtype))

    views: dict[Any, TensorView] = {}
    for binding in calls:
        padding = spatial_padding(ops.get(binding.value.args[0].name_hint, []))
        if padding is None or binding.var in blocked:
            continue
        source = binding.value.args[1].fields[0]
        producer = calls_by_result.get(source)
        if producer is None or source in blocked or source in views or binding.var in views:
            continue
        if spatial_padding(ops.get(producer.args[0].name_hint, [])) is not None:
            continue
        if not is_simple(producer) or not all(is_simple(reader.value) for reader in readers[source]):
            continue
        view = padded_view(ops[binding.value.args[0].name_hint])
        if view is not None:
            views[source] = view.with_pixel_gap(gap_for(binding.var))
    return views


def used_otherwise(main: Any, bindings: list[Any]) -> set[Any]:
    """Variables that are outputs or tuples, or that an expression other than a kernel call reads."""
    used = set(variables(main.body.body))
    for binding in bindings:
        if operator(binding.value) != "relax.call_tir":
            used.update(variables(binding.value))
        elif isinstance(binding.value.ty, relax.TupleType):
            used.add(binding.var)
    return used


def _is_simple(func: PrimFunc) -> bool:
    try:
        fused = Fused(func)
    except NotSimple:
        return False
    return len(fused.outputs) == 1 and len(fused.outputs[0].shape) == 4


def with_views(func: PrimFunc, views: Mapping[int, TensorView], ranges: SymbolRanges) -> PrimFunc:
    """`func` with a larger tensor for the parameter at each position in `views`; it uses only the view."""
    params = list(func.params)
    replaced: dict[Any, tuple[Any, TensorView]] = {}
    for position, view in views.items():
        old = params[position]
        params[position] = tirx.decl_buffer(view.parent_shape(old.shape, ranges), str(old.dtype), old.name)
        replaced[old] = (params[position], view)

    def moved(indices: Any, view: TensorView) -> list[Expr]:
        return [i + int64(first) if first else i for i, first in zip(indices, view.before, strict=True)]

    def on_load(load: TensorLoad) -> Any:
        if load.source not in replaced:
            return load
        buffer, view = replaced[load.source]
        return tirx.BufferLoad(buffer, moved(load.indices, view))

    def on_store(statement: Any) -> Any:
        if statement.buffer not in replaced:
            return statement
        buffer, view = replaced[statement.buffer]
        return tirx.BufferStore(buffer, statement.value, moved(statement.indices, view))

    body = structural_map(func.body, ((TensorLoad, on_load), (tirx.BufferStore, on_store)))
    return PrimFunc(params, body, None, attrs=func.attrs)


def border(view: TensorView, inner: Sequence[Extent], dtype: str, lanes: int, ranges: SymbolRanges) -> Kernel:
    """A kernel that fills the border around a view of shape `inner` (N, H, W, C; C is an integer)."""
    images, height, width, channels = view.parent_shape(inner, ranges)
    _, top, left, _ = view.before
    line, rows = width * channels, inner[1]
    fill = tirx.const(int(view.value) if "int" in dtype else view.value, dtype)

    def body(buffers: list[Any], _begin: Expr, _end: Expr) -> None:
        def fill_vector(first: Expr, size: int) -> None:
            with vector(size) as lane:
                store(buffers[0], [first + lane], fill)

        def run(first: Expr, count: Extent) -> None:
            if is_dynamic(count):
                blocks(count, lanes, lambda offset, size: fill_vector(first + offset, size))
                return
            vectors = count // lanes
            if vectors:
                with serial(vectors) as block:
                    fill_vector(first + block * int64(lanes), lanes)
            for offset, size in chunks(count - vectors * lanes, lanes):
                fill_vector(first + int64(vectors * lanes + offset), size)

        with serial(images) as image:
            base = image * int64(height * line)
            # The end of one row and the start of the next are adjacent in memory.
            sides = ranges.simplify((left + view.after[2]) * channels)
            start = ranges.simplify((top * width + left) * channels)
            if is_dynamic(start) or start:
                run(base, start)
            if (is_dynamic(sides) or sides) and (is_dynamic(rows) or rows > 1):
                with serial(rows - 1) as row:
                    run(base + (row + int64(top)) * int64(line) + int64((left + inner[2]) * channels), sides)
            last_row = ranges.simplify(start + (rows - 1) * line + inner[2] * channels)
            end = ranges.simplify(height * line - last_row)
            if is_dynamic(end) or end:
                run(base + int64(last_row), end)

    size = ranges.greatest(ranges.product([images, height, width, channels]))
    func = define([Argument("padded", [size], dtype)], None, body, False, ranges)
    return Kernel(func, None, {}, "border", ranges=ranges)
