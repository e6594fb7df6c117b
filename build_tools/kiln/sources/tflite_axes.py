"""TFLite files whose tensors of one axis are quantised along an axis that they do not have.

Early converters gave biases the axis of their weights, 3 of a depthwise convolution. TensorFlow Lite Micro
runs such files, its example of person detection among them, and LiteRT refuses them. A tensor with one axis
can only be quantised along axis 0, so the `fetch` stage writes 0 there. Data behind the
FlatBuffer is moved into it first (kiln.sources.tflite_buffers).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kiln.files import atomic_write
from kiln.sources.tflite_buffers import with_data_inside

_AXIS_FIELD = 16  # offset of the field quantized_dimension in the table's list of fields


def write_mended(path: Path, out: Path) -> bool:
    """Write the TFLite file `path` to `out` with mended axes and all data inside of the FlatBuffer.

    Returns whether that changes the file; writes nothing otherwise, nor for a damaged file, which later
    stages reject. Raises KilnError as `with_data_inside` does.
    """
    if path.suffix != ".tflite":
        return False
    import tflite

    given = path.read_bytes()
    content = bytearray(with_data_inside(path, given))
    try:
        offsets = list(_offsets_of_wrong_axes(tflite.Model.GetRootAsModel(content, 0), len(content)))
        for offset in offsets:
            struct.pack_into("<i", content, offset, 0)
    except Exception:  # the reader of a damaged file raises many kinds
        return False
    if content == given:
        return False
    atomic_write(out, bytes(content))
    return True


def _offsets_of_wrong_axes(model: Any, file_bytes: int) -> Iterator[int]:
    """Offsets in the file, in bytes, of the axes to mend.

    `file_bytes`: the file's size; it bounds the counts of graphs and tensors, which may be damaged.
    """
    for graph in map(model.Subgraphs, range(min(model.SubgraphsLength(), file_bytes))):
        for tensor in map(graph.Tensors, range(min(graph.TensorsLength(), file_bytes))):
            quantisation = tensor.Quantization()
            if quantisation is None or tensor.ShapeLength() != 1 or quantisation.QuantizedDimension() == 0:
                continue
            if quantisation.ScaleLength() in (1, tensor.Shape(0)):
                table = quantisation._tab
                yield table.Offset(_AXIS_FIELD) + table.Pos
