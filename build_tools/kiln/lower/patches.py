"""The first layers of a network in parts of the image, so that their feature maps never exist whole.

A *cut* is a feature map (NHWC) that operators which work row by row compute: convolutions, pools, padding,
concats and slices of channels or columns, elementwise operators, and functions of the front ends that work
row by row (`row_functions.py`). They begin at the inputs of the network, which each band transposes for
itself where the network does, or at tensors of other operators. The cut's rows are divided into *bands*. Each
band is computed from those rows of these inputs that it needs, one band after the other, and the bands are
joined. A signal, an image of one row, is divided along its columns instead: a "row" is then one of them.
Neighbouring bands share rows of the layers between, which are computed for each of them (Lin et al.,
"MCUNetV2", 2021).

Needs: one dataflow block, explicit padding of convolutions, static shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import relax

from kiln.callbacks import structural_map
from kiln.config.sizes import ceil_div
from kiln.extents import shape_of
from kiln.graph.bindings import integers, operands, operator
from kiln.lower.row_functions import Functions, with_rows
from kiln.lower.row_rules import COLUMNS, POOLS, ROWS, Need, RowRule, rule_of, transposed_input


@dataclass(frozen=True)
class ImageRegion:
    """The calls that compute a cut, in order: (variable, call) each. `inputs`: the variables that they read.

    `rules`: by variable, the RowRule of its call; it may have entries of other calls. `axis`: the one that is
    divided, ROWS or COLUMNS, or 0 where a batch is divided (`batch_parts.py`).
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


def regions(mod: tvm.IRModule) -> list[ImageRegion]:
    """The regions of `main` that can be divided, in the order of their cuts.

    Along rows first, then along the columns of images of one row.
    """
    functions, params = dict(mod.functions_items()), set(mod["main"].params)

    def rule(call: Any, axis: int) -> RowRule | None:
        if operator(call) == "relax.permute_dims" and call.args[0] in params:
            return transposed_input(call, axis)
        return rule_of(call, axis, functions)

    return [
        region for axis in (ROWS, COLUMNS) for region in regions_along(mod, axis, partial(rule, axis=axis))
    ]


def regions_along(
    mod: tvm.IRModule, axis: int, rule_of_call: Callable[[Any], RowRule | None]
) -> list[ImageRegion]:
    """The regions of `main` that can be divided along an axis, in the order of their cuts."""
    func = mod["main"]
    if len(func.body.blocks) != 1 or not isinstance(func.body.body, relax.Var):
        return []
    bindings = list(func.body.blocks[0].bindings)
    if not all(isinstance(binding, relax.VarBinding) for binding in bindings):
        return []
    readers: dict[Any, list[Any]] = {func.body.body: [None]}
    for binding in bindings:
        for item in operands(binding.value):
            readers.setdefault(item, []).append(binding.var)
    inside: dict[Any, set[Any]] = {}  # by variable: the calls that compute it, if all can be divided
    rules: dict[Any, RowRule] = {}
    result = []
    for binding in bindings:
        rule = rule_of_call(binding.value) if isinstance(binding.value, relax.Call) else None
        if rule is None:
            continue
        rules[binding.var] = rule
        # An operand that cannot be divided, such as a transposed input, is computed whole before the bands.
        inside[binding.var] = {binding.var}.union(*(inside.get(item, set()) for item in rule.operands))
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
    if name in POOLS and axis >= ROWS:
        sizes, padding = integers(attrs.pool_size), integers(attrs.padding)
        if attrs.ceil_mode:  # explicit padding in place of windows that end after the image
            last = (shape_of(call)[COLUMNS] - 1) * integers(attrs.strides)[1] + sizes[1]
            padding[3] = max(last - padding[1] - shape_of(call.args[0])[COLUMNS], 0)
        padding[axis - ROWS :: 2] = need.before, need.after
        return POOLS[name](
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
    builder: relax.BlockBuilder,
    region: ImageRegion,
    outside: Mapping[Any, Any],
    needs: Mapping[Any, Need],
    functions: Functions,
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
        rows, rule = needs[variable], region.rules[variable]
        need = rule.rows_read(rows.first, rows.last)
        assert need is not None
        args = [
            part(arg, need.first, need.last) if arg in rule.operands else outside.get(arg, arg)
            for arg in call.args
        ]
        if operator(call) == "relax.call_tir":
            read = [
                part(item, need.first, need.last) if item in rule.operands else outside.get(item, item)
                for item in call.args[1].fields
            ]
            held[variable] = builder.emit(_on_rows(builder, call, read, region, rows, functions)), rows.first
            continue
        if operator(call) == "relax.concat":
            args = [relax.Tuple([part(item, need.first, need.last) for item in call.args[0].fields])]
        if operator(call) == "relax.permute_dims" and not rule.operands:
            axis_of_input = integers(call.attrs.axes)[axis]
            args = [builder.emit(_slice(args[0], rows.first, rows.last, axis_of_input))]
        band = _with_padding(call, args, need, rows.last - rows.first, axis)
        held[variable] = builder.emit(band), rows.first
    return held[region.cut][0]


def _on_rows(
    builder: relax.BlockBuilder,
    call: Any,
    args: Sequence[Any],
    region: ImageRegion,
    rows: Need,
    functions: Functions,
) -> Any:
    """The call of a function of a front end on a band of its operands."""
    count, name = rows.last - rows.first, str(call.args[0].name_hint)
    function = with_rows(functions[call.args[0]], region.axis, count)
    new = builder.add_func(function, f"{name}_of_{count}_rows")
    shape = shape_of(call)
    shape[region.axis] = count
    return relax.call_tir(new, relax.Tuple(args), relax.TensorType(shape, str(call.ty.dtype)))


def _slice(value: Any, first: int, last: int, axis: int) -> Any:
    return relax.op.strided_slice(value, [axis], [first], [last])


def divided(mod: tvm.IRModule, region: ImageRegion, count: int) -> tvm.IRModule | None:
    """`mod` with a region of `main` in at most `count` bands; None where that is impossible."""
    func = mod["main"]
    needs = [rows_of(region, *band) for band in bands(region.rows, count)]
    if any(need is None for need in needs) or len(needs) < 2:
        return None
    in_region = {variable for variable, _ in region.calls}
    builder, functions = relax.BlockBuilder(), dict(mod.functions_items())
    variable_of: dict[Any, Any] = {}

    def renamed(expr: relax.Expr) -> Any:
        return structural_map(expr, ((relax.Var, lambda variable: variable_of.get(variable, variable)),))

    attrs = {name: value for name, value in (func.attrs or {}).items() if name != "global_symbol"}
    with builder.function("main", list(func.params), attrs=attrs):
        with builder.dataflow():
            for binding in func.body.blocks[0].bindings:
                if binding.var.same_as(region.cut):
                    joined = [
                        _band(builder, region, variable_of, need, functions)
                        for need in needs
                        if need is not None
                    ]
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
