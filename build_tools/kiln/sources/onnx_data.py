"""ONNX models with weights in separate files ("External Tensor Data" in ONNX's documentation).

PyTorch's exporter writes such models. The `fetch` stage combines them, so that later stages read one file.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from kiln.errors import KilnError
from kiln.files import atomic_write

if TYPE_CHECKING:
    import onnx

_LOCATION_KEY = (
    b"location"  # every external tensor has this key; onnx is imported only for files that contain it
)

_LARGEST = 1 << 31  # bytes; protobuf writes and reads less


def external_files(path: Path) -> list[Path]:
    """The files with weights of the model `path`, sorted by name; the model need not be valid.

    File names in a model are untrusted: a name outside the model's folder, or of a device such as /dev/zero,
    which a build would read without end, is left out here and rejected by the stage that reads the weights.
    """
    model = _read(path)
    names = [] if model is None else sorted(str(name) for name in _locations(model) if _is_plain(name))
    return [path.parent / name for name in names if not _is_special(path.parent / name)]


def write_whole(path: Path, out: Path) -> bool:
    """Write the model and its weights as one file to `out`; return whether weights were in separate files.

    Writes nothing if the model is one file already. Raises KilnError for a file of weights that is missing,
    too short or in another folder, and for a model of 2 GiB or more, which one file cannot hold.
    """
    model = _read(path)
    if model is None or not _locations(model):
        return False
    from onnx import load_external_data_for_model

    for name in sorted(_locations(model), key=str):
        if not _is_plain(name) or not (path.parent / str(name)).is_file():
            raise KilnError(
                f"{path}: its weights are in {name!r}, which is not in its folder: put that file next to it, "
                "as the exporter wrote it, or export the model with its weights inside"
            )
    _refuse_large(path, model)
    try:
        load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # ONNX's checker, the file system and NumPy raise different classes
        reason = _cut_off(model, path.parent) or str(error).splitlines()[0]
        raise KilnError(f"{path}: cannot read its weights: {reason}") from error
    atomic_write(out, model.SerializeToString())
    return True


def _refuse_large(path: Path, model: onnx.ModelProto) -> None:
    """Raise KilnError for a model that one file cannot hold, before its weights are read.

    Protobuf's limit is 2 GiB. Damaged entries count as nothing here: reading the weights reports them.
    """
    size = path.stat().st_size
    for tensor in _tensors(model.graph):
        if tensor.data_location == tensor.EXTERNAL:
            about = {item.key: item.value for item in tensor.external_data}
            length = str(about.get("length", ""))
            whole = (path.parent / about["location"]).stat().st_size if "location" in about else 0
            size += min(int(length), whole) if length.isdecimal() else whole
    if size >= _LARGEST:
        raise KilnError(
            f"{path}: with its weights it takes {size:,} bytes, allowed: less than 2 GiB, ONNX's limit for "
            "one file: export it with weights of 16, 8 or 4 bits, or in parts"
        )


def _cut_off(model: onnx.ModelProto, folder: Path) -> str:
    """A description of the first weight that extends beyond the end of its file; empty if there is none."""
    for tensor in _tensors(model.graph):
        about = {item.key: item.value for item in tensor.external_data}
        numbers = [str(about.get(key, 0)) for key in ("offset", "length")]
        if tensor.data_location != tensor.EXTERNAL or not all(text.isdecimal() for text in numbers):
            continue
        end, size = sum(map(int, numbers)), (folder / about["location"]).stat().st_size
        if end > size:
            return (
                f"'{tensor.name}' ends at byte {end:,} of '{about['location']}', which has {size:,} bytes: "
                "copy both files again, or export the model again"
            )
    return ""


def _read(path: Path) -> onnx.ModelProto | None:
    """The model, its external weights not loaded; None if it has none or is not a valid ONNX file."""
    if path.suffix != ".onnx" or not path.is_file() or not path.stat().st_size:
        return None
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(_LOCATION_KEY) < 0:
            return None
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.load(path, load_external_data=False)
    except DecodeError:  # the `import` stage reports the error
        return None


def _is_plain(name: str | bytes) -> bool:
    """Whether a file name stays inside the model's folder.

    protobuf returns bytes for a name that is not valid UTF-8.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    path = PurePath(name)
    return not path.is_absolute() and ".." not in path.parts


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _locations(model: onnx.ModelProto) -> set[str | bytes]:
    """Names of the files with external weights."""
    return {
        entry.value
        for tensor in _tensors(model.graph)
        if tensor.data_location == tensor.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """All constant tensors of a graph and of its subgraphs."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for subgraph in (attribute.g, *attribute.graphs):
                yield from _tensors(subgraph)
