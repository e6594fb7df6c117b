"""ONNX → Relax: check the file, fix open sizes, fold shape arithmetic away, then convert node by node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxsim
from google.protobuf.message import DecodeError
from onnx import numpy_helper
from tvm.relax.frontend.onnx import onnx_frontend

from kiln.errors import KilnError
from kiln.frontend import onnx_ops
from kiln.frontend.importer import (
    Imported,
    finish,
    looks_like_text,
    one_line,
    operators,
    read_model,
    result_types,
)
from kiln.frontend.interface import Port
from kiln.frontend.options import ImportOptions, bind_shape
from kiln.frontend.quiet import convert_quietly

_DEFAULT_DOMAINS = ("", "ai.onnx")
_NODES_NAMED = 3  # of each operator, for errors


def load(path: Path, options: ImportOptions) -> Imported:
    """Import an ONNX file. Raises KilnError as `kiln.frontend.importer.import_model` says."""
    model = read(path)
    shapes = bind_inputs(model, path, options)
    model = canonicalise(model, path, shapes)
    nodes: dict[str, list[str]] = {}
    module = convert_quietly(lambda: _Importer(path, shapes, nodes).from_onnx(model.graph, _opset(model)))
    inputs = [
        Port(
            value.name,
            _dtype(value),
            shapes[value.name],
            _image_layout(shapes[value.name]),
            _input_quant(model, value),
        )
        for value in real_inputs(model)
    ]
    module = finish(module, "onnx", len(inputs), nodes)
    outputs = [
        Port(value.name, dtype, shape, quant=_output_quant(model, value))
        for value, (dtype, shape) in zip(model.graph.output, result_types(module), strict=True)
    ]
    return Imported(module, inputs, outputs)


def read(path: Path) -> onnx.ModelProto:
    """Parse and check an ONNX file. Raises KilnError when it is empty, truncated, text or not valid."""
    content = read_model(path)
    if looks_like_text(content):
        raise KilnError(f"{path}: not an ONNX model: the file is plain text")
    try:
        model = onnx.load(path)
    except DecodeError:
        raise KilnError(f"{path}: not a complete ONNX model: truncated or of another format") from None
    except Exception as error:  # external weights missing or damaged raise several kinds
        raise KilnError(f"{path}: cannot load the ONNX model: {one_line(error)}") from error
    if not model.graph.node or not model.graph.output:
        raise KilnError(
            f"{path}: not a complete ONNX model: truncated, or its graph has no nodes or no outputs"
        )
    _check_known(model, path)
    try:
        onnx.checker.check_model(model)
    except (
        Exception
    ) as error:  # ValidationError, or UnicodeDecodeError where the message quotes damaged names
        raise KilnError(f"{path}: not a valid ONNX model: {one_line(error)}") from error
    return model


def real_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The graph's inputs that a user must give: old files list every weight among the inputs too."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def bind_inputs(model: onnx.ModelProto, path: Path, options: ImportOptions) -> dict[str, tuple[int, ...]]:
    """Every input's fixed shape, from the file where it is fixed and from the options where it is not."""
    names = [value.name for value in real_inputs(model)]
    for given in options.shapes:
        if given not in names:
            raise KilnError(
                f"{path}: inputs.{given}: the model has no such input, it has: {', '.join(names)}"
            )
    return {
        value.name: bind_shape(str(path), value.name, _declared_shape(value), options)
        for value in real_inputs(model)
    }


def canonicalise(model: onnx.ModelProto, path: Path, shapes: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    """Fold constants and infer every shape with the inputs fixed to `shapes`.

    Without it TVM's importer fails on the shape arithmetic (Shape → Slice → Concat → Reshape) that exporters
    leave.
    """
    try:
        fixed = {name: list(shape) for name, shape in shapes.items()}
        simplified, _ = onnxsim.simplify(model, overwrite_input_shapes=fixed)
        return onnx.shape_inference.infer_shapes(simplified, data_prop=True)
    except Exception as error:  # onnxsim raises whatever its C++ core met
        raise KilnError(
            f"{path}: cannot fold the ONNX graph's constants and shapes: {one_line(error)}"
        ) from error


def _check_known(model: onnx.ModelProto, path: Path) -> None:
    """Refuse operators unknown to ONNX itself; the others are judged after folding, which removes some."""
    local = {(function.domain, function.name) for function in model.functions}
    known = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas()} | local
    unknown = [
        node
        for node in model.graph.node
        if (node.domain.replace("ai.onnx", ""), node.op_type) not in known
        and (node.domain, node.op_type) not in known
    ]
    _refuse(path, unknown)


def _refuse(path: Path, nodes: list[onnx.NodeProto]) -> None:
    if nodes:
        kinds: dict[str, list[str]] = {}
        for node in nodes:
            kind = f"{node.domain}.{node.op_type}" if node.domain not in _DEFAULT_DOMAINS else node.op_type
            kinds.setdefault(kind, []).append(node.name or f"with output {node.output[0]}")
        listed = "; ".join(
            f"{kind} (node {', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
            for kind, names in sorted(kinds.items())
        )
        raise KilnError(f"{path}: operators that cannot be imported: {listed}")


class _Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]  # tvm is untyped
    """TVM's importer with Kiln's own converters first, and errors that name the operator and the node."""

    def __init__(self, path: Path, shapes: dict[str, tuple[int, ...]], nodes: dict[str, list[str]]) -> None:
        super().__init__(
            {name: list(shape) for name, shape in shapes.items()},
            None,
            keep_params_in_input=False,
            sanitize=True,
        )
        self._path = path
        self._nodes_of = nodes

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        convertible = onnx_frontend._get_convert_map().keys() | {"If", "Constant"} | onnx_ops.OVERRIDES.keys()
        _refuse(self._path, [node for node in graph.node if node.op_type not in convertible])

    def _convert_operator(self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int) -> Any:
        node = attrs["tvm_custom"]["name"] or "without a name"
        try:
            own = onnx_ops.OVERRIDES.get(op_name)
            expression = own(inputs, attrs) if own else None
            if expression is None:
                expression = super()._convert_operator(op_name, inputs, attrs, opset)
            else:
                expression = self.bb.normalize(expression)
            for name in operators(expression):
                origins = self._nodes_of.setdefault(name, [])
                if len(origins) < _NODES_NAMED:
                    origins.append(f"{op_name} node {node}")
            return expression
        except (
            Exception
        ) as error:  # converters raise every kind of exception; all mean that the node is not supported
            raise KilnError(
                f"{self._path}: operators that cannot be imported: {op_name} (node {node}): {one_line(error)}"
            ) from error


def _opset(model: onnx.ModelProto) -> int:
    return max(
        (int(entry.version) for entry in model.opset_import if entry.domain in _DEFAULT_DOMAINS), default=1
    )


def _declared_shape(value: onnx.ValueInfoProto) -> tuple[int | str | None, ...] | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    # Exporters write an open size as a name, "?", nothing at all, 0 or -1.
    return tuple(
        dim.dim_value if dim.dim_value > 0 else (dim.dim_param if dim.dim_param.isidentifier() else None)
        for dim in tensor.shape.dim
    )


def _dtype(value: onnx.ValueInfoProto) -> str:
    return str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def _image_layout(shape: tuple[int, ...]) -> str | None:
    return "NCHW" if len(shape) == 4 else None


def _scalars(model: onnx.ModelProto, node: onnx.NodeProto) -> tuple[float, int] | None:
    """(scale, zero point) of a per-tensor QuantizeLinear or DequantizeLinear with constant parameters."""
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for constant in model.graph.node:
        if constant.op_type == "Constant" and constant.attribute[0].name == "value":
            values[constant.output[0]] = numpy_helper.to_array(constant.attribute[0].t)
    scale = values.get(node.input[1])
    zero = values.get(node.input[2]) if len(node.input) > 2 and node.input[2] else 0
    if scale is None or zero is None or scale.size != 1:
        return None
    return float(scale.item()), int(zero.item()) if hasattr(zero, "item") else int(zero)


def _input_quant(model: onnx.ModelProto, value: onnx.ValueInfoProto) -> tuple[float, int] | None:
    readers = [node for node in model.graph.node if value.name in node.input]
    if readers and all(node.op_type == "DequantizeLinear" for node in readers):
        return _scalars(model, readers[0])
    return None


def _output_quant(model: onnx.ModelProto, value: onnx.ValueInfoProto) -> tuple[float, int] | None:
    writers = [node for node in model.graph.node if value.name in node.output]
    return _scalars(model, writers[0]) if writers and writers[0].op_type == "QuantizeLinear" else None
