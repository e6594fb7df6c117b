"""Import of an ONNX file: checks it, binds dynamic sizes, folds constants, converts node by node to Relax."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper, numpy_helper

from kiln.config.sizes import SizeExpr, show
from kiln.errors import KilnError
from kiln.file_kinds import refuse_other
from kiln.frontend.counted.sizes import with_counted
from kiln.frontend.importer import Imported, finish, read_model, result_types
from kiln.frontend.interface import Port
from kiln.frontend.onnx.attributes import check_attributes, check_counts, check_names, graphs
from kiln.frontend.onnx.counting_loops import with_trip_counts
from kiln.frontend.onnx.declared_shapes import declared_shape
from kiln.frontend.onnx.expansions import adopt, expansion_of
from kiln.frontend.onnx.file_checks import (
    check_operator_sets,
    check_stored,
    invalid,
    make_dense,
    name_one_domain,
)
from kiln.frontend.onnx.fold import canonicalise
from kiln.frontend.onnx.functions import inline_functions
from kiln.frontend.onnx.graph import Importer
from kiln.frontend.onnx.grown import without_growth
from kiln.frontend.onnx.half_types import compute_in_float32
from kiln.frontend.onnx.kept_state import state_of
from kiln.frontend.onnx.large_weights import is_large, large_weights_as_inputs
from kiln.frontend.onnx.narrow_types import element_types, store_narrow
from kiln.frontend.onnx.order import sort_nodes
from kiln.frontend.onnx.own_nodes import adopt_own, is_own, own_operators
from kiln.frontend.onnx.quantised_lstm import as_scans
from kiln.frontend.onnx.refusals import refuse
from kiln.frontend.onnx.signal_axes import complete_transforms
from kiln.frontend.onnx.types import check_inside, check_ports
from kiln.frontend.onnx.unread import without_unread
from kiln.frontend.options import ImportOptions, bind_shape, check_keys, check_own_axes, check_ranges
from kiln.frontend.quiet import convert_quietly
from kiln.frontend.symbols import Symbols
from kiln.onnx_domains import domain_of, opset_of, versions_of


def load(path: Path, options: ImportOptions) -> Imported:
    """Import an ONNX file. Raises KilnError as documented at `kiln.frontend.importer.import_model`."""
    model = read(path)
    declared_state = state_of(model)
    without_growth(path, model)
    with_trip_counts(path, model)
    as_scans(path, model)
    complete_transforms(model)
    elements = element_types(model)
    renamed = compute_in_float32(model)
    shapes = bind_inputs(model, path, options)
    bounds = {renamed.get(name, name): most for name, most in options.bounds.items()}
    symbols = Symbols(options.bucket, bounds)
    sizes: dict[str, list[int | str]] = {}
    for name, shape in shapes.items():
        entries = [(entry, options.size(entry)) for entry in shape]
        sizes[name] = [show(entry) if size is None else size for entry, size in entries]
    model = canonicalise(model, path, sizes)
    without_unread(model)
    store_narrow(path, model)
    check_inside(path, model)
    if any(value.name not in shapes for value in real_inputs(model)):  # onnxsim renames it to the output
        raise KilnError(
            f"{path}: an output is an input as it is: leave it out, in the YAML file cut: {{outputs: …}}"
        )
    extents = {name: [symbols.extent_of(entry) for entry in shape] for name, shape in shapes.items()}
    nodes: dict[str, list[str]] = {}
    with symbols.missing.named_together(path):
        module = convert_quietly(
            lambda: Importer(
                path, extents, symbols, nodes, options.every_node, list(model.opset_import), own_operators()
            ).from_onnx(model.graph, opset_of(model))
        )
    inputs = [
        Port(
            value.name,
            _dtype(value),
            shapes[value.name],
            _image_layout(shapes[value.name]),
            _input_quant(model, value),
            elements.get(value.name),
        )
        for value in real_inputs(model)
    ]
    module = with_counted(module, symbols)
    module = finish(module, "onnx", len(inputs), nodes, symbols)
    outputs = [
        Port(value.name, dtype, shape, quant=_output_quant(model, value), element=elements.get(value.name))
        for value, (dtype, shape) in zip(model.graph.output, result_types(module, symbols), strict=True)
    ]
    return Imported(module, inputs, outputs, declared_state=declared_state, counted=symbols.all_counted())


def read(path: Path, ports: bool = True) -> onnx.ModelProto:
    """Parse and check an ONNX file. Raises KilnError when it is empty, truncated, text or not valid.

    ports: whether to check the types of inputs and outputs; False if only a part of the graph is used.
    """
    content = read_model(path)
    refuse_other(path, content, "an ONNX model")
    try:
        model = onnx.load_model_from_string(content)
    except DecodeError:
        raise KilnError(f"{path}: not a complete ONNX model: truncated or of another format") from None
    del content  # the weights are in the model now
    _load_external_data(model, path)
    graph = model.graph
    constants = {value.name for value in graph.initializer}  # a module that returns constants has no nodes
    if not graph.output or not (graph.node or all(value.name in constants for value in graph.output)):
        raise KilnError(
            f"{path}: not a complete ONNX model: truncated, or its graph has no nodes or no outputs"
        )
    check_names(path, model)
    check_operator_sets(path, model)
    name_one_domain(path, model)
    make_dense(path, model)
    check_stored(path, model)
    adopt_own(path, model)
    model = inline_functions(path, model)
    adopt(path, model)
    check_attributes(path, model)
    sort_nodes(path, model)
    _check_known(model, path)
    if ports:
        check_ports(path, real_inputs(model), model.graph.output, model.graph.node)
    _check_by_onnx(path, model)
    return model


def _check_by_onnx(path: Path, model: onnx.ModelProto) -> None:
    """Raise KilnError for a model that ONNX's checker refuses; inputs and outputs need no shape.

    The options may have the shapes of inputs, and the shapes of outputs are inferred.
    """
    ports = [*model.graph.input, *model.graph.output]
    types = [value.type.tensor_type for value in ports if value.type.HasField("tensor_type")]
    open_types = [kind for kind in types if not kind.HasField("shape")]
    for kind in open_types:
        kind.shape.SetInParent()
    try:
        onnx.checker.check_model(large_weights_as_inputs(model))
        for tensor in filter(is_large, model.graph.initializer):
            onnx.checker.check_tensor(tensor)
    except Exception as error:  # ValidationError; UnicodeDecodeError where the message quotes damaged names
        for graph in graphs(path, model):
            check_counts(path, graph.node, versions_of(model.opset_import))
        raise invalid(path, model, error) from error
    for kind in open_types:
        kind.ClearField("shape")


def _load_external_data(model: onnx.ModelProto, path: Path) -> None:
    """Load weights stored as external data in the folder of the model. Raises KilnError where that fails."""
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # missing and damaged files raise exceptions of several types
        external = filter(external_data_helper.uses_external_data, model.graph.initializer)
        files = {
            str(entry.value)
            for weight in external
            for entry in weight.external_data
            if entry.key == "location"
        }
        raise KilnError(
            f"{path}: its weights are in another file ({', '.join(sorted(files)[:3]) or 'none is named'}), "
            "which is damaged or missing in the folder of the model"
        ) from error


def real_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs of the graph without the weights, which files of old ONNX versions list as inputs too."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def bind_inputs(
    model: onnx.ModelProto, path: Path, options: ImportOptions
) -> dict[str, tuple[SizeExpr, ...]]:
    """The shape of each input, by name: fixed sizes from the file, dynamic sizes from the options.

    Raises KilnError for an input in the options that the model does not have, and as `bind_shape`.
    """
    options.check_inputs(path, [value.name for value in real_inputs(model)])
    declared = {value.name: declared_shape(value) for value in real_inputs(model)}
    check_keys(str(path), {name: shape for name, shape in declared.items() if name not in options.shapes})
    check_ranges(str(path), declared, options)
    shapes = {name: bind_shape(str(path), name, shape, options) for name, shape in declared.items()}
    check_own_axes(str(path), shapes)
    return shapes


def _check_known(model: onnx.ModelProto, path: Path) -> None:
    """Raise KilnError for operators unknown to ONNX. Others are checked later: folding removes some nodes."""
    operators_of_onnx = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas()}
    unknown = [
        node
        for node in model.graph.node
        if (domain_of(node), node.op_type) not in operators_of_onnx
        and expansion_of(node.domain, node.op_type) is None
        and not is_own(node)
    ]
    refuse(path, unknown)


def _dtype(value: onnx.ValueInfoProto) -> str:
    return str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def _image_layout(shape: tuple[SizeExpr, ...]) -> str | None:
    return "NCHW" if len(shape) == 4 else None


def _scale_and_zero(model: onnx.ModelProto, node: onnx.NodeProto) -> tuple[float, int] | None:
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
        return _scale_and_zero(model, readers[0])
    return None


def _output_quant(model: onnx.ModelProto, value: onnx.ValueInfoProto) -> tuple[float, int] | None:
    writers = [node for node in model.graph.node if value.name in node.output]
    return _scale_and_zero(model, writers[0]) if writers and writers[0].op_type == "QuantizeLinear" else None
