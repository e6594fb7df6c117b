"""Sizes that an operator requires to be equal, compared before it is converted.

The weights of an operator have fixed sizes. Where a dynamic dimension of the model is an axis that must agree
with them, no run at another size can be right: TVM's converters do not compare such sizes, or in words of
their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx

from kiln.extents import Extent, is_one
from kiln.frontend.onnx.agreement import may_agree
from kiln.frontend.onnx.attributes import integer_attribute
from kiln.frontend.onnx.refusals import one_dimension
from kiln.frontend.symbols import Symbols
from kiln.onnx_domains import domain_of

# An axis of a tensor: its name, the number of the axis, its size.
Axis = tuple[str, int, Extent]
Pairs = Iterator[tuple[Axis, Axis]]
# By number of the input, its name and its sizes; inputs that are omitted or of unknown sizes are not there.
Shapes = dict[int, tuple[str, list[Extent]]]


def check(node: onnx.NodeProto, sizes_of: Callable[[str], list[Extent] | None], symbols: Symbols) -> None:
    """Raise ValueError for two sizes that must be equal and are not, for some size of a dynamic dimension."""
    rule = _RULES.get((domain_of(node), node.op_type))
    if rule is None:
        return
    shapes: Shapes = {}
    for index, name in enumerate(node.input):
        sizes = sizes_of(name) if name else None
        if sizes is not None:
            shapes[index] = (name, sizes)
    if all(isinstance(size, int) for _, shape in shapes.values() for size in shape):
        return  # kiln.frontend.onnx.misfits compares numbers
    for first, second in rule(node, shapes):
        _compare(first, second, symbols)


def _compare(first: Axis, second: Axis, symbols: Symbols) -> None:
    (a, i, x), (b, j, y) = first, second
    if (isinstance(x, int) and isinstance(y, int)) or may_agree(symbols, x, y):
        return
    differing = symbols.differing(x, y)
    if differing is None:
        return
    where = ", ".join(f"{dim} = {size}" for dim, size in differing.items())
    fixed = _one_size(x, y, symbols)
    raise ValueError(
        f"axis {i} of '{a}' has size {symbols.shown(x)} and axis {j} of '{b}' has size {symbols.shown(y)}, "
        f"which must be equal and differ with {where}: {fixed}"
    )


def _one_size(x: Extent, y: Extent, symbols: Symbols) -> str:
    """The remedy for two sizes that differ, for errors: the size that a dynamic dimension must have."""
    number, other = (x, y) if isinstance(x, int) else (y, x)
    dim = symbols.shown(other)
    if isinstance(number, int) and dim.isidentifier():
        return f"the weights are for one size, give it in 'dims': {dim}: {{min: {number}, max: {number}}}"
    way = one_dimension(symbols.shown(x), symbols.shown(y))
    return way or "give the sizes in 'dims' one value each, for which they agree"


def _axis(shapes: Shapes, index: int, axis: int) -> Axis | None:
    """An axis of input `index`; None where the input or the axis is not there."""
    if index not in shapes:
        return None
    name, shape = shapes[index]
    position = axis + len(shape) if axis < 0 else axis
    return (name, position, shape[position]) if 0 <= position < len(shape) else None


def _both(first: Axis | None, second: Axis | None) -> Pairs:
    if first is not None and second is not None:
        yield first, second


def _matmul(first: int, second: int) -> Callable[[onnx.NodeProto, Shapes], Pairs]:
    """The rule of a product of matrices of these two inputs."""

    def pairs(_: onnx.NodeProto, shapes: Shapes) -> Pairs:
        if second in shapes:
            inner = -2 if len(shapes[second][1]) > 1 else 0
            yield from _both(_axis(shapes, first, -1), _axis(shapes, second, inner))

    return pairs


def _gemm(node: onnx.NodeProto, shapes: Shapes) -> Pairs:
    left, right = 1 - integer_attribute(node, "transA", 0), integer_attribute(node, "transB", 0)
    yield from _both(_axis(shapes, 0, left), _axis(shapes, 1, right))


def _fused_matmul(node: onnx.NodeProto, shapes: Shapes) -> Pairs:
    left, right = -1 - integer_attribute(node, "transA", 0), -2 + integer_attribute(node, "transB", 0)
    yield from _both(_axis(shapes, 0, left), _axis(shapes, 1, right))


def _conv(weight: int) -> Callable[[onnx.NodeProto, Shapes], Pairs]:
    """The rule of a convolution whose weight is this input."""

    def pairs(node: onnx.NodeProto, shapes: Shapes) -> Pairs:
        transposed = node.op_type == "ConvTranspose"
        depth = _axis(shapes, weight, 0 if transposed else 1)
        if depth is not None:
            groups = 1 if transposed else integer_attribute(node, "group", 1)
            yield from _both(_axis(shapes, 0, 1), (depth[0], depth[1], depth[2] * groups))

    return pairs


def _of_last_axes(*weights: int) -> Callable[[onnx.NodeProto, Shapes], Pairs]:
    """The rule of weights that broadcast to the last axes of input 0."""

    def pairs(_: onnx.NodeProto, shapes: Shapes) -> Pairs:
        for index in weights:
            for from_last in range(1, len(shapes[index][1]) + 1 if index in shapes else 1):
                axis = _axis(shapes, index, -from_last)
                if axis is not None and not is_one(axis[2]):
                    yield from _both(_axis(shapes, 0, -from_last), axis)

    return pairs


def _of_channels(*weights: int) -> Callable[[onnx.NodeProto, Shapes], Pairs]:
    """The rule of weights with a number for each channel, axis 1 of input 0."""

    def pairs(_: onnx.NodeProto, shapes: Shapes) -> Pairs:
        for index in weights:
            yield from _both(_axis(shapes, 0, 1), _axis(shapes, index, 0))

    return pairs


def _group_norm(node: onnx.NodeProto, shapes: Shapes) -> Pairs:
    """Before operator set 21 the weights are for groups."""
    if 1 in shapes and shapes[1][1] != [integer_attribute(node, "num_groups", 0)]:
        yield from _of_channels(1, 2)(node, shapes)


def _recurrent(_: onnx.NodeProto, shapes: Shapes) -> Pairs:
    yield from _both(_axis(shapes, 0, 2), _axis(shapes, 1, 2))


def _einsum(node: onnx.NodeProto, shapes: Shapes) -> Pairs:
    equation = next((item.s.decode() for item in node.attribute if item.name == "equation"), "")
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    first: dict[str, Axis] = {}
    for index, term in enumerate(terms):
        before, dots, after = term.partition("...")
        positions = [*range(len(before)), *range(-len(after), 0)] if dots else list(range(len(before)))
        for position, letter in zip(positions, before + after, strict=True):
            axis = _axis(shapes, index, position)
            if axis is not None and not is_one(axis[2]):
                yield from _both(first.setdefault(letter, axis), axis)


_MICROSOFT = "com.microsoft"
_RULES: dict[tuple[str, str], Callable[[onnx.NodeProto, Shapes], Pairs]] = {
    ("", "MatMul"): _matmul(0, 1),
    ("", "MatMulInteger"): _matmul(0, 1),
    ("", "QLinearMatMul"): _matmul(0, 3),
    ("", "Gemm"): _gemm,
    (_MICROSOFT, "FusedMatMul"): _fused_matmul,
    ("", "Conv"): _conv(1),
    ("", "ConvTranspose"): _conv(1),
    ("", "ConvInteger"): _conv(1),
    ("", "QLinearConv"): _conv(3),
    ("", "LayerNormalization"): _of_last_axes(1, 2),
    ("", "SimplifiedLayerNormalization"): _of_last_axes(1),
    ("", "RMSNormalization"): _of_last_axes(1),
    (_MICROSOFT, "SkipLayerNormalization"): _of_last_axes(1, 2, 3, 4),
    (_MICROSOFT, "SkipSimplifiedLayerNormalization"): _of_last_axes(1, 2, 3),
    (_MICROSOFT, "BiasGelu"): _of_last_axes(1),
    (_MICROSOFT, "BiasAdd"): _of_last_axes(1, 2),
    ("", "BatchNormalization"): _of_channels(1, 2, 3, 4),
    ("", "InstanceNormalization"): _of_channels(1, 2),
    ("", "GroupNormalization"): _group_norm,
    ("", "LSTM"): _recurrent,
    ("", "GRU"): _recurrent,
    ("", "RNN"): _recurrent,
    ("", "Einsum"): _einsum,
}
