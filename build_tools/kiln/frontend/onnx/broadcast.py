"""Operands whose sizes agree for all sizes of the dimensions, written as different expressions.

TVM compares sizes by algebra, which decides neither that (seq + 3) // 4 * 4 cut to seq is seq, nor whether
two quotients agree. Before an operator that broadcasts, or joins, such operands get the same expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import onnx
from tvm import relax

from kiln.extents import Extent, is_one, shape_of
from kiln.frontend.onnx.agreement import agreed, is_counted, may_agree
from kiln.frontend.onnx.attributes import integer_attribute
from kiln.frontend.onnx.node import shape_expr
from kiln.frontend.onnx.refusals import one_dimension, other_sizes
from kiln.frontend.symbols import SizeComparisons, Symbols

BROADCAST = {
    *("Add", "Div", "Max", "Mean", "Min", "Mod", "Mul", "Pow", "PRelu", "Sub", "Sum", "Where"),
    *("And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Or", "Xor"),
    *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
}


def aligned(
    node: onnx.NodeProto, tensors: Callable[[str], Any], symbols: Symbols, builder: relax.BlockBuilder
) -> Callable[[str], Any]:
    """The look-up `tensors` (by name), with equal sizes of the operands of `node` written alike.

    Raises ValueError, with sizes of the dimensions for which they differ, for operands that do not fit.
    """
    joins = node.op_type == "Concat"
    if node.op_type not in BROADCAST and not joins:
        return tensors
    operands = {name: tensors(name) for name in node.input if name}
    shapes = {name: shape_of(tensor) for name, tensor in operands.items() if tensor.ty.shape is not None}
    if len(shapes) < 2 or all(isinstance(size, int) for shape in shapes.values() for size in shape):
        return tensors
    skipped = None
    if joins:
        axis = integer_attribute(node, "axis", 1)
        rank = len(next(iter(shapes.values())))
        skipped = -1 - (axis if axis < 0 else axis - rank)  # counted from the last axis
    changed = _common_sizes(shapes, symbols, skipped)
    rewritten = {}
    for name, shape in changed.items():
        data = agreed(builder, symbols, node.output[0], operands[name], shape)
        rewritten[name] = builder.emit(relax.op.reshape(data, shape_expr(shape)))
    return lambda name: rewritten[name] if name in rewritten else tensors(name)


def _common_sizes(
    shapes: dict[str, list[Extent]], symbols: Symbols, skipped: int | None
) -> dict[str, list[Extent]]:
    """The shapes that have to be written again, by name. `skipped`: an axis that is joined; the last is 0."""
    changed: dict[str, list[Extent]] = {}
    for from_last in range(max(map(len, shapes.values()))):
        sizes = {
            name: shape[-1 - from_last]
            for name, shape in shapes.items()
            if from_last != skipped and from_last < len(shape) and not is_one(shape[-1 - from_last])
        }
        # A counted size is compared with one that is known, not the reverse.
        chosen = min(sizes.values(), key=lambda size: is_counted(symbols, size), default=1)
        for name, size in sizes.items():
            if not SizeComparisons.equal(symbols, chosen, size):
                if not may_agree(symbols, chosen, size):
                    _refuse(chosen, size, symbols)
                changed.setdefault(name, list(shapes[name]))[-1 - from_last] = chosen
    return changed


def _refuse(a: Extent, b: Extent, symbols: Symbols) -> NoReturn:
    """Raise ValueError for two sizes of an axis that differ, or may do so, for some sizes."""
    operands = f"its operands have sizes {symbols.shown(a)} and {symbols.shown(b)}, which"
    differing = symbols.differing(a, b)
    differing_at_one = symbols.differing(a, b, ones=True)
    if differing is not None:
        way = one_dimension(symbols.shown(a), symbols.shown(b)) or other_sizes(
            symbols.multiples(a, b, lambda left, right: left == right)
        )
        raise ValueError(f"{operands} differ with {_sizes_text(differing)}: {way}")
    if differing_at_one is not None:
        raise ValueError(
            f"{operands} differ with {_sizes_text(differing_at_one)}, where one of them is 1, but not "
            "always: raise the least size in 'dims'"
        )
    raise ValueError(
        f"{operands} are not known to be equal before the model runs; export with dynamo=True, or take a "
        "part of the graph ('cut')"
    )


def _sizes_text(sizes: dict[str, int]) -> str:
    return ", ".join(f"{dim} = {size}" for dim, size in sizes.items())
