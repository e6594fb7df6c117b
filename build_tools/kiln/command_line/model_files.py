"""The file of a model that commands read: its source, or the part of it that the key `cut` describes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kiln.command_line.own_process import run_stage
from kiln.config import Model
from kiln.config.source import FileSource, PythonSource
from kiln.errors import KilnError
from kiln.file_kinds import refuse_other
from kiln.files import atomic_write
from kiln.sources import fetch
from kiln.sources.torch_archive import TRACED, versions
from kiln.sources.torch_model import Shapes, with_sizes, without_shapes
from kiln.stages.model import ExportStage, TraceStage

STAGES = Path("build", ".stages")  # of builds, files between their stages
# Keys of a model's YAML that a copy of the model, made to measure or compare it, leaves out: they say how the
# original is named, described and checked, not what it computes.
_DESCRIPTIVE_KEYS = (
    "aliases", "budget", "labels", "run", "format", "description", "licence", "homepage", "name",
)  # fmt: skip


def keys_of_copy(model: Model, graph: Path, left_out: Iterable[str] = ()) -> dict[str, Any]:
    """The keys of a copy of `model`, made to measure or compare it, whose graph is the file `graph`.

    Without keys that only describe the model, and without those of `left_out`.
    """
    content: dict[str, Any] = model.model_dump(mode="json", exclude_unset=True)
    for key in (*_DESCRIPTIVE_KEYS, *left_out):
        content.pop(key, None)
    content["source"] = {"kind": "file", "path": str(graph.resolve())}
    return content


def write_copy(content: Mapping[str, Any], folder: Path, name: str) -> Path:
    """Write the keys of a copy of a model to `folder`/NAME.yaml; returns the path."""
    path = folder / f"{name}.yaml"
    atomic_write(path, json.dumps(content, indent=1))  # JSON is YAML
    return path


def graph_file(model: Model, folder: Path) -> Path:
    """The file with the graph that is built, as the model's bundles and golden vectors have it.

    A part of a file is written below `folder`, and called like the file; that of a PyTorch model is an ONNX
    file. The source is a file, not a Python function. Raises KilnError for a file that cannot be had, or that
    does not have the part.
    """
    assert not isinstance(model.source, PythonSource)
    source = fetch(model.source)
    if model.cut is None:
        return source
    shapes: Shapes = {}
    part = folder / "part" / source.name
    part.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix.lower() == ".pt2":
        shapes = with_sizes(model, source, source)[1]
        part = part.with_suffix(".onnx")
        source = _exported(source, str(source), folder / "whole.onnx")
    from kiln.frontend.cut_stage import part_of  # TVM takes a second to import

    atomic_write(part, part_of(source, model.cut.model_dump(mode="json"), shapes))
    return part


def graph_of(model: Model, folder: Path, command: str, formats: tuple[str, ...]) -> tuple[Model, Path]:
    """A model and the file with its graph; of a PyTorch model, the model of the ONNX file that it becomes.

    `folder` is for files of the result. `command`, which reads files of `formats` (suffixes), is named in
    errors. The graph of a PyTorch model names its sizes like the dimensions of the result, which is no
    part of it. Raises KilnError for a model of another format, and as `graph_file`.
    """
    if model.format != "pt2":
        source = fetch(model.source)  # type: ignore[arg-type]  # only a PyTorch model is a function
        if source.suffix.lower() not in formats:
            allowed = ", ".join(formats)
            raise KilnError(f"model '{model.name}': {command} accepts {allowed} and .pt2 files")
        refuse_other(source, None, "a TFLite model" if model.format == "tflite" else "an ONNX model")
        return model, graph_file(model, folder)
    out = folder / "part" / f"{model.name}.onnx"
    out.parent.mkdir(parents=True, exist_ok=True)
    archive, called = folder / TRACED, str(folder / TRACED)
    if isinstance(model.source, PythonSource):
        called = model.source.function
        run_stage(TraceStage(function=called, out=archive))
    else:
        archive = fetch(model.source)
        called = str(archive)
    sized, shapes = with_sizes(model, archive, Path(called))
    whole = _exported(archive, called, folder / "whole.onnx")
    from kiln.frontend.cut_stage import named, part_of
    from kiln.frontend.onnx.kept_state import state_of

    if model.cut is None:
        sized = without_shapes(sized, shapes)
        atomic_write(out, named(whole, shapes))
    else:
        atomic_write(out, part_of(whole, model.cut.model_dump(mode="json"), shapes))
    golden = model.golden
    if golden.reference == "torch":
        golden = golden.model_copy(update={"reference": "auto"})
    source_file = FileSource(kind="file", path=str(out.resolve()))
    import onnx

    state = {**state_of(onnx.load(str(out), load_external_data=False)), **sized.state}
    changes: dict[str, Any] = {"source": source_file, "format": "onnx", "cut": None, "golden": golden}
    if state:
        changes["state"] = state
    return sized.model_copy(update=changes), out


def traced_by_build(model: Model) -> Model:
    """The model with the archive that its build in the current folder has made of a Python function.

    The function may return other weights when it is called again. Other models are returned unchanged.
    """
    if not isinstance(model.source, PythonSource):
        return model
    archive = (STAGES / "models" / model.name / TRACED).resolve()
    return model.model_copy(update={"source": FileSource(kind="file", path=str(archive))})


def _exported(archive: Path, called: str, out: Path) -> Path:
    """The ONNX file `out` that PyTorch's exporter makes of an archive."""
    run_stage(ExportStage(source=archive, tools=versions(), called=called, out=out))
    return out
