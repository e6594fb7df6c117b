"""Resizing of TFLite graphs: to another fixed size, or to all sizes of a dynamic dimension.

A TFLite file marks the dynamic axes of its inputs, and holds all shapes for one size. LiteRT computes the
shapes for another size. For a dynamic dimension the graph is imported at three sizes: numbers that differ
between the first two are generalised to a * size + b, and the third import verifies the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm_ffi import structural_equal

from kiln.config.dims import Segment
from kiln.config.sizes import ceil_div, evaluate
from kiln.errors import KilnError
from kiln.extents import Extent
from kiln.frontend.symbols import Symbols, int64_of
from kiln.frontend.tflite.operands import Compute
from kiln.frontend.tflite.size_constants import SizeConstant, constants_of, generalised
from kiln.frontend.tflite.window_sizes import period_of_windows

# Least size of the three imports, and offsets to it. Size 1 is left out, as broadcasting treats it specially.
_LEAST, _OFFSETS = 2, (0, 1, 3)
_MOST_COMPARED = 64  # of the sizes of a period
_MULTIPLE = "with windows of a stride, give the dimension a 'multiple' that the strides divide"


class OperatorOfSizeError(KilnError):
    """The functions that `operator` makes differ from size to size in more than sizes."""

    def __init__(self, operator: str, message: str) -> None:
        super().__init__(message)
        self.operator = operator


def for_all_sizes(
    convert: Callable[[int], tuple[tvm.IRModule, Mapping[str, Compute]]],
    dim: str,
    segment: Segment,
    symbols: Symbols,
    content: bytes,
) -> tvm.IRModule:
    """One module for all sizes of dimension `dim` of the file `content`.

    `convert` imports the graph at a fixed size; it returns the module, and by name the TE computes of the
    module's functions. Raises KilnError if sizes are not linear in `dim`, which grows by its `multiple`, or
    if the graphs at different sizes differ in more than sizes; OperatorOfSizeError if the functions of an
    operator do.
    """
    least = max(_LEAST, segment.min // segment.multiple)
    sizes = [(least + step) * segment.multiple for step in _OFFSETS]
    (first, computes), (second, _), (third, _) = (convert(size) for size in sizes)
    generalised = _GeneralisedSizes(symbols.parts(dim), least, symbols, computes)
    try:
        module = generalised.generalise(first["main"], second)
        generalised.confirm(module["main"], third, {dim: sizes[2]})
        for size in _others(sizes, segment, period_of_windows(content)):
            generalised.confirm(module["main"], convert(size)[0], {dim: size})
    except ValueError as error:
        raise KilnError(f"cannot import the TFLite graph for all sizes of '{dim}': {error}") from error
    return module


def _others(sizes: Sequence[int], segment: Segment, period: int) -> list[int]:
    """The sizes to compare besides `sizes`: the greatest, and all of the windows' period if it is not 1."""
    compared = {segment.max} if sizes[-1] < segment.max else set()
    if period > 1:
        least = ceil_div(max(segment.min, 1), segment.multiple) * segment.multiple
        kinds = min(period // math.gcd(period, segment.multiple), _MOST_COMPARED)
        last = min(least + kinds * segment.multiple, segment.max)
        compared |= set(range(least, last + 1, segment.multiple)) - set(sizes)
    return sorted(compared)


class _GeneralisedSizes:
    """Merges two versions of a function, imported at two sizes, into one with a symbolic size.

    Numbers that differ between the versions become linear expressions of the dimension's size in multiples.
    """

    def __init__(self, parts: Any, first: int, symbols: Symbols, computes: Mapping[str, Compute]) -> None:
        """The versions are those at `first` and `first` + 1 `parts`, each a `multiple` of the dimension.

        `computes`: by name, the TE computes of the functions of the version at the first size.
        """
        self._parts, self._first, self._symbols, self._computes = parts, first, symbols, computes
        self._merged: dict[Any, Any] = {}
        self._constants: dict[int, SizeConstant] = {}  # by place in the order of constants
        self._emitted: dict[Any, Any] = {}  # constant of the first version → tensor for all sizes
        self._constant_bindings = 0  # at the beginning of the function
        self._builder = relax.BlockBuilder()
        self._second = tvm.IRModule()

    def generalise(self, first: Any, module: tvm.IRModule) -> tvm.IRModule:
        """The module for all sizes, of a function and of the module at the second size.

        Raises ValueError if the versions differ in more than sizes.
        """
        builder, second = self._builder, module["main"]
        self._second = module
        parameters = []
        for a, b in zip(first.params, second.params, strict=True):
            shape = [self._number(x, y) for x, y in zip(a.ty.shape, b.ty.shape, strict=True)]
            self._merged[a] = relax.Var(a.name, relax.TensorType(shape, a.ty.dtype))
            parameters.append(self._merged[a])
        divided = self._symbols.divided()
        if divided:
            parameters.append(relax.Var("kiln_sizes", relax.ShapeType(divided)))
        pairs = list(zip(_bindings(first), _bindings(second), strict=False))
        if len(_bindings(first)) != len(_bindings(second)):
            raise ValueError("it has other operators at another size")
        with builder.function("main", parameters):
            with builder.dataflow():
                self._emit_constants(first, second)
                for a, b in pairs:
                    self._merged[a.var] = builder.emit(self._expression(a.value, b.value))
                result = builder.emit_output(self._expression(first.body.body, second.body.body))
            builder.emit_func_output(result)
        merged = builder.get()
        if first.attrs:
            merged["main"] = merged["main"].with_attrs(first.attrs)
        return merged

    def _emit_constants(self, first: Any, second: Any) -> None:
        """Emit the constants that depend on the size. Raises ValueError for one that is not linear in it."""
        for place, (a, b) in enumerate(zip(constants_of(first), constants_of(second), strict=False)):
            values = a.value.numpy(), b.value.numpy()
            if not np.array_equal(*values):
                self._constants[place] = generalised(*values, self._number)
                self._emitted[a] = self._constants[place].emit(self._emit)

    def _emit(self, expression: Any) -> Any:
        self._constant_bindings += 1
        return self._builder.emit(expression)

    def _number(self, a: Any, b: Any) -> Extent:
        """The extent that is `a` at the first size and `b` at the next multiple. Raises ValueError."""
        if not isinstance(a, (int, tirx.IntImm)) or not isinstance(b, (int, tirx.IntImm)):
            raise ValueError(f"{a} is not a number")
        low, high = int(a), int(b)
        step = high - low
        if step == 0:
            return low
        return self._symbols.simplify(self._parts * step + (low - step * self._first))

    def _expression(self, a: Any, b: Any) -> Any:
        """The merged expression of `a` and `b`, from the two versions. Raises ValueError if they differ."""
        if isinstance(a, relax.Var):
            return self._merged[a]
        if type(a) is not type(b):
            raise ValueError(f"{type(a).__name__} in one, {type(b).__name__} in the other")
        if isinstance(a, relax.Tuple):
            return relax.Tuple([self._expression(x, y) for x, y in zip(a.fields, b.fields, strict=True)])
        if isinstance(a, relax.TupleGetItem):
            return relax.TupleGetItem(self._expression(a.tuple_value, b.tuple_value), a.index)
        if isinstance(a, relax.ShapeExpr):
            return relax.ShapeExpr([self._number(x, y) for x, y in zip(a.values, b.values, strict=True)])
        if isinstance(a, tirx.IntImm):
            return a if int(a) == int(b) else relax.prim_value(self._number(a, b))
        if isinstance(a, ir.GenericConst):
            if a not in self._emitted and not np.array_equal(a.value.numpy(), b.value.numpy()):
                raise ValueError("a constant depends on the size")
            return self._emitted.get(a, a)
        if isinstance(a, relax.Call):
            return self._call(a, b)
        if not structural_equal(a, b):
            raise ValueError(f"{a} in one, {b} in the other")
        return a

    def _call(self, a: Any, b: Any) -> Any:
        name = str(a.op.name if isinstance(a.op, ir.Op) else a.op)
        if _is_function(a) and _is_function(b):
            return self._function(a, b)
        if not isinstance(a.op, ir.Op) or any(isinstance(item, ir.GlobalVar) for item in a.args):
            raise ValueError(f"{name} is a function made for one size")
        if not a.op.same_as(b.op) or not structural_equal(a.attrs, b.attrs):
            way = f"; {_MULTIPLE}" if hasattr(a.attrs, "strides") else ""
            raise ValueError(f"{name} has other attributes at another size{way}")
        if name == "relax.strided_slice" and len(a.args) == 5:
            numbers = [int(number) for one in (a, b) for column in one.args[2:] for number in column.fields]
            if min(numbers, default=0) >= 0:
                return self._cut(a, b)
        if name == "relax.image.resize2d" and a.attrs.method == "nearest_neighbor":
            # TVM 0.27 divides the sizes of both images as numbers.
            grows = any(
                int(x) != int(y)
                for x, y in list(zip(a.args[0].ty.shape, b.args[0].ty.shape, strict=True))[1:3]
            )
            if grows and a.attrs.coordinate_transformation_mode == "asymmetric":
                raise ValueError("nearest neighbours of an image of a dynamic size: give its axes one size")
        arguments = [self._expression(x, y) for x, y in zip(a.args, b.args, strict=True)]
        if name == "relax.squeeze":
            self._check_squeeze(arguments[0].ty.shape, a.attrs.axis)
        types = [self._type(x, y) for x, y in zip(a.ty_args, b.ty_args, strict=True)]
        return relax.Call(a.op, arguments, a.attrs, types)

    def _type(self, a: Any, b: Any) -> Any:
        """The type of a result, as operators that Kiln adds to Relax are given it."""
        if isinstance(a, relax.TupleType):
            return relax.TupleType([self._type(x, y) for x, y in zip(a.fields, b.fields, strict=True)])
        if not isinstance(a, relax.TensorType) or a.shape is None:
            return a
        return relax.TensorType(self._expression(a.shape, b.shape), a.dtype)

    def _check_squeeze(self, shape: Any, axes: Any) -> None:
        """Raise ValueError for an axis that is left out and has other than one element at some sizes."""
        for axis in axes or ():
            if not self._symbols.equal(shape[int(axis)], 1):
                raise ValueError(
                    f"the element that it takes along axis {int(axis)} does not exist at the least size, "
                    "which has to be greater"
                )

    def _function(self, a: Any, b: Any) -> Any:
        """The call of the function that the first version's TE compute makes of the merged tensors."""
        name = a.args[0].name_hint
        self._check_compute(name, b, self._second)
        tensors = [self._expression(x, y) for x, y in zip(a.args[1].fields, b.args[1].fields, strict=True)]
        return self._builder.call_te(self._computes[name].function, *tensors, primfunc_name_hint=name)

    def _check_compute(self, name: str, call: relax.Call, module: tvm.IRModule) -> None:
        """Raise OperatorOfSizeError unless compute `name` makes the function that `call` calls in `module`.

        Raises ValueError where no compute of this name is known.
        """
        if name not in self._computes:
            raise ValueError(f"{name} is a function made for one size")
        compute, builder = self._computes[name], relax.BlockBuilder()
        parameters = [relax.Var(f"p{number}", tensor.ty) for number, tensor in enumerate(call.args[1].fields)]
        with builder.function("main", parameters):
            result = builder.emit_te(compute.function, *parameters, primfunc_name_hint=name)
            made = builder.lookup_binding(result).args[0]
            builder.emit_func_output(result)
        if not structural_equal(builder.get()[made], module[call.args[0]], map_free_vars=True):
            raise OperatorOfSizeError(
                compute.operator, f"{compute.operator} is computed in another way at another size"
            )

    def confirm(self, function: Any, module: tvm.IRModule, sizes: dict[str, int]) -> None:
        """Raise ValueError, or OperatorOfSizeError, unless `function` is that of `module` at `sizes`.

        Compared are the shapes of tensors, the begins of slices, and functions that TE computes make.
        """
        _confirm(_bindings(function)[self._constant_bindings :], module["main"], sizes, self._symbols)
        theirs_in_order = constants_of(module["main"])
        for place, ours_for_all in self._constants.items():
            at_size = ours_for_all.at(lambda size: evaluate(self._symbols.size(size), sizes))
            if not np.array_equal(at_size, theirs_in_order[place].value.numpy()):
                raise ValueError("a constant depends on the size, and not in proportion to it")
        ours = [binding.value for binding in _bindings(function) if _is_function(binding.value)]
        theirs = [binding.value for binding in _bindings(module["main"]) if _is_function(binding.value)]
        if len(ours) != len(theirs):
            raise ValueError("it has other functions at another size")
        for call, expected in zip(ours, theirs, strict=True):
            self._check_compute(call.args[0].name_hint, expected, module)

    def _cut(self, a: Any, b: Any) -> Any:
        """The slice with both limits moved inside the axis; its step is positive.

        TVM then need not prove that the slice's size is not negative.
        """
        data = self._expression(a.args[0], b.args[0])
        axes = [int(axis) for axis in a.args[1].fields]
        columns = [
            [*zip(x.fields, y.fields, strict=True)] for x, y in zip(a.args[2:], b.args[2:], strict=True)
        ]
        places: list[list[Any]] = [[], [], []]
        for number, axis in enumerate(axes):
            size = data.ty.shape[axis]
            begin, end, step = (int64_of(self._number(*column[number])) for column in columns)
            begin = tirx.max(int64_of(0), tirx.min(begin, size))
            end = tirx.max(begin, tirx.min(end, size))
            for column, place in zip(places, (begin, end, step), strict=True):
                column.append(relax.prim_value(int64_of(self._symbols.simplify(place))))
        return relax.op.strided_slice(data, axes, *places, assume_inbound=True)


def _is_function(expr: relax.Expr) -> bool:
    """Whether an expression calls a function of the module with tensors alone."""
    operator = expr.op.name if isinstance(expr, relax.Call) and isinstance(expr.op, ir.Op) else ""
    return operator == "relax.call_tir" and len(expr.args) == 2


def _bindings(function: Any) -> list[Any]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def _confirm(bindings: Sequence[Any], third: Any, sizes: dict[str, int], symbols: Symbols) -> None:
    """Raise ValueError unless tensors of `bindings` have the shapes, and slices the begins, of `third`."""
    for binding, expected in zip(bindings, _bindings(third), strict=False):
        if not isinstance(expected.var.ty, relax.TensorType):
            continue
        actual = [evaluate(symbols.size(size), sizes) for size in binding.var.ty.shape or ()]
        shape_expected = [int(size) for size in expected.var.ty.shape]
        if actual != shape_expected:
            [(dim, size)] = sizes.items()
            raise ValueError(
                f"a tensor has the shape {shape_expected} at {dim} = {size}, and {actual} if its sizes grow "
                f"in proportion; {_MULTIPLE}"
            )
        if (
            isinstance(expected.value, relax.Call)
            and getattr(expected.value.op, "name", "") == "relax.strided_slice"
        ):
            _confirm_slice(binding.value, expected.value, sizes, symbols)


def _confirm_slice(ours: Any, expected: Any, sizes: dict[str, int], symbols: Symbols) -> None:
    """Raise ValueError unless a slice begins where `expected` does: steps hide it in the shape."""
    for axis, number, place in zip(
        expected.args[1].fields, expected.args[2].fields, ours.args[2].fields, strict=True
    ):
        actual = evaluate(symbols.size(place), sizes)
        begin = min(int(number), int(expected.args[0].ty.shape[int(axis)]))
        if begin >= 0 and actual != begin:
            raise ValueError(f"a slice along axis {int(axis)} begins at {actual}, it should at {begin}")
