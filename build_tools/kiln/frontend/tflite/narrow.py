"""Widens a TFLite file's constants of 4 and 2 bits to 8 bits or to float32.

Elements are packed from the lowest bits of a byte on. A tensor with a scale for each block along its last
axis becomes its real numbers: no operator has quantised tensors with such scales.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.errors import KilnError
from kiln.frontend.tflite.files import NARROW_TYPES, Kinds, indices, make_constant, packed, text_of, unpacked

# By the name of a type: bits, whether it has a sign.
_TYPES = {"int4": (4, True), "uint4": (4, False), "int2": (2, True)}
_BLOCKS = 2  # the schema's BlockwiseQuantization


def has_narrow(model: Any) -> bool:
    """Whether a file has tensors of less than 8 bits, or of scales by blocks."""
    for number in range(model.SubgraphsLength()):
        graph = model.Subgraphs(number)
        for tensor in (graph.Tensors(index) for index in range(graph.TensorsLength())):
            quantisation = tensor.Quantization()
            blocks = quantisation is not None and quantisation.DetailsType() == _BLOCKS
            if tensor.Type() in NARROW_TYPES or blocks:
                return True
    return False


def without_narrow(path: Path, content: bytes) -> bytes:
    """The file `content` with wider constants. Raises KilnError for a tensor that is computed, or damaged."""
    schema, model = unpacked(path, content)
    kinds = Kinds(schema, model)
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            blocks = tensor.quantization is not None and tensor.quantization.detailsType == _BLOCKS
            name = kinds.type_name(tensor)
            if name not in _TYPES and not blocks:
                continue
            where = f"{path}: tensor '{text_of(tensor.name)}' of type {name}"
            data = model.buffers[tensor.buffer].data
            if data is None or not len(data) or tensor.sparsity is not None:
                raise KilnError(
                    f"{where} is {'sparse' if tensor.sparsity is not None else 'computed'}, allowed: "
                    "dense constants; convert the model with activations of 8 bits or more"
                )
            values = _values(np.frombuffer(bytes(bytearray(data)), np.uint8), name, tensor.shape, where)
            if blocks:
                values = _real(model, graph, kinds, tensor, values, where)
                tensor.quantization = None
            tensor.type = getattr(schema.TensorType, str(values.dtype).upper())
            make_constant(schema, model, tensor, values)
    return packed(model)


def _values(data: Array, name: str, shape: Any, where: str) -> Array:
    """The elements in 8 bits. Raises KilnError if there are too few."""
    count = int(np.prod(shape, dtype=np.int64))
    if name not in _TYPES:
        elements: Array = data.view(np.int8)
    else:
        bits, signed = _TYPES[name]
        numbers = [(data >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
        elements = np.stack(numbers, -1).reshape(-1)
        if signed:
            elements = ((elements.astype(np.int16) ^ (1 << (bits - 1))) - (1 << (bits - 1))).astype(np.int8)
    if elements.size < count:
        raise KilnError(f"{where} has {elements.size} elements, its shape {indices(shape)} needs {count}")
    shaped: Array = elements[:count].reshape(shape)
    return shaped


def _real(model: Any, graph: Any, kinds: Kinds, tensor: Any, values: Array, where: str) -> Array:
    """The real numbers of elements with a scale, and a zero point, for each block of the last axis."""
    details = tensor.quantization.details
    size = int(details.blockSize)
    if len(indices(getattr(details, "blockShape", None))):
        raise KilnError(f"{where} has blocks over several axes, allowed: blocks along the last axis")
    if size < 1 or values.ndim < 1 or values.shape[-1] % size:
        raise KilnError(f"{where} has blocks of {size}, allowed: a divisor of {list(values.shape)[-1:]}")
    shape_of_scales = (*values.shape[:-1], values.shape[-1] // size)

    def per_element(index: int) -> Array:
        try:
            stored_tensor = graph.tensors[index]
            scales_read = np.frombuffer(
                bytes(bytearray(model.buffers[stored_tensor.buffer].data)), kinds.dtype(stored_tensor)
            )
        except (IndexError, TypeError, ValueError) as error:
            raise KilnError(f"{where} has scales or zero points that cannot be read: {error}") from error
        if scales_read.size != np.prod(shape_of_scales):
            raise KilnError(
                f"{where} has {scales_read.size} scales or zero points, allowed: {list(shape_of_scales)}"
            )
        return np.repeat(scales_read.reshape(shape_of_scales).astype(np.float32), size, -1)

    real = values.astype(np.float32)
    if details.zeroPoints is not None and int(details.zeroPoints) > 0:
        real = real - per_element(int(details.zeroPoints))
    real_values: Array = (real * per_element(int(details.scales))).astype(np.float32)
    return real_values
