"""The view of a TFLite operator that Kiln's own converters receive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tflite
from tvm import ir, relax

from kiln.arrays import Array


@dataclass(frozen=True)
class Grid:
    """The numbers that a quantised type can represent: (stored - zero) * scale."""

    scale: float
    zero: int = 0
    dtype: str = "int16"


@dataclass(frozen=True)
class Compute:
    """A function of TE tensors that computes an operator; `operator`: its kind in the file, for op info."""

    function: Callable[..., Any]
    operator: str


class TfliteOperands:
    """One operator: its tensors as expressions, in real numbers where they are quantised, and its options.

    converter: the converter of the graph; op: the operator. Inputs and outputs are counted from 0.
    """

    def __init__(self, converter: Any, op: Any) -> None:
        self._converter = converter
        self.inputs = converter.get_input_tensors(op)
        self.outputs = converter.get_output_tensors(op)
        self._op = op
        self.kind = str(converter.get_op_code_str(op))

    def emit(self, expr: relax.Expr) -> Any:
        """`expr` bound to a variable, with its type known."""
        return self._converter.bb.normalize(expr)

    def bind(self, expr: relax.Expr) -> Any:
        """`expr` as a variable of its own, so that it is computed once however often it is used."""
        return self._converter.bb.emit(expr)

    def inside(self, places: Any, last: int) -> Any:
        """int64 `places` moved into 0..`last`, which may depend on the size of the file's inputs.

        The limit is a tensor: those of the operator clip are the same at all sizes.
        """
        not_before = self.bind(relax.op.maximum(places, const(0, "int64")))
        return self.bind(relax.op.minimum(not_before, const(last, "int64")))

    def entry(self, index: int, position: int) -> Any:
        """Number `position` of the list that is input `index`, as an int64 tensor of one element.

        Of a list that is put together the part alone is read.
        """
        values = self.raw(index)
        parts = self._parts(values)
        while parts:
            for values in parts:
                size = int(values.ty.shape[0])
                if position < size:
                    break
                position -= size
            parts = self._parts(values)
        if int(values.ty.shape[0]) > 1:
            values = self.bind(relax.op.take(values, const([position], "int64"), 0))
        return self.bind(relax.op.astype(values, "int64"))

    def _parts(self, values: Any) -> list[Any]:
        """The tensors that `values` is the concat of; empty for any other value."""
        made = self._converter.bb.lookup_binding(values) if isinstance(values, relax.Var) else values
        is_concat = isinstance(made, relax.Call) and getattr(made.op, "name", "") == "relax.concat"
        return list(made.args[0].fields) if is_concat else []

    def next_loop(self) -> int:
        """The number of a new loop of the graph."""
        self._converter.loops += 1
        return int(self._converter.loops)

    def has(self, index: int) -> bool:
        """Whether there is an input `index`."""
        return index < len(self.inputs) and int(self.inputs[index].tensor_idx) >= 0

    def raw(self, index: int) -> Any:
        """Input `index` as it is stored, as an expression."""
        return self.emit(self._converter.get_tensor_expr(self.inputs[index]))

    def real(self, index: int) -> Any:
        """Input `index` in real numbers: dequantised where it is quantised."""
        tensor = self.inputs[index]
        expr = self.raw(index)
        return expr if tensor.qnn_params is None else self.emit(self._converter.dequantize(expr, tensor))

    def dequantised(self, expr: relax.Expr, index: int) -> Any:
        """`expr`, made of elements of input `index` as stored, in real numbers."""
        return self._converter.dequantize(expr, self.inputs[index])

    def constant_real(self, index: int) -> Array:
        """The elements of input `index` in real numbers. Raises ValueError if they are not known."""
        widened = self._widened(index)
        if widened is not None:
            return widened
        values, params = self.constant_array(index), self.inputs[index].qnn_params
        if params is None:
            return values.astype(np.float32)
        scale, zero = (np.asarray(params[key].value.numpy()) for key in ("scale", "zero_point"))
        return _real(values, scale, zero, int(params["axis"]))

    def _widened(self, index: int) -> Array | None:
        """The elements that a DEQUANTIZE makes of a constant; None for another input."""
        expr = self.raw(index)
        if isinstance(expr, relax.Var):
            expr = self._converter.bb.lookup_binding(expr)
        if not isinstance(expr, relax.Call) or not all(isinstance(a, ir.GenericConst) for a in expr.args):
            return None
        name, values = str(getattr(expr.op, "name", "")), [a.value.numpy() for a in expr.args]
        if name == "relax.astype" and values[0].dtype == np.float16:
            return np.asarray(values[0].astype(np.float32))
        if name == "relax.dequantize":
            elements, scale, zero = values
            return _real(elements, scale, zero, int(expr.attrs.axis))
        return None

    def emit_te(self, compute: Any, *tensors: Any, name: str) -> Any:
        """The call of a function that a TE compute makes, of tensors of any size."""
        builder = self._converter.bb
        result = builder.emit_te(compute, *tensors, primfunc_name_hint=name)
        function = builder.lookup_binding(result).args[0].name_hint
        self._converter.computes[function] = Compute(compute, self.kind)
        return result

    def array(self, index: int) -> Array | None:
        """The elements of input `index` as stored; None if an operator makes it."""
        expr = self.raw(index)
        return expr.value.numpy() if isinstance(expr, ir.GenericConst) else None

    def constant_array(self, index: int) -> Array:
        """The elements of input `index`. Raises ValueError if they are not known before the model runs."""
        elements = self.array(index)
        if elements is None:
            raise ValueError(f"its input {index} is not known before the model runs")
        return elements

    def shape(self, index: int) -> list[int]:
        """The shape of input `index`."""
        return [int(size) for size in self.raw(index).ty.shape]

    def dtype(self, index: int) -> str:
        """The element type of input `index` as stored."""
        return str(self.raw(index).ty.dtype)

    def result_shape(self, index: int = 0) -> list[int]:
        """The shape of output `index`: in the file, and 2 for the parts of complex numbers."""
        tensor = self.outputs[index].tensor
        sizes = [int(size) for size in tensor.ShapeAsNumpy()] if tensor.ShapeLength() else []
        return [*sizes, 2] if tensor.Type() == tflite.TensorType.COMPLEX64 else sizes

    def is_complex(self, index: int) -> bool:
        """Whether input `index` has complex numbers: a last axis of their real and imaginary parts."""
        return bool(self.inputs[index].tensor.Type() == tflite.TensorType.COMPLEX64)

    def result_dtype(self, index: int = 0) -> str:
        """The element type of output `index` in the file."""
        return str(self._converter.get_tensor_type_str(self.outputs[index].tensor.Type()))

    def options(self, name: str) -> Any:
        """The options of the operator, a table of the schema; all defaults where the file has none."""
        options = getattr(tflite, name)()
        table = self._op.BuiltinOptions()
        if table is None:
            table = self._op.BuiltinOptions2()
        if table is None:
            return _Defaults()
        options.Init(table.Bytes, table.Pos)
        return options

    def graph(self, number: int) -> Any:
        """Graph `number` of the file, such as the function of a scatter. Raises ValueError without one."""
        model = self._converter.model
        if not 0 < number < model.SubgraphsLength():
            raise ValueError(f"its function is graph {number}, allowed: 1..{model.SubgraphsLength() - 1}")
        return model.Subgraphs(number)

    def name_of(self, op: Any) -> str:
        """The name of the kind of an operator of the file."""
        return str(self._converter.get_op_code_str(op))

    def store(self, expr: relax.Expr, activation: int = 0) -> Any:
        """`expr`, in real numbers, as output 0 is stored; `activation`: code of the fused activation."""
        result = self.outputs[0]
        if result.qnn_params is None:
            return self._converter.convert_fused_activation_function(self.emit(expr), activation)
        stored = self.emit(self._converter.quantize(self.emit(expr), result))
        scale, zero = (
            np.asarray(result.qnn_params[key].value.numpy()).item() for key in ("scale", "zero_point")
        )
        return self._converter.convert_qnn_fused_activation_function(
            stored, activation, scale, zero, self.result_dtype()
        )

    def grid(self, index: int) -> Grid | None:
        """The quantisation of input `index`, per tensor; None for real numbers."""
        return self._grid(self.inputs[index])

    def result_grid(self) -> Grid | None:
        """The quantisation of output 0, per tensor; None for real numbers."""
        return self._grid(self.outputs[0])

    def _grid(self, tensor: Any) -> Grid | None:
        if tensor.qnn_params is None:
            return None
        scale, zero = (
            np.asarray(tensor.qnn_params[key].value.numpy()).item() for key in ("scale", "zero_point")
        )
        return Grid(scale, zero, str(self._converter.get_tensor_type_str(tensor.tensor.Type())))

    def intermediates(self) -> list[Grid | None]:
        """The quantisation of the operator's intermediate tensors."""
        numbers = [int(self._op.Intermediates(index)) for index in range(self._op.IntermediatesLength())]
        return [
            None if tensor_index < 0 else self._grid(self._converter.get_tensors([tensor_index])[0])
            for tensor_index in numbers
        ]

    def stored_zero(self, index: int = 0) -> float:
        """The stored value of 0.0 in input `index`: its zero point where it is quantised, else 0."""
        params = self.inputs[index].qnn_params
        return 0 if params is None else float(np.asarray(params["zero_point"].value.numpy()).item())

    def check_same_quantisation(self, first: int, last: int) -> None:
        """Raise ValueError unless the inputs from `first` to `last` are quantised like output 0."""
        result = self.outputs[0]
        for tensor in self.inputs[first : last + 1]:
            both = tensor.qnn_params is not None and result.qnn_params is not None
            if both and not self._converter.has_same_qnn_params(tensor, result):
                raise ValueError("inputs and output have different quantisation")


class _Defaults:
    """Options of an operator without options."""

    def __getattr__(self, name: str) -> Any:
        return lambda: 0


def const(value: Any, dtype: str) -> Any:
    """A Relax constant of a type."""
    return relax.const(np.asarray(value, dtype), dtype)


def _real(values: Array, scale: Array, zero: Array, axis: int) -> Array:
    """Real numbers of quantised `values`; scales and zero points of one element, or along `axis`."""
    broadcast_shape = [-1 if dim == axis % values.ndim else 1 for dim in range(values.ndim)]
    if scale.ndim and scale.size > 1:
        scale, zero = scale.reshape(broadcast_shape), zero.reshape(broadcast_shape) if zero.size > 1 else zero
    real: Array = ((values.astype(np.float32) - zero) * scale).astype(np.float32)
    return real
