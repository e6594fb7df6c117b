"""ChannelsLast: convolutions, pools and resizes use NHWC, and transposes move to where they cancel out.

Each op of layout NCHW becomes an op of layout NHWC between two transposes. A transpose then sinks through
elementwise ops (with scalars, constants and equally transposed operands), reductions, concats, paddings,
slices, splits, reversals, chosen rows and softmax, whose axes are renumbered; where it meets its inverse,
both are removed (graph/transposes.py).
Guarantees: same results; the model's inputs and outputs keep their layout. TVM 0.27's ConvertLayout does the
same for fewer ops, and fails on constants of other ranks and on models without any of these ops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.extents import shape_of
from kiln.frontend import branches
from kiln.graph.bindings import CallRewriter, const, constant, integers, operator, rewrite_calls, static_shape
from kiln.graph.convolutions import conv2d_nhwc
from kiln.graph.transposed_conv import conv1d_transpose, conv2d_transpose, conv3d_transpose
from kiln.graph.transposes import padded

TO_NHWC, TO_NCHW = [0, 2, 3, 1], [0, 3, 1, 2]
_FEWEST_SAMPLED = 8  # channels that are sampled as vectors
CHANNELS_FIRST = {3: [0, 2, 1], 4: TO_NCHW, 5: [0, 4, 1, 2, 3]}  # by rank, from channels last

UNARY = (
    "abs", "astype", "atan", "ceil", "clip", "cos", "erf", "exp", "floor", "log", "logical_not", "negative",
    "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.relu6", "nn.selu", "nn.silu", "nn.softplus",
    "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "tanh", "trunc",
)  # fmt: skip
NARY = (
    "add", "divide", "equal", "floor_divide", "floor_mod", "greater", "greater_equal", "less", "less_equal",
    "logical_and", "logical_or", "maximum", "minimum", "mod", "multiply", "not_equal", "power", "subtract",
    "where",
)  # fmt: skip
_REDUCTIONS = ("max", "mean", "min", "prod", "sum", "variance", "std")


def _is(call: Any, axes: list[int] | None) -> bool:
    """Whether `call` is a transpose to `axes`; with `axes` None, whether it is any transpose."""
    return operator(call) == "relax.permute_dims" and (
        axes is None or (call.attrs.axes is not None and integers(call.attrs.axes) == axes)
    )


def _nhwc(rewriter: CallRewriter, data: Any) -> Any:
    """`data` (N, C, H, W) as (N, H, W, C)."""
    definition = rewriter.definition(data)
    if _is(definition, TO_NCHW):
        return definition.args[0]
    if operator(definition) == "relax.nn.pad":  # fewer elements to move, and the padding may be in place
        return rewriter.emit(padded(definition, _nhwc(rewriter, definition.args[0]), TO_NCHW))
    return rewriter.emit(relax.op.permute_dims(data, TO_NHWC))


def _nchw(rewriter: CallRewriter, result: Any) -> Any:
    """`result` (N, H, W, C) as (N, C, H, W)."""
    return relax.op.permute_dims(rewriter.emit(result), TO_NCHW)


def _conv2d(rewriter: CallRewriter, call: relax.Call) -> Any:
    attrs = call.attrs
    if str(attrs.data_layout) != "NCHW" or str(attrs.kernel_layout) != "OIHW":
        return None
    weights = constant(call.args[1])
    if weights is None:
        kernel = rewriter.emit(relax.op.permute_dims(call.args[1], [2, 3, 1, 0]))
    else:
        kernel = const(np.transpose(weights, (2, 3, 1, 0)), str(weights.dtype))
    return _nchw(rewriter, conv2d_nhwc(call, _nhwc(rewriter, call.args[0]), kernel))


def _pool(make: Any) -> Any:
    def rule(rewriter: CallRewriter, call: relax.Call) -> Any:
        attrs = call.attrs
        if str(attrs.layout) != "NCHW":
            return None
        result = make(
            _nhwc(rewriter, call.args[0]),
            pool_size=integers(attrs.pool_size),
            strides=integers(attrs.strides),
            padding=integers(attrs.padding),
            dilation=integers(attrs.dilation),
            ceil_mode=bool(attrs.ceil_mode),
            count_include_pad=bool(attrs.count_include_pad),
            layout="NHWC",
        )
        return _nchw(rewriter, result)

    return rule


def _adaptive_pool(rewriter: CallRewriter, call: relax.Call) -> Any:
    if str(call.attrs.layout) != "NCHW":
        return None
    size = None if call.attrs.output_size is None else integers(call.attrs.output_size)
    result = relax.op.nn.adaptive_avg_pool2d(_nhwc(rewriter, call.args[0]), size, layout="NHWC")
    return _nchw(rewriter, result)


def _resize(rewriter: CallRewriter, call: relax.Call) -> Any:
    attrs = call.attrs
    if str(attrs.layout) != "NCHW":
        return None
    result = relax.op.image.resize2d(
        _nhwc(rewriter, call.args[0]),
        call.args[1],
        roi=[float(value) for value in attrs.roi],
        layout="NHWC",
        method=str(attrs.method),
        coordinate_transformation_mode=str(attrs.coordinate_transformation_mode),
        rounding_method=str(attrs.rounding_method),
        cubic_alpha=float(attrs.cubic_alpha),
        cubic_exclude=int(attrs.cubic_exclude),
        extrapolation_value=float(attrs.extrapolation_value),
        out_dtype=str(call.ty.dtype),
    )
    return _nchw(rewriter, result)


def _grid_sample(rewriter: CallRewriter, call: relax.Call) -> Any:
    attrs, channels = call.attrs, shape_of(call.args[0])[1]
    if str(attrs.layout) != "NCHW" or not isinstance(channels, int) or channels < _FEWEST_SAMPLED:
        return None
    how = str(attrs.method), "NHWC", str(attrs.padding_mode), bool(attrs.align_corners)
    return _nchw(rewriter, relax.op.image.grid_sample(_nhwc(rewriter, call.args[0]), call.args[1], *how))


def _axes_of(rewriter: CallRewriter, arguments: list[Any]) -> list[int] | None:
    """The axes of the first argument that is a transpose; None if no argument is."""
    for argument in arguments:
        definition = rewriter.definition(argument)
        if _is(definition, None) and definition.attrs.axes is not None:
            return integers(definition.attrs.axes)
    return None


def _without(rewriter: CallRewriter, argument: Any, axes: list[int]) -> Any | None:
    """`argument` without the transpose to `axes`; None where undoing it would cost time at run time."""
    definition = rewriter.definition(argument)
    if _is(definition, axes):
        return definition.args[0]
    shape = getattr(argument.ty, "shape", None)
    if shape is None or any(not isinstance(size, tvm.tirx.IntImm) for size in shape):
        return None
    sizes = static_shape(argument)
    if all(size == 1 for size in sizes) and len(sizes) <= 1:
        return argument
    if len(sizes) > len(axes):
        return None
    full = [1] * (len(axes) - len(sizes)) + sizes
    inverse = [axes.index(axis) for axis in range(len(axes))]
    value = constant(argument)
    if value is not None:
        return const(np.transpose(value.reshape(full), inverse), str(value.dtype))
    moved = [axis for axis in inverse if full[axis] != 1]
    if moved == sorted(moved):
        return rewriter.emit(relax.op.reshape(argument, [full[axis] for axis in inverse]))
    return None


def _elementwise(rewriter: CallRewriter, call: relax.Call) -> Any:
    axes = _axes_of(rewriter, list(call.args))
    if axes is None or len(call.ty.shape) != len(axes):
        return None
    arguments = []
    for argument in call.args:
        if not isinstance(getattr(argument, "ty", None), relax.TensorType):
            arguments.append(argument)
            continue
        before = _without(rewriter, argument, axes)
        if before is None:
            return None
        arguments.append(before)
    result = rewriter.emit(relax.Call(call.op, arguments, call.attrs))
    return relax.op.permute_dims(result, axes)


def _choice(rewriter: CallRewriter, call: Any) -> Any:
    """Rule for a choice of two branches: each result whose values are transposed in one is, or both."""
    if not branches.is_choice(call):
        return None
    condition, *sides = branches.parts(call)
    moved: list[list[int] | None] = []
    pairs: list[list[Any]] = []
    for pair in zip(*sides, strict=True):
        axes = _axes_of(rewriter, list(pair))
        inner = [None] if axes is None else [_without(rewriter, value, axes) for value in pair]
        all_transposed = all(value is not None for value in inner)
        moved.append(axes if all_transposed else None)
        pairs.append(inner if all_transposed else list(pair))
    if not any(moved):
        return None
    choice = rewriter.emit(branches.choose(condition, *(list(side) for side in zip(*pairs, strict=True))))
    if len(moved) == 1:
        return relax.op.permute_dims(choice, moved[0])
    results = []
    for index, axes in enumerate(moved):
        result = rewriter.emit(relax.TupleGetItem(choice, index))
        results.append(result if axes is None else rewriter.emit(relax.op.permute_dims(result, axes)))
    return relax.Tuple(results)


def _quantisation(rewriter: CallRewriter, call: relax.Call) -> Any:
    """Rule for quantize and dequantize; a scale is for the tensor, or for an element of an axis."""
    axes = _axes_of(rewriter, [call.args[0]])
    if axes is None:
        return None
    make = relax.op.quantize if operator(call) == "relax.quantize" else relax.op.dequantize
    inner, axis = rewriter.definition(call.args[0]).args[0], axes[int(call.attrs.axis) % len(axes)]
    result = rewriter.emit(make(inner, *call.args[1:], axis, str(call.attrs.out_dtype)))
    return relax.op.permute_dims(result, axes)


def _reduction(rewriter: CallRewriter, call: Any) -> Any:
    axes = _axes_of(rewriter, [call.args[0]])
    if axes is None:
        return None
    inner = rewriter.definition(call.args[0]).args[0]
    if call.attrs.axis is None:  # all axes: what is left has no order
        return relax.Call(call.op, [inner], call.attrs)
    reduced = [axes[axis % len(axes)] for axis in integers(call.attrs.axis)]
    make = getattr(relax.op, str(operator(call)).removeprefix("relax."))
    result = rewriter.emit(make(inner, axis=reduced, keepdims=bool(call.attrs.keepdims)))
    if call.attrs.keepdims:
        return relax.op.permute_dims(result, axes)
    left = [axis for axis in axes if axis not in reduced]
    return relax.op.permute_dims(result, [sorted(left).index(axis) for axis in left])


def _concat(rewriter: CallRewriter, call: relax.Call) -> Any:
    if not isinstance(call.args[0], relax.Tuple) or call.attrs.axis is None:
        return None
    fields = list(call.args[0].fields)
    axes = _axes_of(rewriter, fields)
    if axes is None:
        return None
    inner = [_without(rewriter, field, axes) for field in fields]
    if any(field is None for field in inner):
        return None
    result = rewriter.emit(relax.op.concat(inner, axes[int(call.attrs.axis) % len(axes)]))
    return relax.op.permute_dims(result, axes)


def _pad(rewriter: CallRewriter, call: relax.Call) -> Any:
    axes = _axes_of(rewriter, [call.args[0]])
    if axes is None:
        return None
    result = rewriter.emit(padded(call, rewriter.definition(call.args[0]).args[0], axes))
    return relax.op.permute_dims(result, axes)


def _part(make: Any) -> Any:
    """The rule of an operator that moves elements along some axes: `make` of the call, its data and the axes.

    A transpose to an order that no image or line has is kept: it marks the heads of attention.
    """

    def rule(rewriter: CallRewriter, call: relax.Call) -> Any:
        axes = _axes_of(rewriter, [call.args[0]])
        if axes not in CHANNELS_FIRST.values():
            return None
        inner = rewriter.definition(call.args[0]).args[0]
        moved_call = make(call, inner, axes)
        if moved_call is None:
            return None
        result = rewriter.emit(moved_call)
        if not isinstance(result.ty, relax.TupleType):
            return relax.op.permute_dims(result, axes)
        items = [rewriter.emit(relax.TupleGetItem(result, index)) for index in range(len(result.ty.fields))]
        return relax.Tuple([rewriter.emit(relax.op.permute_dims(item, axes)) for item in items])

    return rule


def _slice(call: relax.Call, inner: Any, axes: list[int]) -> Any:
    if not isinstance(call.args[1], relax.Tuple):
        return None
    moved = [axes[int(axis.value) % len(axes)] for axis in call.args[1].fields]
    new = relax.Tuple([relax.prim_value(axis) for axis in moved])
    return relax.Call(call.op, [inner, new, *call.args[2:]], call.attrs)


def _split(call: relax.Call, inner: Any, axes: list[int]) -> Any:
    sections = call.attrs.indices_or_sections
    numbers = int(sections) if isinstance(sections, (int, tvm.tirx.IntImm)) else integers(sections)
    return relax.op.split(inner, numbers, axes[int(call.attrs.axis) % len(axes)])


def _take(call: relax.Call, inner: Any, axes: list[int]) -> Any:
    indices, axis = call.args[1], call.attrs.axis
    if axis is None or len(indices.ty.shape) != 1:
        return None
    return relax.op.take(inner, indices, axes[int(axis) % len(axes)], mode=str(call.attrs.mode))


def _flip(call: relax.Call, inner: Any, axes: list[int]) -> Any:
    return relax.op.flip(inner, axes[int(call.attrs.axis) % len(axes)])


def _softmax(rewriter: CallRewriter, call: Any) -> Any:
    axes = _axes_of(rewriter, [call.args[0]])
    if axes is None:
        return None
    inner = rewriter.definition(call.args[0]).args[0]
    make = relax.op.nn.softmax if operator(call) == "relax.nn.softmax" else relax.op.nn.log_softmax
    result = rewriter.emit(make(inner, axes[int(call.attrs.axis) % len(axes)]))
    return relax.op.permute_dims(result, axes)


def channels_last(mod: tvm.IRModule) -> tvm.IRModule:
    """Convert the layout of all ops to NHWC, and sink transposes."""
    rules: dict[str, Any] = {
        "relax.nn.conv2d": _conv2d,
        "relax.nn.conv1d_transpose": conv1d_transpose,
        "relax.nn.conv2d_transpose": conv2d_transpose,
        "relax.nn.conv3d_transpose": conv3d_transpose,
        "relax.nn.max_pool2d": _pool(relax.op.nn.max_pool2d),
        "relax.nn.avg_pool2d": _pool(relax.op.nn.avg_pool2d),
        "relax.nn.adaptive_avg_pool2d": _adaptive_pool,
        "relax.image.resize2d": _resize,
        "relax.image.grid_sample": _grid_sample,
        "relax.quantize": _quantisation,
        "relax.dequantize": _quantisation,
        "relax.concat": _concat,
        "relax.nn.pad": _pad,
        "relax.nn.softmax": _softmax,
        "relax.nn.log_softmax": _softmax,
        "relax.strided_slice": _part(_slice),
        "relax.split": _part(_split),
        "relax.take": _part(_take),
        "relax.flip": _part(_flip),
    }
    rules["relax.call_dps_packed"] = _choice
    rules |= {f"relax.{name}": _elementwise for name in (*UNARY, *NARY)}
    rules |= {f"relax.{name}": _reduction for name in _REDUCTIONS}
    return rewrite_calls(mod, rules)
