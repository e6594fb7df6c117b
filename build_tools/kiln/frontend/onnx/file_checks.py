"""Checks that ONNX's checker lacks or does not explain: operator sets, stored tensors, missing tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from kiln.errors import KilnError
from kiln.frontend.importer import one_line
from kiln.frontend.onnx.attributes import describe, graphs, with_nested_graphs
from kiln.onnx_domains import OTHER_NAME, domain_name, versions_of

_UNSORTED = re.compile(r"topologically sorted, however input '(.+)' of node:")


def check_operator_sets(path: Path, model: onnx.ModelProto) -> None:
    """Raise KilnError for ONNX's operators in two versions, or in one that the onnx package does not know.

    Also raised for a file without any version.
    """
    if not model.opset_import:
        raise KilnError(
            f"{path}: it states no operator set (opset_import), as files of before version 3 of ONNX's "
            "format; export the model again"
        )
    versions = {int(entry.version) for entry in model.opset_import if not domain_name(entry.domain)}
    if len(versions) > 1:
        raise KilnError(
            f"{path}: its operators are of the operator sets {', '.join(map(str, sorted(versions)))} at "
            "once: the file is damaged"
        )
    newest = onnx.defs.onnx_opset_version()
    if versions and max(versions) > newest:
        raise KilnError(
            f"{path}: its operators are of operator set {max(versions)}, known: up to {newest}; export the "
            "model with an older operator set"
        )


def name_one_domain(path: Path, model: onnx.ModelProto) -> None:
    """Name ONNX's own domain "" throughout `model`, in place: its checker takes "ai.onnx" for another one."""
    bodies = (model.graph, *model.functions)
    nodes = [node for body in bodies for graph in with_nested_graphs(path, body) for node in graph.node]
    for named in (*nodes, *model.functions):
        if named.domain == OTHER_NAME:
            named.domain = ""
    for owner in (model, *model.functions):
        if any(entry.domain == OTHER_NAME for entry in owner.opset_import):
            versions = versions_of(owner.opset_import)
            del owner.opset_import[:]
            owner.opset_import.extend(helper.make_opsetid(*entry) for entry in versions.items())


def make_dense(path: Path, model: onnx.ModelProto) -> None:
    """Make sparse weights of `model` dense, in place. Raises KilnError for a damaged sparse tensor."""
    for graph in graphs(path, model):
        for sparse in graph.sparse_initializer:
            name, shape = sparse.values.name, tuple(sparse.dims)
            try:
                values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
                dense = np.zeros(shape, values.dtype)
                if indices.ndim == 2:
                    dense[tuple(indices.T)] = values
                else:
                    dense.reshape(-1)[indices] = values
            except (IndexError, KeyError, MemoryError, TypeError, ValueError) as error:
                raise KilnError(f"{path}: the sparse weight '{name}': {one_line(error)}") from None
            graph.initializer.append(numpy_helper.from_array(dense, name))
        del graph.sparse_initializer[:]


_STORED_AS_INT32 = [getattr(onnx.TensorProto, name) for name in ("INT8", "UINT8", "INT16", "UINT16")]


def check_stored(path: Path, model: onnx.ModelProto) -> None:
    """Raise KilnError for a stored tensor of an unknown type, or with more bytes than its shape has.

    Also for an integer that its type does not have, such as a zero point of 300: other readers cut off bits.
    """
    for where, tensor in _tensors(path, model):
        if tensor.data_type not in onnx.TensorProto.DataType.values():
            raise KilnError(f"{path}: {where} is of type number {tensor.data_type}, which ONNX does not have")
        if tensor.int32_data and tensor.data_type in _STORED_AS_INT32:
            limits = np.iinfo(helper.tensor_dtype_to_np_dtype(tensor.data_type))
            wrong = [number for number in tensor.int32_data if not limits.min <= number <= limits.max]
            if wrong:
                raise KilnError(
                    f"{path}: {where} has the element {wrong[0]}, allowed for {limits.dtype}: "
                    f"{limits.min} to {limits.max}"
                )
        if tensor.data_type == onnx.TensorProto.STRING or not tensor.HasField("raw_data"):
            continue
        if any(size < 0 for size in tensor.dims):  # which the checker refuses
            continue
        elements = int(np.prod([int(size) for size in tensor.dims], dtype=object))
        kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if len(tensor.raw_data) > elements * kind.itemsize:
            raise KilnError(
                f"{path}: {where} has {len(tensor.raw_data)} bytes, allowed for {list(tensor.dims)} of type "
                f"{kind}: {elements * kind.itemsize}"
            )


def _tensors(path: Path, model: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """All stored tensors, each with a description for errors."""
    for graph in graphs(path, model):
        for weight in graph.initializer:
            yield f"the weight '{weight.name}'", weight
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield f"{describe(node)}: attribute '{attribute.name}'", attribute.t


def invalid(path: Path, model: onnx.ModelProto, error: Exception) -> KilnError:
    """The error for a model that ONNX's checker refuses; a tensor that cannot be read is explained."""
    text = one_line(error)
    unsorted = _UNSORTED.search(text)
    if unsorted is None:
        return KilnError(f"{path}: not a valid ONNX model: {text}")
    name = unsorted[1]
    nodes = [node for graph in graphs(path, model) for node in graph.node]
    reader = next((describe(node) for node in nodes if name in node.input), "a node")
    if any(name in node.output for node in nodes):
        why = "is computed from its own result: the graph has a cycle"
    else:
        why = "is not the output of a node, nor an input or a weight of the graph"
    return KilnError(f"{path}: not a valid ONNX model: {reader}: its input '{name}' {why}")
