"""The file of a model that commands read: its source, or the part of it that the key `cut` describes."""

from __future__ import annotations

from pathlib import Path

from kiln.config import Model
from kiln.config.source import PythonSource
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.sources import fetch


def graph_file(model: Model, folder: Path) -> Path:
    """The file with the graph that is built, as the model's bundles and golden vectors have it.

    A part of a file is written below `folder`, and called like the file. The source is a file, not a Python
    function. Raises KilnError for a file that cannot be had, or that does not have the part.
    """
    assert not isinstance(model.source, PythonSource)
    source = fetch(model.source)
    if model.cut is None:
        return source
    if source.suffix.lower() not in (".onnx", ".tflite"):
        raise KilnError(
            f"model '{model.name}': cut: this command cuts .onnx and .tflite files; give the part of "
            f"{source.name} as a file"
        )
    from kiln.frontend.cut_stage import part_of  # TVM takes a second to import

    part = folder / "part" / source.name
    part.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(part, part_of(source, model.cut.model_dump(mode="json")))
    return part
