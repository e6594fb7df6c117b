"""Rules of operators that work row by row: which rows of their operands they read for rows of the result.

Rows are those of an NHWC image or, of a signal, which is an image of one row, its columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax

from kiln.extents import shape_of
from kiln.graph.bindings import constant, integers, operator
from kiln.graph.layout import NARY, UNARY
from kiln.lower.row_functions import NO_FUNCTIONS, Functions, operands_with_rows

ROWS, COLUMNS = 1, 2  # the axes of an NHWC tensor that are divided: of images, and of images of one row
# Operators that compute each element from the elements of the same place, and constants.
_ELEMENTWISE = {
    f"relax.{name}"
    for name in (
        *UNARY, *NARY, "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
        "quantize", "dequantize", "reshape", "take",
    )
}  # fmt: skip
POOLS = {"relax.nn.max_pool2d": relax.op.nn.max_pool2d, "relax.nn.avg_pool2d": relax.op.nn.avg_pool2d}


@dataclass(frozen=True)
class Need:
    """Rows `first` to `last` - 1 of an operand, with `before` and `after` rows of padding around them."""

    first: int
    last: int
    before: int = 0
    after: int = 0


def is_image(expr: relax.Expr) -> bool:
    """Whether an expression is a tensor of four axes of static size."""
    shape = getattr(expr.ty, "shape", None)
    if shape is None or not isinstance(expr.ty, relax.TensorType):
        return False
    return len(shape) == 4 and all(isinstance(size, int) and size > 0 for size in shape_of(expr))


def activations(call: Any, axis: int) -> list[int]:
    """Positions of the operands that have rows: not constants, nor tensors that are the same for all rows."""
    live = [number for number, arg in enumerate(call.args) if isinstance(arg, relax.Var)]
    if operator(call) not in _ELEMENTWISE or not is_image(call) or shape_of(call)[axis] == 1:
        return live
    return [number for number in live if not _has_one_row(call.args[number], axis)]


def _has_one_row(expr: relax.Expr, axis: int) -> bool:
    """Whether a tensor broadcasts along the rows of an image."""
    shape = shape_of(expr) if isinstance(expr.ty, relax.TensorType) and expr.ty.shape is not None else None
    return shape is not None and (len(shape) < 4 - axis or shape[axis - 4] == 1)


@dataclass(frozen=True)
class RowRule:
    """The rows of `operands` that an operator reads for rows of its result: windows of `reach` rows.

    `step`: rows between windows; `before`: rows of padding above the `rows` rows of the operands.
    """

    operands: tuple[Any, ...]
    rows: int
    step: int = 1
    reach: int = 1
    before: int = 0

    def rows_read(self, first: int, last: int) -> Need | None:
        """The rows that rows `first` to `last` - 1 of the result read; None where they read padding alone."""
        begin, end = first * self.step - self.before, (last - 1) * self.step - self.before + self.reach
        low, high = max(begin, 0), min(end, self.rows)
        return Need(low, high, low - begin, end - high) if low < high else None


def rule_of(call: Any, axis: int = ROWS, functions: Functions = NO_FUNCTIONS) -> RowRule | None:
    """The rule of an operator, for rows along `axis`; None where it cannot be divided.

    functions: those that the module calls.
    """
    name, attrs = operator(call), call.attrs
    if name == "relax.call_tir":
        read = operands_with_rows(call, functions, axis)
        if read is None or (axis == COLUMNS and any(shape_of(item)[ROWS] != 1 for item in read)):
            return None
        return RowRule(read, int(shape_of(call)[axis]))
    live = activations(call, axis)
    data = tuple(call.args[number] for number in live)
    if name == "relax.concat":
        data = tuple(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else ()
    if not data or not all(isinstance(item, relax.Var) and is_image(item) for item in data):
        return None
    if not is_image(call) or (axis == COLUMNS and any(shape_of(item)[ROWS] != 1 for item in (call, *data))):
        return None
    rows, window = int(shape_of(data[0])[axis]), axis - ROWS
    if name == "relax.nn.conv2d":
        if str(attrs.data_layout) != "NHWC" or any(integers(attrs.padding)) or live != [0]:
            return None
        reach = (int(shape_of(call.args[1])[window]) - 1) * integers(attrs.dilation)[window] + 1
        return RowRule(data, rows, integers(attrs.strides)[window], reach)
    if name in POOLS:
        # A mean divides by the elements of its window that are inside of the image and its own padding.
        whole = not attrs.ceil_mode or name == "relax.nn.max_pool2d"
        plain = whole and all(size == 1 for size in integers(attrs.dilation))
        if str(attrs.layout) != "NHWC" or not plain:
            return None
        before = integers(attrs.padding)[window]
        return RowRule(data, rows, integers(attrs.strides)[window], integers(attrs.pool_size)[window], before)
    if name == "relax.nn.pad":
        widths = integers(attrs.pad_width)
        if str(attrs.pad_mode) != "constant" or any(widths[:2]) or len(widths) != 8:
            return None
        return RowRule(data, rows, before=widths[2 * axis])
    if name == "relax.concat":
        return RowRule(data, rows) if int(attrs.axis) % 4 not in (0, axis) else None
    if name == "relax.strided_slice":
        axes = [int(number) % 4 for number in call.args[1].fields]
        return RowRule(data, rows) if not {0, axis} & set(axes) else None
    return _elementwise_rule(call, axis, data)


def transposed_input(call: Any, axis: int) -> RowRule | None:
    """The rule of an image that is an input of the network with its axes permuted.

    It has no operands: a band reads its rows of the input itself.
    """
    if not is_image(call) or not is_image(call.args[0]) or call.attrs.axes is None:
        return None
    if axis == COLUMNS and shape_of(call)[ROWS] != 1:
        return None
    return RowRule((), int(shape_of(call)[axis]))


def _elementwise_rule(call: Any, axis: int, data: tuple[Any, ...]) -> RowRule | None:
    name, live = operator(call), activations(call, axis)
    if name not in _ELEMENTWISE or any(shape_of(item) != shape_of(call) for item in data):
        return None
    fixed = [arg for number, arg in enumerate(call.args) if number not in live]
    tables = [arg for arg in fixed if constant(arg) is not None and name != "relax.take"]
    if not all(_has_one_row(table, axis) for table in tables):
        return None
    values = [constant(table) for table in tables]
    if name in ("relax.quantize", "relax.dequantize") and any(v is None or v.size != 1 for v in values):
        return None
    return RowRule(data, int(shape_of(data[0])[axis]))


def is_elementwise(call: Any, functions: Functions = NO_FUNCTIONS) -> bool:
    """Whether the operator computes each element from the operands' elements at the same index.

    Of the functions that the module calls, those count whose elements are computed from the same row.
    """
    return operator(call) in _ELEMENTWISE or any(
        operands_with_rows(call, functions, axis) is not None for axis in (ROWS, COLUMNS)
    )
