"""Constant folding and shape inference of an ONNX graph, within fixed limits of memory and operations.

onnxsim folds the graph. Some graphs that ONNX's checker and ONNX Runtime accept are refused by onnxsim; then
ONNX Runtime computes the constants, and the rest of the graph stays unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import helper, numpy_helper

from kiln import doing
from kiln.errors import KilnError
from kiln.frontend.importer import one_line
from kiln.frontend.onnx import order
from kiln.frontend.onnx.attributes import graphs_in
from kiln.frontend.onnx.inference import declare_shapes
from kiln.frontend.onnx.inferred_sizes import repair
from kiln.frontend.onnx.operand_axes import align_operands
from kiln.frontend.onnx.plain_session import plain_session
from kiln.frontend.onnx.predict import Prediction
from kiln.frontend.onnx.tensor_sizes import elements_of, sizes_of
from kiln.frontend.quiet import quiet_output

Sizes = Mapping[str, Sequence[int | str]]


def canonicalise(model: onnx.ModelProto, path: Path, sizes: Sizes) -> onnx.ModelProto:
    """`model` with its constants folded and all shapes inferred.

    Changes `model`, too, so that its weights are in memory once: nodes as `repair` and `align_operands` do,
    the shapes of inputs to `sizes`, and all other shapes, which may be wrong then, are removed.
    `sizes`: shapes of the inputs, as numbers and as names of symbolic sizes.

    If all sizes are fixed, the shape arithmetic that exporters emit (Shape → Slice → Concat → Reshape) is
    folded too; otherwise kiln.frontend.onnx.shapes evaluates it during the import. Raises KilnError for a
    node with wrong types or with a constant beyond the limits (kiln.frontend.onnx.predict).
    """
    import onnxsim  # it starts a thread, which a process that forks must not have

    _forget_inner_shapes(model.graph)
    _set_input_shapes(model.graph, sizes)
    repair(model)
    align_operands(model)
    prediction = Prediction(path, model)
    prediction.walk(model.graph)
    _replace_nodes(model, _joins_without_elements(model, prediction))
    with quiet_output():  # onnxsim reports every node that it cannot run
        try:
            # Nothing here registers an operator with onnx, and onnxsim's search for such operators takes
            # 20 ms.
            folded, _ = onnxsim.simplify(model, import_custom_schemas=False)
        except Exception:  # onnxsim's C++ core raises exceptions of many types
            folded = _fold_by_runtime(model, prediction)
        _forget_shapes(folded.graph)
        try:
            declare_shapes(folded, data_prop=True)
        except Exception as error:  # ONNX raises exception types of its own
            raise KilnError(f"{path}: cannot infer the ONNX graph's shapes: {one_line(error)}") from error
        return folded


def _forget_shapes(graph: onnx.GraphProto) -> None:
    """Remove the shapes of all tensors of `graph` but inputs: a file may declare wrong ones.

    A constant that is an output keeps its shape. Without it, ONNX (1.23.2) infers shapes of its readers as if
    they had no constant: of a Slice with such axes, the shape of what is sliced.
    """
    del graph.value_info[:]
    constants = {constant.name: constant.dims for constant in graph.initializer}
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
        if value.name in constants:
            value.type.tensor_type.shape.dim.extend(
                onnx.TensorShapeProto.Dimension(dim_value=size) for size in constants[value.name]
            )


def _set_input_shapes(graph: onnx.GraphProto, sizes: Sizes) -> None:
    """Set the shapes of the inputs of `graph`, and remove all other shapes, which may be wrong now."""
    del graph.value_info[:]
    for value in graph.input:
        if value.name not in sizes:
            continue
        shape = value.type.tensor_type.shape
        shape.Clear()
        for size in sizes[value.name]:
            dim = shape.dim.add()
            if isinstance(size, str):
                dim.dim_param = size
            else:
                dim.dim_value = size
    for value in graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()


def _forget_inner_shapes(graph: onnx.GraphProto) -> None:
    """Remove the shapes of all tensors but inputs from the graphs inside of the nodes of `graph`.

    PyTorch's exporter by tracing declares one axis of unknown size for results of an If that have several.
    """
    for inner in (inner for node in graph.node for inner in graphs_in(node)):
        del inner.value_info[:]
        for value in inner.output:
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")
        _forget_inner_shapes(inner)


def _joins_without_elements(model: onnx.ModelProto, prediction: Prediction) -> list[onnx.NodeProto]:
    """The Concats of `model` whose results have fixed sizes and no elements, as constants.

    onnxsim omits constant operands without elements, even those whose size along the axis of Concat counts.
    """
    constants = []
    for node in model.graph.node:
        kind = prediction.types.get(node.output[0]) if node.op_type == "Concat" else None
        if kind is not None and elements_of(kind) == 0:
            tensor = onnx.TensorProto(data_type=kind.tensor_type.elem_type, dims=sizes_of(kind))
            constants.append(helper.make_node("Constant", [], node.output, name=node.name, value=tensor))
    return constants


def _replace_nodes(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Replace the nodes of `model` that have the same outputs as `nodes`."""
    by_output = {node.output[0]: node for node in nodes}
    for node in model.graph.node if nodes else ():
        if node.output[0] in by_output:
            node.CopyFrom(by_output[node.output[0]])


def _fold_by_runtime(model: onnx.ModelProto, prediction: Prediction) -> onnx.ModelProto:
    """`model` with each constant that other nodes read replaced by a weight.

    `prediction` must have walked the model; it holds the values of short constants, including those computed
    from shapes. ONNX Runtime computes long constants; if it fails, their nodes stay in the graph.
    """
    short = [tensor for name, tensor in prediction.values.items() if name]
    constant = [node for node in model.graph.node if prediction.is_constant(node)]
    long_constants = [node for node in constant if not all(name in prediction.values for name in node.output)]
    other_nodes = [node for node in model.graph.node if not prediction.is_constant(node)]
    read = {name for node in other_nodes for name in order.reads(node)}
    read |= {value.name for value in model.graph.output}
    names = sorted({name for node in long_constants for name in node.output if name} & read)
    constant_part = _with_nodes(model, long_constants, short)
    del constant_part.graph.input[:], constant_part.graph.output[:]
    constant_part.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    try:
        computed = _run_constants(constant_part, names) if names else []
    except Exception:  # ONNX Runtime raises exception types of its own
        return _with_nodes(model, [*long_constants, *other_nodes], short)
    return _with_nodes(model, other_nodes, [*short, *computed])


def _with_nodes(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], weights: Sequence[onnx.TensorProto]
) -> onnx.ModelProto:
    """A copy of `model` with its nodes replaced by `nodes`, and with `weights` added to its weights."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    present = {weight.name for weight in model.graph.initializer}
    result.graph.initializer.extend(weight for weight in weights if weight.name not in present)
    return result


def _run_constants(constant_part: onnx.ModelProto, names: Sequence[str]) -> list[onnx.TensorProto]:
    """The tensors `names`, computed by running `constant_part`, a model without inputs, in ONNX Runtime."""
    with doing.noted("ONNX Runtime computed the part of the model that depends on no input"):
        session = plain_session(constant_part.SerializeToString(), severity=2)
        results = session.run(names, {})
    return [numpy_helper.from_array(array, name) for name, array in zip(names, results, strict=True)]
