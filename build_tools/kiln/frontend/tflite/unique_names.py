"""Gives the tensors of a TFLite graph names that differ.

TFLite refers to tensors by number: a file may have two tensors of one name, or tensors with empty names, and
graphs that are moved into the main graph bring names of theirs. TVM's importer refers to them by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tflite

from kiln.frontend.tflite.files import indices, packed, text_of, unpacked


def with_unique_names(path: Path, content: bytes) -> bytes:
    """The file `content` with the number of the tensor added to names that repeat in the main graph.

    Of tensors with the same name, inputs keep it rather than outputs, and outputs rather than others. Raises
    KilnError for a damaged file.
    """
    graph = tflite.Model.GetRootAsModel(content, 0).Subgraphs(0)
    names = [graph.Tensors(index).Name() for index in range(graph.TensorsLength())]
    file_names = [name for name in names if name is not None]
    if len(set(file_names)) == len(file_names):
        return content
    _, model = unpacked(path, content)
    _rename(model.subgraphs[0])
    return packed(model)


def _rename(graph: Any) -> None:
    ports = [*indices(graph.inputs), *indices(graph.outputs)]
    names = {text_of(tensor.name) for tensor in graph.tensors if tensor.name is not None}
    kept: set[str] = set()
    for index in dict.fromkeys([*ports, *range(len(graph.tensors))]):
        tensor = graph.tensors[index]
        if tensor.name is None:
            continue
        name = text_of(tensor.name)
        if name in kept:
            name = f"{name or 'tensor'}_{index}"
            while name in names:
                name += "_"
            names.add(name)
            tensor.name = name
        kept.add(name)
