"""The first layers of a network in parts of the image, so that their feature maps never exist whole.

A *cut* is a feature map (NHWC) that operators which work row by row compute: convolutions, pools, padding,
concats and slices of channels or columns, and elementwise operators. They begin at the inputs of the network,
or at tensors of other operators, such as an input that is transposed. The cut's rows are divided into
*bands*. Each band is computed from those rows of these inputs that it needs, one band after the other, and
the bands are joined. A signal, an image of one row, is divided along its columns instead: a "row" is then one
of them.
Neighbouring bands share rows of the layers between, which are computed for each of them (Lin et al.,
"MCUNetV2", 2021).

Needs: one dataflow block, explicit padding of convolutions, static shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from kiln.callbacks import structural_map
from kiln.config.sizes import ceil_div
from kiln.extents import shape_of
from kiln.graph.bindings import constant, integers, operator

ROWS, COLUMNS = 1, 2  # the axes of an NHWC tensor that are divided: of images, and of images of one row
# Operators that compute each element from the elements of the same place, and constants.
_ELEMENTWISE = {
    f"relax.{name}"
    for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "right_shift", "left_shift", "astype",
        "nn.relu", "nn.silu", "nn.gelu", "sigmoid", "tanh", "exp", "negative", "abs", "sign", "square",
        "sqrt", "clip", "quantize", "dequantize", "floor", "round", "reshape", "take", "nn.leakyrelu",
    )
}  # fmt: skip
_POOLS = {"relax.nn.max_pool2d": relax.op.nn.max_pool2d, "relax.nn.avg_pool2d": relax.op.nn.avg_pool2d}


@dataclass(frozen=True)
class Need:
    """Rows `first` to `last` - 1 of an operand, with `before` and `after` rows of padding around them."""

    first: int
    last: int
    before: int = 0
    after: int = 0


@dataclass(frozen=True)
class ImageRegion:
    """The calls that compute a cut, in order: (variable, call) each. `inputs`: the variables that they read.

    `rules`: by variable, the RowRule of its call; it may have entries of other calls. `axis`: the one that is
    divided, ROWS or COLUMNS.
    """

    calls: tuple[tuple[Any, Any], ...]
    inputs: tuple[Any, ...]
    rules: Mapping[Any, RowRule]
    axis: int

    @property
    def cut(self) -> Any:
        return self.calls[-1][0]

    @property
    def rows(self) -> int:
        return self.rows_of(self.cut)

    def rows_of(self, image: Any) -> int:
        """The size of the divided axis of an image."""
        return int(shape_of(image)[self.axis])


def is_image(expr: relax.Expr) -> bool:
    """Whether an expression is a tensor of four axes of static size."""
    shape = getattr(expr.ty, "shape", None)
    if shape is None or not isinstance(expr.ty, relax.TensorType):
        return False
    return len(shape) == 4 and all(isinstance(size, int) and size > 0 for size in shape_of(expr))


def _activations(call: Any, axis: int) -> list[int]:
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


def rule_of(call: Any, axis: int = ROWS) -> RowRule | None:
    """The rule of an operator, for rows along `axis`; None where it cannot be divided."""
    name, attrs, live = operator(call), call.attrs, _activations(call, axis)
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
    if name in _POOLS:
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


def _elementwise_rule(call: Any, axis: int, data: tuple[Any, ...]) -> RowRule | None:
    name, live = operator(call), _activations(call, axis)
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


def is_elementwise(call: Any) -> bool:
    """Whether the operator computes each element from the operands' elements at the same index."""
    return operator(call) in _ELEMENTWISE


def regions(func: Any) -> list[ImageRegion]:
    """The regions of a function that can be divided, in the order of their cuts.

    Along rows first, then along the columns of images of one row.
    """
    return [region for axis in (ROWS, COLUMNS) for region in _regions(func, axis)]


def _regions(func: Any, axis: int) -> list[ImageRegion]:
    if len(func.body.blocks) != 1 or not isinstance(func.body.body, relax.Var):
        return []
    bindings = list(func.body.blocks[0].bindings)
    if not all(isinstance(binding, relax.VarBinding) for binding in bindings):
        return []
    readers: dict[Any, list[Any]] = {func.body.body: [None]}
    for binding in bindings:
        for arg in getattr(binding.value, "args", [binding.value]):
            for item in arg.fields if isinstance(arg, relax.Tuple) else [arg]:
                readers.setdefault(item, []).append(binding.var)
    inside: dict[Any, set[Any]] = {}  # by variable: the calls that compute it, if all can be divided
    rules: dict[Any, RowRule] = {}
    result = []
    for binding in bindings:
        call = binding.value
        rule = rule_of(call, axis) if isinstance(call, relax.Call) else None
        if rule is None:
            continue
        rules[binding.var], operands = rule, rule.operands
        # An operand that cannot be divided, such as a transposed input, is computed whole before the bands.
        inside[binding.var] = {binding.var}.union(*(inside.get(item, set()) for item in operands))
        variables = inside[binding.var]
        closed = all(
            reader in variables for item in variables - {binding.var} for reader in readers.get(item, [])
        )
        if closed and not binding.var.same_as(func.body.body) and int(shape_of(binding.var)[axis]) > 1:
            ordered = tuple((b.var, b.value) for b in bindings if b.var in variables)
            read = [
                item for variable, _ in ordered for item in rules[variable].operands if item not in variables
            ]
            result.append(ImageRegion(ordered, tuple(dict.fromkeys(read)), rules, axis))
    return result


def bands(rows: int, count: int) -> list[tuple[int, int]]:
    """`rows` rows in at most `count` bands of equal height; only the last may be lower."""
    height = ceil_div(rows, count)
    return [(first, min(first + height, rows)) for first in range(0, rows, height)]


def rows_of(region: ImageRegion, first: int, last: int) -> dict[Any, Need] | None:
    """The rows of each variable that rows `first` to `last` - 1 of the cut need; None: no row."""
    rows_needed: dict[Any, tuple[int, int]] = {region.cut: (first, last)}
    needs: dict[Any, Need] = {}
    for variable, _ in reversed(region.calls):
        if variable not in rows_needed:
            return None
        rule = region.rules[variable]
        need = rule.rows_read(*rows_needed[variable])
        if need is None:
            return None
        needs[variable] = Need(*rows_needed[variable])
        for operand in rule.operands:
            low, high = rows_needed.get(operand, (need.first, need.last))
            rows_needed[operand] = min(low, need.first), max(high, need.last)
    return {**needs, **{item: Need(*rows_needed[item]) for item in region.inputs}}


def _with_padding(call: Any, args: Sequence[Any], need: Need, rows: int, axis: int) -> Any:
    """`call` on other operands, with the padding of `need`; `rows`: rows of its result, along `axis`."""
    name, attrs = operator(call), call.attrs
    if name in _POOLS:
        sizes, padding = integers(attrs.pool_size), integers(attrs.padding)
        if attrs.ceil_mode:  # explicit padding in place of windows that end after the image
            last = (shape_of(call)[COLUMNS] - 1) * integers(attrs.strides)[1] + sizes[1]
            padding[3] = max(last - padding[1] - shape_of(call.args[0])[COLUMNS], 0)
        padding[axis - ROWS :: 2] = need.before, need.after
        return _POOLS[name](
            args[0], sizes, integers(attrs.strides), padding, integers(attrs.dilation), False,
            bool(attrs.count_include_pad), str(attrs.layout),
        )  # fmt: skip
    if name == "relax.nn.pad":
        widths = integers(attrs.pad_width)
        widths[2 * axis : 2 * axis + 2] = need.before, need.after
        return relax.op.nn.pad(args[0], widths, str(attrs.pad_mode), float(attrs.pad_value))
    if name == "relax.reshape":
        shape = shape_of(call)
        return relax.op.reshape(args[0], [*shape[:axis], rows, *shape[axis + 1 :]])
    return relax.Call(call.op, list(args), call.attrs, call.ty_args)


def _band(
    builder: relax.BlockBuilder, region: ImageRegion, outside: Mapping[Any, Any], needs: Mapping[Any, Need]
) -> Any:
    """Emit one band of the cut; `outside`: the new variables of the region's inputs."""
    axis = region.axis
    held: dict[Any, tuple[Any, int]] = {}  # by variable: its band, and the row with which the band begins

    def part(item: Any, first: int, last: int) -> Any:
        if item not in held:
            input_tensor = outside.get(item, item)
            held[item] = input_tensor, 0
            need = needs[item]
            if (need.first, need.last) != (0, region.rows_of(item)):
                held[item] = builder.emit(_slice(input_tensor, need.first, need.last, axis)), need.first
        value, begins = held[item]
        if (first - begins, last - begins) == (0, region.rows_of(value)):
            return value
        return builder.emit(_slice(value, first - begins, last - begins, axis))

    for variable, call in region.calls:
        rows = needs[variable]
        need = region.rules[variable].rows_read(rows.first, rows.last)
        assert need is not None
        live = _activations(call, axis)
        args = [
            part(arg, need.first, need.last) if n in live else outside.get(arg, arg)
            for n, arg in enumerate(call.args)
        ]
        if operator(call) == "relax.concat":
            args = [relax.Tuple([part(item, need.first, need.last) for item in call.args[0].fields])]
        band = _with_padding(call, args, need, rows.last - rows.first, axis)
        held[variable] = builder.emit(band), rows.first
    return held[region.cut][0]


def _slice(value: Any, first: int, last: int, axis: int) -> Any:
    return relax.op.strided_slice(value, [axis], [first], [last])


def divided(mod: tvm.IRModule, number: int, count: int) -> tvm.IRModule | None:
    """`mod` with region `number` of `main` in at most `count` bands; None where that is impossible."""
    func = mod["main"]
    region = regions(func)[number]
    needs = [rows_of(region, *band) for band in bands(region.rows, count)]
    if any(need is None for need in needs) or len(needs) < 2:
        return None
    in_region = {variable for variable, _ in region.calls}
    builder = relax.BlockBuilder()
    variable_of: dict[Any, Any] = {}

    def renamed(expr: relax.Expr) -> Any:
        return structural_map(expr, ((relax.Var, lambda variable: variable_of.get(variable, variable)),))

    attrs = {name: value for name, value in (func.attrs or {}).items() if name != "global_symbol"}
    with builder.function("main", list(func.params), attrs=attrs):
        with builder.dataflow():
            for binding in func.body.blocks[0].bindings:
                if binding.var.same_as(region.cut):
                    joined = [_band(builder, region, variable_of, need) for need in needs if need is not None]
                    variable_of[binding.var] = builder.emit(relax.op.concat(joined, region.axis))
                elif binding.var not in in_region:
                    variable_of[binding.var] = builder.emit(renamed(binding.value))
            result = builder.emit_output(variable_of[func.body.body])
        builder.emit_func_output(result)
    new = builder.get()
    for variable, function in mod.functions_items():
        if variable.name_hint != "main":
            new[variable] = function
    return new.with_attrs(dict(mod.attrs)) if mod.attrs else new


def macs_of(region: ImageRegion, parts: int) -> tuple[int, int]:
    """Multiply-adds of the region's convolutions as they are, and in at most `parts` bands."""
    row: dict[Any, int] = {}  # multiply-adds of one row of a convolution
    for variable, call in region.calls:
        if operator(call) == "relax.nn.conv2d":
            kernel, shape = shape_of(call.args[1]), shape_of(call)
            row[variable] = math.prod(shape) // region.rows_of(variable) * math.prod(kernel[:3])

    def of_rows(needs: Mapping[Any, Need] | None) -> int:
        return sum(n * (needs[v].last - needs[v].first) for v, n in row.items()) if needs else 0

    macs_before = sum(count * region.rows_of(variable) for variable, count in row.items())
    return macs_before, sum(of_rows(rows_of(region, *band)) for band in bands(region.rows, parts))
