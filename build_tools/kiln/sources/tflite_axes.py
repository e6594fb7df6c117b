"""TFLite files whose tensors of one axis are quantised along an axis that they do not have.

Early converters gave biases the axis of their weights, 3 of a depthwise convolution. TensorFlow Lite Micro
runs such files, its example of person detection among them, and LiteRT refuses them. A tensor with one axis
can only be quantised along that one, so the `fetch` stage says 0 there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kiln.files import atomic_write

_AXIS = 16  # offset of the field quantized_dimension in the table's list of fields


def write_mended(path: Path, out: Path) -> bool:
    """Write a TFLite file with such tensors to `out`, with axis 0 for them; return whether there are any.

    Writes nothing for another file, damaged ones included, which later stages reject.
    """
    if path.suffix != ".tflite":
        return False
    import tflite

    content = bytearray(path.read_bytes())
    try:
        places = list(_wrong_axes(tflite.Model.GetRootAsModel(content, 0), len(content)))
        for place in places:
            struct.pack_into("<i", content, place, 0)
    except Exception:  # the reader of a damaged file raises many kinds
        return False
    if places:
        atomic_write(out, bytes(content))
    return bool(places)


def _wrong_axes(model: Any, most: int) -> Iterator[int]:
    """Places in the file of the axes of such tensors. `most`: bytes of the file, more than it has tensors."""
    for graph in map(model.Subgraphs, range(min(model.SubgraphsLength(), most))):
        for tensor in map(graph.Tensors, range(min(graph.TensorsLength(), most))):
            quantisation = tensor.Quantization()
            if quantisation is None or tensor.ShapeLength() != 1 or quantisation.QuantizedDimension() == 0:
                continue
            if quantisation.ScaleLength() in (1, tensor.Shape(0)):
                table = quantisation._tab
                yield table.Offset(_AXIS) + table.Pos
