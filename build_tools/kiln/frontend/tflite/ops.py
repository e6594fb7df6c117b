"""TVM 0.27's TFLite converter, with corrections of operators that it converts wrongly or not at all.

Quantised operators are converted to dequantize → float operator → quantize; a later pass converts them to
integer arithmetic. Arithmetic of the emitted operators, compared with TFLite:

- relax.dequantize: scale * (q - zero_point) in float32, as in TFLite.
- relax.quantize: clip(round_half_even(x / scale) + zero_point), as in LiteRT's optimised kernels (XNNPACK);
  TFLite's portable kernels round half away from zero. Results differ only if x / scale is exactly halfway
  between two integers.
- Accumulators of CONV_2D, FULLY_CONNECTED, ADD, …: scaled in float32 and rounded once, as in XNNPACK up to
  the order of the float operations; the portable kernels scale in 31-bit fixed point and round twice.
- Operators of int16, and DIV, L2_NORMALIZATION, LOG_SOFTMAX and PRELU of 8 bits: those of the portable
  kernels, see `int16_products` and INTEGER_CONVERTERS.
- AVERAGE_POOL_2D: exact, see `convert_pool2d`.
- SOFTMAX, LOGISTIC and TANH of 8 bits: float here, fixed-point tables in TFLite; results differ by one
  level, rarely two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tflite
from tvm import ir, relax
from tvm.relax.frontend.tflite import tflite_frontend

from kiln.errors import KilnError
from kiln.frontend.importer import operators
from kiln.frontend.symbols import Symbols
from kiln.frontend.tflite.control import CHOOSE, LOOP_BEGIN, LOOP_END, OWN
from kiln.frontend.tflite.converter_tables import CONVERTERS, INTEGER_CONVERTERS
from kiln.frontend.tflite.counted_ops import CountedConverter
from kiln.frontend.tflite.fixed_point import range_of_activation
from kiln.frontend.tflite.operands import Compute, TfliteOperands
from kiln.frontend.tflite.operator_sets import HYBRID, MOVES, QUANTISED, refused_input
from kiln.frontend.tflite.own_nodes import PREFIX, custom_name, shown_reason, shown_refusal
from kiln.frontend.tflite.plan_loops import PlanLoops
from kiln.frontend.tflite.state_tensors import STATES
from kiln.operators.registry import WAY

_NODES_NAMED = 3  # operators recorded per Relax operator, for errors


class ShapeError(KilnError):
    """A result has another shape than the file gives for it, which LiteRT does not read."""


class Converter(CountedConverter):
    """Converts one TFLite graph; `path` names the file in errors. `symbols`: see `CountedConverter`.

    nodes: receives, by Relax operator, the first operators of the file that were converted to it.
    computes: receives, by name, the TE computes of the functions that were made.
    in_floats: quantised operators that are not computed in the integers of LiteRT's kernels.
    """

    _SUPPORTED_QUANTIZED_OPS = (
        tflite_frontend.OperatorConverter._SUPPORTED_QUANTIZED_OPS | MOVES | QUANTISED | {*STATES, *OWN}
    )

    def __init__(
        self,
        path: Path,
        symbols: Symbols | None,
        nodes: dict[str, list[str]],
        computes: dict[str, Compute],
        in_floats: Collection[str],
        *arguments: Any,
    ) -> None:
        super().__init__(*arguments)
        self._nodes, self.computes = nodes, computes
        self._seen: set[Any] = set()  # calls that are already in `nodes`
        self._path, self.symbols = path, symbols
        self.loops = 0  # loops of the plan so far
        self.convert_map["WHERE"] = self.convert_where
        loops = PlanLoops(self)
        self.convert_map |= {LOOP_BEGIN: loops.begin, LOOP_END: loops.end, CHOOSE: loops.choose}
        integers = {name: call for name, call in INTEGER_CONVERTERS.items() if name not in in_floats}
        for name, converter in chain(CONVERTERS.items(), integers.items()):
            self.convert_map[name] = self._with_own(converter, self.convert_map.get(name))
        for name in self.convert_map:
            self.convert_map[name] = self._named(name, self.convert_map[name])

    def get_op_code_str(self, op: Any) -> str:
        """The name of an operator in the table of converters."""
        name = custom_name(self.model, op)
        return name if name in OWN else super().get_op_code_str(op)

    def _with_own(self, converter: Callable[[TfliteOperands], Any], otherwise: Any) -> Any:
        """A converter by `converter`, or, where that returns None, by `otherwise`."""

        def call(op: Any) -> Any:
            result = converter(TfliteOperands(self, op))
            return otherwise(op=op) if result is None else result

        return call

    def dequantize(self, expr: relax.Expr, tensor: Any) -> Any:
        """A stored tensor in real numbers; biases of 64 bits, which relax.dequantize does not accept, too."""
        if not isinstance(expr, ir.GenericConst) or str(expr.value.dtype) != "int64":
            return super().dequantize(expr, tensor)
        scale = np.asarray(tensor.qnn_params["scale"].value.numpy(), np.float64)
        return relax.const((expr.value.numpy() * scale).astype(np.float32), "float32")

    def _named(self, name: str, convert: Any) -> Any:
        """Wrap converter `convert` so that every exception becomes a KilnError naming operator and output."""

        def call(op: Any) -> Any:
            try:
                self.check_counted(name, op)
                self._check_inputs(name, op)
                if name in MOVES:
                    self._check_same_quantisation(op)
                if self.symbols is None:
                    return self._checked(op, convert(op=op))
                with self.symbols.missing.inside(f"{name} (output {self._output_name(op)})"):
                    return self._checked(op, convert(op=op))
            except ShapeError:
                raise
            except KilnError as error:
                raise KilnError(f"{self._path}: {error} (output {self._output_name(op)})") from error
            except Exception as error:  # converters raise every kind of exception
                raise KilnError(
                    f"{self._path}: operators that cannot be imported: {name} (output "
                    f"{self._output_name(op)}): {shown_reason(error)}"
                ) from error

        return call

    def _checked(self, op: Any, expression: Any) -> Any:
        """The results of an operator.

        Raises ShapeError for sizes other than those in the file, ValueError for other types.
        """
        if expression is None:
            return None
        for name in operators(expression, self._seen):
            origins = self._nodes.setdefault(name, [])
            origin = f"{self.get_op_code_str(op)} (output {self._output_name(op)})"
            if len(origins) < _NODES_NAMED and origin not in origins:
                origins.append(origin)
        expression = self.bb.normalize(expression)
        results = self.get_output_tensors(op)
        fields = list(expression.ty.fields) if isinstance(expression.ty, relax.TupleType) else [expression.ty]
        for index, (result, field) in enumerate(zip(results, fields, strict=False)):
            shape = getattr(field, "shape", None)
            if not isinstance(shape, relax.ShapeExpr) or result.tensor_idx < 0:
                continue
            file_sizes = (
                [int(size) for size in self.get_tensor_shape(result)] if result.tensor.ShapeLength() else []
            )
            fixed = all(hasattr(size, "value") for size in shape)
            ours = [int(size) for size in shape] if fixed else file_sizes
            if result.tensor.Type() == tflite.TensorType.COMPLEX64:
                ours = ours[:-1] if fixed and ours[-1:] == [2] else ours
            if file_sizes and min(file_sizes) > 0 and 0 not in ours and ours != file_sizes:
                raise ShapeError(
                    f"{self._path}: operators that cannot be imported: {self.get_op_code_str(op)} (output "
                    f"{self._output_name(op)}): its output {index} has the shape {ours}, in the file it is "
                    f"{file_sizes}"
                )
            dtype = self.get_tensor_type_str(result.tensor.Type())
            if dtype in ("int8", "uint8", "int16", "int32", "int64", "float32", "bool") and dtype != str(
                field.dtype
            ):
                raise ValueError(f"its output {index} is of type {field.dtype}, in the file it is {dtype}")
        return expression

    def _output_name(self, op: Any) -> str:
        outputs = op.OutputsAsNumpy()
        return (
            str(tflite_frontend.get_tensor_name(self.subgraph, outputs[0])) if op.OutputsLength() else "none"
        )

    def _check_inputs(self, name: str, op: Any) -> None:
        """Raise ValueError for an input of a type that the operator does not compute with."""
        for tensor in self.get_input_tensors(op):
            reason = "" if tensor.tensor_idx < 0 else refused_input(name, tensor)
            if reason:
                raise ValueError(f"its input '{self._name(tensor)}' {reason}")

    def _check_same_quantisation(self, op: Any) -> None:
        """Raise ValueError if an output and the first input are quantised differently."""
        source = self.get_input_tensors(op)[0]
        for result in self.get_output_tensors(op):
            if source.qnn_params and result.qnn_params and not self.has_same_qnn_params(source, result):
                raise ValueError("input and output have different quantisation")

    def check_unsupported_ops(self) -> None:
        """Raise KilnError naming every operator that cannot be imported, with the output of its first use."""
        refused: dict[str, str] = {}
        for index in range(self.subgraph.OperatorsLength()):
            op = self.subgraph.Operators(index)
            try:
                name = self.get_op_code_str(op)
            except NotImplementedError:
                name = shown_refusal(self.model, op)
            if name not in self.convert_map:
                refused.setdefault(name, self._output_name(op))
                continue
            if name.startswith(PREFIX):  # the user's own: it computes with the integers
                continue
            inputs, outputs = self.get_input_tensors(op), self.get_output_tensors(op)
            quantised = [tensor.qnn_params is not None for tensor in inputs + outputs]
            if any(quantised) and name not in self._SUPPORTED_QUANTIZED_OPS:
                refused.setdefault(f"quantised {name}", self._output_name(op))
            elif (
                name not in HYBRID
                and any(quantised[1 : len(inputs)])
                and not quantised[0]
                and not any(quantised[len(inputs) :])
            ):
                refused.setdefault(f"{name} with quantised weights on float input", self._output_name(op))
        if refused:
            listed = "; ".join(f"{name} (output {output})" for name, output in sorted(refused.items()))
            raise KilnError(f"{self._path}: operators that cannot be imported: {listed}; {WAY}")

    def has_same_qnn_params(self, lhs_tensor: Any, rhs_tensor: Any) -> bool:
        """Whether two tensors have the same scale and zero point.

        TVM 0.27 compares scales with an absolute tolerance of 1e-5, by which 2e-6 and 9e-6 are equal.
        """
        scales = [np.asarray(tensor.qnn_params["scale"].value.numpy()) for tensor in (lhs_tensor, rhs_tensor)]
        zeros = [
            np.asarray(tensor.qnn_params["zero_point"].value.numpy()) for tensor in (lhs_tensor, rhs_tensor)
        ]
        return np.allclose(scales[0], scales[1], rtol=1e-5, atol=0.0) and np.array_equal(zeros[0], zeros[1])

    def convert_qnn_fused_activation_function(
        self, expr: relax.Expr, fused_activation_fn: int, scale: float, zero_point: int, dtype: str
    ) -> Any:
        """Clip a quantised tensor to the range of its fused activation, on raw integers.

        TVM 0.27 rounds the bounds half to even where TFLite rounds half away from zero, and emits the clip
        even if it has no effect (a ReLU whose zero point is the least value of the type).
        """
        info = np.iinfo(dtype)
        low, high = range_of_activation(fused_activation_fn, scale, zero_point, dtype)
        return expr if (low, high) == (info.min, info.max) else relax.op.clip(expr, low, high)

    def convert_pool2d(self, op: Any, pool_type: str) -> Any:
        """Pooling; averages of integers are rounded as in TFLite's kernels.

        TVM 0.27 averages int8 and uint8 AVERAGE_POOL_2D in int32 with a truncating division, where TFLite
        rounds half away from zero. Each window is up to one level too low, which in ResNet8 for CIFAR-10
        grows to 97 of 255 levels at the output.

        Emitted for integers q: astype(float32) → avg_pool2d → m + 0.5 * sign(m) → astype (truncates), on raw
        values without scale or zero point. Sums stay below 2**24 and the division is correctly rounded, so
        the result equals TFLite's in every case, including ties.
        """
        source, result = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        if pool_type != "average" or source.qnn_params is None:
            return super().convert_pool2d(op, pool_type)
        if not self.has_same_qnn_params(source, result):
            raise ValueError("input and output have different quantisation")
        options = tflite.Pool2DOptions()
        table = op.BuiltinOptions()
        options.Init(table.Bytes, table.Pos)
        _, height, width, _ = (int(size) for size in self.get_tensor_shape(source))
        padding = [0, 0, 0, 0]
        if options.Padding() == tflite.Padding.SAME:
            top, bottom = tflite_frontend.get_pad_value(height, options.FilterHeight(), options.StrideH())
            left, right = tflite_frontend.get_pad_value(width, options.FilterWidth(), options.StrideW())
            padding = [top, left, bottom, right]
        mean = self.bb.normalize(
            relax.op.nn.avg_pool2d(
                relax.op.astype(self.get_expr(source.tensor_idx), "float32"),
                pool_size=(options.FilterHeight(), options.FilterWidth()),
                strides=(options.StrideH(), options.StrideW()),
                padding=padding,
                layout="NHWC",
                count_include_pad=False,
            )
        )
        half = relax.op.multiply(relax.op.sign(mean), relax.const(np.float32(0.5)))
        dtype = self.get_tensor_type_str(result.tensor.Type())
        return self.convert_qnn_fused_activation_function(
            relax.op.astype(relax.op.add(mean, half), dtype),
            options.FusedActivationFunction(),
            tflite_frontend.get_scalar_from_constant(result.qnn_params["scale"]),
            tflite_frontend.get_scalar_from_constant(result.qnn_params["zero_point"]),
            dtype,
        )

    def convert_softmax(self, op: Any) -> Any:
        """SOFTMAX of beta * x. TVM 0.27 ignores beta."""
        options = tflite.SoftmaxOptions()
        table = op.BuiltinOptions()
        options.Init(table.Bytes, table.Pos)
        source, result = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        if options.Beta() == 1.0:
            return super().convert_softmax(op)
        data = self.get_tensor_expr(source)
        data = self.dequantize(data, source) if source.qnn_params else data
        scaled = relax.op.multiply(data, relax.const(np.float32(options.Beta())))
        probabilities = relax.op.nn.softmax(scaled, axis=-1)
        return self.quantize(probabilities, result) if result.qnn_params else probabilities

    def convert_fully_connected(self, op: Any) -> Any:
        """FULLY_CONNECTED, whose result TFLite flattens to (rows, units) unless keep_num_dims is set.

        TVM 0.27 keeps the leading axes of an input with more than two, so that the shape differs from the
        file's.
        """
        result = super().convert_fully_connected(op)
        shape = [int(size) for size in self.get_output_tensors(op)[0].tensor.ShapeAsNumpy()]
        result = self.bb.normalize(result)
        return result if [int(size) for size in result.ty.shape] == shape else relax.op.reshape(result, shape)

    def convert_reshape(self, op: Any) -> Any:
        """RESHAPE to a shape that the graph computes from a shape → to the file's static output shape.

        TVM 0.27 passes the computed tensor to relax.op.reshape, which accepts numbers only, and forgets the
        last axis of complex tensors, of the real and the imaginary part.
        """
        inputs, [result] = self.get_input_tensors(op), self.get_output_tensors(op)
        counted_shape = self.counted_shape(op)
        if counted_shape is not None:
            return relax.op.reshape(self.get_tensor_expr(inputs[0]), counted_shape)
        shape = [int(size) for size in result.tensor.ShapeAsNumpy()] if result.tensor.ShapeLength() else []
        computed = len(inputs) == 2 and self.has_expr(inputs[1].tensor_idx)
        parts = [2] if result.tensor.Type() == tflite.TensorType.COMPLEX64 else []
        if not (computed or parts) or min(shape, default=1) < 1:
            return super().convert_reshape(op)
        if not parts:
            self._check_same_quantisation(op)
        return relax.op.reshape(self.get_tensor_expr(inputs[0]), shape + parts)
