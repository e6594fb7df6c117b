"""TFLite files whose weights follow the FlatBuffer, as ai-edge-quantizer writes all weights but the smallest.

A buffer of such a file has an offset in the file and a size in bytes in place of its data, and so may the
options of a custom operator. FlatBuffers end at 2 GiB; data behind them may exceed it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kiln.errors import KilnError

_MOST = (1 << 31) - 1  # bytes of a FlatBuffer


def with_data_inside(path: Path, content: bytes) -> bytes:
    """The file with all data inside the FlatBuffer; `content` itself where there is none behind it.

    A damaged file stays as it is, for later stages to reject. Raises KilnError for data beyond the end of the
    file `path`, and for more data than a FlatBuffer can hold.
    """
    import tflite

    try:
        model = tflite.Model.GetRootAsModel(content, 0)
        buffers = [model.Buffers(index) for index in range(min(model.BuffersLength(), len(content)))]
        if not any(buffer.Offset() for buffer in buffers) and not _has_large_options(model):
            return content
    except Exception:  # the reader of a damaged file raises many kinds
        return content
    return _packed(path, content)


def _has_large_options(model: Any) -> bool:
    graphs = map(model.Subgraphs, range(model.SubgraphsLength()))
    return any(
        graph.Operators(index).LargeCustomOptionsOffset()
        for graph in graphs
        for index in range(graph.OperatorsLength())
    )


def _packed(path: Path, content: bytes) -> bytes:
    import flatbuffers  # type: ignore[import-untyped]
    from ai_edge_litert import schema_py_generated as schema

    try:
        model = schema.ModelT.InitFromPackedBuf(content, 0)
    except Exception as error:  # the reader raises exceptions of many types
        raise KilnError(f"{path}: not a complete TFLite model: truncated or damaged") from error
    if len(content) > _MOST:
        raise KilnError(
            f"{path}: {len(content)} bytes, allowed for a TFLite file: {_MOST}; divide the model, or "
            "quantise its weights"
        )
    for buffer in model.buffers or []:
        if buffer.offset > 1:  # writers that do not know the place yet write 1
            buffer.data = _bytes_at(path, content, buffer.offset, buffer.size)
        buffer.offset = buffer.size = 0
    for op in (op for graph in model.subgraphs or [] for op in graph.operators or []):
        if op.largeCustomOptionsOffset > 1:
            op.customOptions = _bytes_at(
                path, content, op.largeCustomOptionsOffset, op.largeCustomOptionsSize
            )
        op.largeCustomOptionsOffset = op.largeCustomOptionsSize = 0
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _bytes_at(path: Path, content: bytes, offset: int, size: int) -> Any:
    if offset + size > len(content):
        raise KilnError(
            f"{path}: not a complete TFLite model: its data ends at byte {offset + size}, the file at "
            f"{len(content)}"
        )
    return np.frombuffer(content, np.uint8, size, offset)
