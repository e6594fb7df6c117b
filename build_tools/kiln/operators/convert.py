"""One node of a user's operator as a Relax expression: types by its shape rule, and its body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import ir, relax, tirx

from kiln.extents import extent
from kiln.operators.c_body import own_call
from kiln.operators.declaration import OwnQuant, OwnTensor
from kiln.operators.registry import LoadedOperator, check_inputs, typed_attributes

# Attribute of a function in TIR: the name of the operator whose body it is.
NAME_ATTRIBUTE = "kiln.operator"

_DTYPES = frozenset(
    [
        "bool",
        "float32",
        "float64",
        "float16",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
    ]
)


class OwnNode:
    """Converts one node.

    simplify: simplifies a size of the importer's variables, to an int where it is one. greatest: the greatest
    value of a size; None where it cannot be computed.
    """

    def __init__(
        self,
        loaded: LoadedOperator,
        builder: Any,
        simplify: Callable[[Any], Any],
        greatest: Callable[[Any], int | None],
    ) -> None:
        self._loaded, self._operator, self._builder = loaded, loaded.operator, builder
        self._simplify, self._greatest = simplify, greatest

    def convert(
        self,
        inputs: Sequence[Any],
        attributes: Mapping[str, Any],
        outputs: int,
        quants: Sequence[OwnQuant | None] = (),
        declared: Sequence[OwnTensor] | None = None,
    ) -> list[Any]:
        """The results as Relax expressions, one for each of `outputs`.

        inputs: Relax expressions, None for an omitted one. quants: of the inputs. declared: the outputs as
        the file declares them. Raises KilnError, naming the user's file, if inputs, attributes or results do
        not have the declared form.
        """
        loaded = self._loaded
        check_inputs(loaded, inputs)
        attributes_of_node = typed_attributes(loaded, attributes)
        missing = max(0, (loaded.most_inputs or 0) - len(inputs))
        inputs = [*inputs, *[None] * missing]
        tensors = [
            None if expr is None else self._seen(expr, quants[index] if index < len(quants) else None)
            for index, expr in enumerate(inputs)
        ]
        results = self._results(tensors, attributes_of_node, outputs, declared)
        operator = self._operator
        if operator.relax is not None:
            return self._relax(inputs, results, attributes_of_node)
        if operator.tir is not None:
            return self._tir(inputs, tensors, results, attributes_of_node)
        return self._c(inputs, tensors, results, attributes_of_node)

    def _seen(self, expr: Any, quant: OwnQuant | None) -> OwnTensor:
        """The input as the OwnTensor that is passed to the user's functions."""
        value = expr.value.numpy() if isinstance(expr, ir.GenericConst) else None
        return OwnTensor(
            tuple(self._simplify(size) for size in expr.ty.shape), str(expr.ty.dtype), value, quant
        )

    def _results(
        self, tensors: Sequence[OwnTensor | None], attributes: Mapping[str, Any], outputs: int,
        declared: Sequence[OwnTensor] | None,
    ) -> list[OwnTensor]:  # fmt: skip
        """The outputs by the shape rule.

        Raises KilnError unless the rule returns one valid type for each output.
        """
        loaded = self._loaded
        types = loaded.call("result, its shape rule,", self._operator.result, *tensors, **attributes)
        results = list(types) if isinstance(types, (list, tuple)) else [types]
        for index, result in enumerate(results):
            if not isinstance(result, OwnTensor):
                raise loaded.error(f"result returns {result!r}, allowed: OwnTensor, or a tuple of them")
            if str(result.dtype) not in _DTYPES:
                dtypes = ", ".join(sorted(_DTYPES))
                raise loaded.error(f"result: output {index} is of type '{result.dtype}', allowed: {dtypes}")
            if not isinstance(result.shape, (list, tuple)):
                raise loaded.error(f"result: output {index} has shape {result.shape!r}, allowed: a tuple")
            shape = tuple(self._size(size, index, axis) for axis, size in enumerate(result.shape))
            results[index] = OwnTensor(shape, str(result.dtype), None, result.quant)
        if len(results) < outputs:
            raise loaded.error(f"result returns {len(results)} outputs, the model uses {outputs}")
        for index, output in enumerate(declared or ()):
            ours = results[index]
            if (ours.shape, ours.dtype) != (output.shape, output.dtype):
                raise loaded.error(
                    f"result: output {index} is {ours.dtype}{list(ours.shape)}, the model declares "
                    f"{output.dtype}{list(output.shape)}"
                )
            results[index] = OwnTensor(ours.shape, ours.dtype, None, output.quant)
        return results

    def _size(self, size: Any, index: int, axis: int) -> Any:
        """A size of an output, simplified. Raises KilnError for a value that is not a size."""
        try:
            simplified = self._simplify(size if isinstance(size, ir.Expr) else _integer(size))
        except Exception:  # anything may be in a user's shape
            simplified = None
        greatest = None if simplified is None else self._greatest(simplified)
        if greatest is None:
            raise self._loaded.error(
                f"result: output {index} has a size {size!r} at axis {axis}, allowed: integers, and sizes of "
                "the inputs combined by +, -, *, // and %"
            )
        if (isinstance(simplified, int) and simplified < 1) or greatest < 1:
            raise self._loaded.error(
                f"result: output {index} has a size {simplified} at axis {axis}, least: 1"
            )
        return simplified

    def _relax(
        self, inputs: Sequence[Any], results: Sequence[OwnTensor], attributes: Mapping[str, Any]
    ) -> list[Any]:
        """The results of a body in Relax. Raises KilnError for other types than the shape rule's."""
        loaded = self._loaded
        body = loaded.call("relax", self._operator.relax, *inputs, **attributes)  # type: ignore[arg-type]
        if isinstance(body, relax.Expr) and not isinstance(body, relax.Tuple):
            body = [body]
        parts = list(body.fields) if isinstance(body, relax.Tuple) else list(body)
        expressions = [loaded.call("relax", self._builder.emit, part) for part in parts]
        if len(expressions) == 1 and isinstance(expressions[0].ty, relax.TupleType):
            count = len(expressions[0].ty.fields)
            expressions = [self._builder.emit(relax.TupleGetItem(expressions[0], i)) for i in range(count)]
        if len(expressions) != len(results):
            raise loaded.error(f"relax returns {len(expressions)} outputs, result returns {len(results)}")
        for index, (expression, result) in enumerate(zip(expressions, results, strict=True)):
            tensor = self._seen(expression, None)
            if tensor.dtype != result.dtype or not self._same(tensor.shape, result.shape):
                raise loaded.error(
                    f"relax: output {index} is {tensor.dtype}{list(tensor.shape)}, its declared result is "
                    f"{result.dtype}{list(result.shape)}"
                )
        return expressions

    def _same(self, ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
        if len(ours) != len(theirs):
            return False
        return all(self._simplify(a - b) == 0 for a, b in zip(ours, theirs, strict=True))

    def _tir(
        self, inputs: Sequence[Any], tensors: Sequence[OwnTensor | None], results: Sequence[OwnTensor],
        attributes: Mapping[str, Any],
    ) -> list[Any]:  # fmt: skip
        """The results of a body in TIR. Raises KilnError for a function with other parameters."""
        loaded = self._loaded
        func = loaded.call("tir", self._operator.tir, *tensors, **attributes)  # type: ignore[arg-type]
        if not isinstance(func, tirx.PrimFunc):
            raise loaded.error(f"tir returns {type(func).__name__}, allowed: a PrimFunc of TIR")
        passed = [expr for expr in inputs if expr is not None]
        expected = [tensor for tensor in tensors if tensor is not None] + list(results)
        if len(func.params) != len(expected) or not all(map(tirx.is_buffer_var, func.params)):
            raise loaded.error(
                f"tir: the function has {len(func.params)} parameters, expected: a buffer for each of "
                f"{len(passed)} inputs and {len(results)} outputs"
            )
        for index, (param, tensor) in enumerate(zip(func.params, expected, strict=True)):
            shape = [extent(size) for size in param.shape]
            fixed = zip(shape, tensor.shape, strict=False)
            differ = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in fixed)
            if str(param.dtype) != tensor.dtype or len(shape) != len(tensor.shape) or differ:
                raise loaded.error(
                    f"tir: parameter {index} is {param.dtype}{shape}, expected: "
                    f"{tensor.dtype}{list(tensor.shape)}"
                )
        func = func.without_attr("global_symbol").with_attr(NAME_ATTRIBUTE, self._operator.name)
        variable = self._builder.add_func(func, f"own_{_stem(loaded)}")
        types = [relax.TensorType(_shape(result), result.dtype) for result in results]
        body = relax.call_tir(variable, relax.Tuple(passed), types if len(types) > 1 else types[0])
        return self._parts(body, len(types))

    def _c(
        self, inputs: Sequence[Any], tensors: Sequence[OwnTensor | None], results: Sequence[OwnTensor],
        attributes: Mapping[str, Any],
    ) -> list[Any]:  # fmt: skip
        """The results of a body in C: a call of an extern function, which `lower` makes a step."""
        loaded, operator = self._loaded, self._operator
        values = loaded.call("arguments", operator.arguments, *tensors, *results, **attributes)  # type: ignore[arg-type]
        if not isinstance(values, (list, tuple)):
            raise loaded.error(f"arguments returns {values!r}, allowed: a list, [] for none")
        values = [self._simplify(v) if isinstance(v, ir.Expr) else v for v in values]
        dynamic_sizes = [value for value in values if isinstance(value, ir.Expr)]
        for size in dynamic_sizes:
            if self._greatest(size) is None:
                raise loaded.error(f"arguments returns {size}, allowed: sizes combined by +, -, *, // and %")
        scratch = operator.scratch
        if callable(scratch):
            scratch = loaded.call("scratch", scratch, *tensors, *results, **attributes)
        most = self._greatest(scratch) if isinstance(scratch, ir.Expr) else scratch
        if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most < 1 << 31:
            raise loaded.error(f"scratch is {scratch!r}, allowed: a number of bytes, 0 and more")
        constants = [None if isinstance(value, ir.Expr) else value for value in values]
        call = own_call(loaded, tensors, results, constants, most)
        passed = [expr for expr in inputs if expr is not None]
        if dynamic_sizes:
            passed.append(relax.ShapeExpr(dynamic_sizes))
        types = [relax.TensorType(_shape(result), result.dtype) for result in results]
        body = relax.call_dps_packed(call.text(), relax.Tuple(passed), types if len(types) > 1 else types[0])
        return self._parts(body, len(types))

    def _parts(self, made: Any, count: int) -> list[Any]:
        """The results of a call that returns one tensor, or a tuple of `count`."""
        returned = self._builder.emit(made)
        if count == 1:
            return [returned]
        return [self._builder.emit(relax.TupleGetItem(returned, index)) for index in range(count)]


def _integer(value: Any) -> int:
    """An integer of any class. Raises TypeError for a value that is not an integer."""
    if isinstance(value, bool) or value != int(value):
        raise TypeError(f"{value!r} is not an integer")
    return int(value)


def _stem(loaded: LoadedOperator) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in loaded.operator.name.lower())


def _shape(result: OwnTensor) -> Any:
    return relax.ShapeExpr([tirx.IntImm("int64", n) if isinstance(n, int) else n for n in result.shape])
