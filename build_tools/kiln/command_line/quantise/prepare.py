"""A float ONNX file in the form that onnxruntime.quantization rounds right.

That is one file, in float32, of operator set 13 or later, but no later than ONNX Runtime knows, whose
products have no factors. Weights of other files become part of it. Tensors of 16 bits become float32: ONNX
Runtime, which computes in float32, would put Casts between weights and products, and such weights are not
rounded. Scales for each channel are of operator set 13. Of a Gemm, `alpha` and `beta` become part of its
constants, and a bias that differs from row to row becomes an Add: the quantiser counts `beta` twice, and
takes a bias for one value for each channel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper, version_converter

from kiln.arrays import Array
from kiln.command_line.quantise.graphs import OnnxGraph, attribute
from kiln.errors import KilnError
from kiln.frontend.onnx.half_types import compute_in_float32, half_types
from kiln.frontend.onnx.plain_session import made_older
from kiln.onnx_domains import opset_of

_LEAST_OPSET = 13  # the first whose DequantizeLinear has a scale for each channel
_MOST_BYTES = (1 << 31) - (1 << 20)  # of a file of protobuf, which the names and nodes are a part of


def prepared_source(source: Path, out: Path) -> Path:
    """The file to quantise in place of `source`: itself, or `out`, which is written where it has to differ.

    Raises KilnError for more weights than one file may have, inputs and outputs of bfloat16, and operators
    that cannot be converted.
    """
    model = onnx.load(str(source), load_external_data=False)
    if not model.opset_import:  # the import refuses the file, and says why
        return source
    outside = [one for one in model.graph.initializer if one.data_location == TensorProto.EXTERNAL]
    _check_size(source, outside)
    onnx.load_external_data_for_model(model, str(source.parent))
    changed = made_older(model) or bool(outside)
    opset = opset_of(model)
    if half_types(model) or opset < _LEAST_OPSET:
        model = inliner.inline_local_functions(model)
        _in_float32(source, model)
        if opset < _LEAST_OPSET:
            model = _converted(source, model)
        changed = True
    changed = _plain_products(model) or changed
    if not changed:
        return source
    onnx.save(model, str(out))
    return out


def left_in_float(model: onnx.ModelProto) -> str:
    """What stays in float though it has weights, as a clause: operators of ONNX Runtime's own, and float64.

    Such operators, as FusedConv, are in files that ONNX Runtime has optimised. Empty if nothing does.
    """
    graph, fused, double = OnnxGraph(model), set(), False
    for node in graph.nodes:
        weights = [
            value for name in node.input if (value := graph.constant(name)) is not None and value.ndim > 1
        ]
        if node.domain == "com.microsoft" and any(value.dtype.kind == "f" for value in weights):
            fused.add(node.op_type)
        double = double or any(value.dtype.name == "float64" for value in weights)
    parts = []
    if fused:
        names = ", ".join(sorted(fused))
        parts.append(f"{names} of com.microsoft: quantise the file that ONNX Runtime has not optimised")
    if double:
        parts.append("products of float64: export the model in float32")
    return f"stay in float: {'; '.join(parts)}" if parts else ""


def _check_size(source: Path, outside: list[Any]) -> None:
    count = sum(int(np.prod(one.dims)) * helper.tensor_dtype_to_np_dtype(one.data_type).itemsize
                for one in outside)  # fmt: skip
    if count > _MOST_BYTES:
        raise KilnError(
            f"{source}: {count:,} bytes of weights, allowed: {_MOST_BYTES:,}, as what is calibrated is "
            "one file; quantise parts of the graph by the key 'cut' (docs/models.md), or let the build "
            "store the weights in few bits by the key 'weights' (docs/quantisation.md)"
        )


def _in_float32(source: Path, model: onnx.ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            raise KilnError(
                f"{source}: '{value.name}' is bfloat16, which ONNX Runtime, that calibrates, does not take: "
                "export the model with inputs and outputs of float32 or float16"
            )
    compute_in_float32(model)


def _converted(source: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return version_converter.convert_version(model, _LEAST_OPSET)
    except Exception as error:  # of classes of the converter's own, without a common base
        text = " ".join(str(error).split())
        raise KilnError(
            f"{source}: scales for each channel need operator set {_LEAST_OPSET}, and the file cannot be "
            f"converted to it: {text}; export the model with a later operator set"
        ) from error


def _plain_products(model: onnx.ModelProto) -> bool:
    """Write Gemms of constants without factors, and with biases of one value for each channel, in place."""
    graph, changed = OnnxGraph(model), False
    for node in [node for node in graph.nodes if node.op_type == "Gemm"]:
        alpha, beta = (float(attribute(node, name, 1.0)) for name in ("alpha", "beta"))
        weight = graph.constant(node.input[1])
        bias = graph.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        if weight is not None and alpha != 1.0:
            graph.replace(node, 1, (weight * np.float32(alpha)).astype(weight.dtype))
            _drop(node, "alpha")
            changed = True
        if bias is None:
            continue
        channels = None if weight is None else weight.shape[0 if attribute(node, "transB", 0) else 1]
        plain = channels is not None and bias.shape == (channels,)
        if beta == 1.0 and plain:
            continue
        _drop(node, "beta")
        changed = True
        value = (bias * np.float32(beta)).astype(bias.dtype)
        if (
            channels is not None
            and value.size in (1, channels)
            and value.shape[-1:] != (1,) * (value.size > 1)
        ):
            graph.replace(node, 2, np.broadcast_to(value.reshape(-1), (channels,)))
        else:
            _add_after(graph, node, value)
    return changed


def _drop(node: Any, name: str) -> None:
    for entry in [entry for entry in node.attribute if entry.name == name]:
        node.attribute.remove(entry)


def _add_after(graph: OnnxGraph, node: Any, value: Array) -> None:
    """Add the constant `value` to the result of `node` by a node of its own."""
    result = node.output[0]
    del node.input[2:]
    node.output[0] = f"{result}~product"
    name = f"{result}~bias"
    graph.model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
    added = helper.make_node("Add", [node.output[0], name], [result], f"{node.name or result}~bias")
    at = list(graph.model.graph.node).index(node)
    graph.model.graph.node.insert(at + 1, added)
