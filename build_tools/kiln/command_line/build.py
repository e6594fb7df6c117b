"""Builds a bundle from Python, as the command `kiln build` does: in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.command_line.own_process import run_kiln
from kiln.config.check import choices
from kiln.errors import KilnError, path_of
from kiln.files import atomic_write, make_build_folder, read_json
from kiln.paths import listed_names
from kiln.runtime import Network, load
from kiln.runtime.notebook import report_frame
from kiln.scons.options import BUNDLES, OPTIONS, RESULTS
from kiln.scratch import scratch_folder

COPIES = Path("build", ".copies")


@dataclass(frozen=True)
class BuiltBundle:
    """A finished bundle in `folder`. A notebook shows its report.

    `interface`: the file with the inputs, outputs and kept values of the model, as a record of
    kiln.config.interface.
    """

    folder: Path
    interface: Path

    def load(
        self, threads: int = 1, gpu: int = 0, variant: str | None = None, contents: bool = False
    ) -> Network:
        """Load the bundle as a Python function; see `kiln.load`."""
        return load(self.folder, threads, gpu, variant, contents)

    def _repr_html_(self) -> str:
        """The report of the bundle in a frame of its own."""
        return report_frame(self.folder)


def build(
    model: Any,
    target: str = "host",
    folder: str | os.PathLike[str] = ".",
    name: str = "model",
    args: Any = None,
    dynamic_shapes: Any = None,
    **options: str,
) -> BuiltBundle:
    """Build `model` for `target` below `folder`, in build/TARGET/MODEL.

    `model` is a model's name, the path of a model file or of its YAML file, or, called `name`, an
    `onnx.ModelProto`, a torch.export.ExportedProgram or a torch.nn.Module. A module is exported for the
    example inputs `args`, a tuple or a dict of tensors, with the dynamic sizes `dynamic_shapes`; both are
    arguments of torch.export.export, and each torch.export.Dim becomes a dimension of the model. `options`:
    of the command `build`, such as precision="fp16" or byoc="none". Raises KilnError with the one line that
    the command prints.
    """
    folder = path_of(folder, "build: folder", "'.'")
    if not folder.is_dir():
        raise KilnError(f"build: folder {folder}: no such folder; make it first")
    target = _text("target", target)
    words = [f"{key}={_text(key, value)}" for key, value in options.items() if value is not None]
    path = _text("model", _model_word(model, folder, name, args, dynamic_shapes))
    for word in (path, target):
        if len(listed_names(word)) != 1:
            raise KilnError(f"build: '{word}': one model and one target are allowed")
    return _built([f"model={path}", f"target={target}", *words], folder)[0]


def build_copy(configuration: str | Path, target: str, **options: str) -> BuiltBundle:
    """Build a copy of a model, or a part of one, that a command has made; `configuration` is its file.

    The bundle is built in COPIES/TARGET/NAME, apart from the bundles that the user asks for and deploys.
    """
    return build_copies([configuration], target, **options)[0]


def build_copies(configurations: Sequence[str | Path], target: str, **options: str) -> list[BuiltBundle]:
    """Build several copies in one build, which takes less time than one after the other; see `build_copy`."""
    settings = {"model": ",".join(map(str, configurations)), "target": target, **options}
    return _built([f"{key}={value}" for key, value in settings.items()], Path(), {BUNDLES: str(COPIES)})


def _built(
    words: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> list[BuiltBundle]:
    """Run the command with `words` in `folder`; returns the bundles that it has built, in their order."""
    with scratch_folder("build") as scratch:
        listed = Path(scratch, "results.json")
        done = run_kiln(words, folder, {**os.environ, **(environment or {}), RESULTS: str(listed)})
        parts = read_json(listed) if listed.is_file() else []
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["the build failed"]
        raise KilnError(lines[-1].removeprefix("kiln: error: "))
    built = [part["files"] for part in parts if part["goal"] == "bundle"]
    return [
        BuiltBundle((folder / files["folder"]).resolve(), (folder / files["interface"]).resolve())
        for files in built
    ]


def _text(name: str, value: Any) -> str:
    """The value of option `name` as a word of the command line. Raises KilnError for another type."""
    if name not in OPTIONS:
        raise KilnError(f"unknown option '{name}'{choices(name, OPTIONS)}")
    if isinstance(value, bool) or not isinstance(value, (str, int, os.PathLike)):
        raise KilnError(f"build: {name} of type {type(value).__name__}, a text is expected: {OPTIONS[name]}")
    text = str(value)
    if not text.strip() or "\0" in text:
        raise KilnError(f"build: {name}={text!r}, expected: {OPTIONS[name]}")
    return text


def _model_word(model: Any, folder: Path, name: str, args: Any, dynamic_shapes: Any) -> str:
    """The value of `model=`: a model in memory is written to build/.python below `folder`."""
    of_torch = _is_a(model, "torch.nn.modules.module", "Module")
    for argument, value in (("args", args), ("dynamic_shapes", dynamic_shapes)):
        if value is not None and not of_torch:
            raise KilnError(
                f"build: {argument} are for a torch.nn.Module, the model is of type {type(model).__name__}"
            )
    if isinstance(model, (str, os.PathLike)) and isinstance(os.fspath(model), str):
        if "\0" in os.fspath(model):
            raise KilnError(f"build: model {os.fspath(model)!r}: no path has a null byte")
        return str(Path(model).absolute()) if Path(model).is_file() else os.fspath(model)
    if not (isinstance(name, str) and name.isidentifier()):
        raise KilnError(f"build: name '{name}' must be a C identifier")
    if of_torch or _is_a(model, "torch.export.exported_program", "ExportedProgram"):
        return _write_model(folder, f"{name}.pt2", _torch_archive(model, args, dynamic_shapes))
    if not hasattr(model, "SerializeToString"):
        allowed = "a name, a path, an onnx.ModelProto, a torch.nn.Module or an ExportedProgram"
        raise KilnError(f"build: a model of type {type(model).__name__}, allowed is {allowed}")
    return _write_model(folder, f"{name}.onnx", model.SerializeToString())


def _is_a(model: Any, module: str, name: str) -> bool:
    """Whether `model` is an instance of a class of a library that need not be installed."""
    return any((kind.__module__, kind.__name__) == (module, name) for kind in type(model).__mro__)


def _write_model(folder: Path, name: str, content: bytes) -> str:
    """Write a model file to build/.python below `folder`; returns its path relative to `folder`."""
    file = Path("build", ".python", name)
    make_build_folder(folder / file.parent)
    atomic_write(folder / file, content)
    return str(file)


def _torch_archive(model: Any, args: Any, dynamic_shapes: Any) -> bytes:
    """The .pt2 archive of a PyTorch module or program. A module keeps its modes, training or inference."""
    from kiln.frontend.torch import trace_stage

    if not hasattr(model, "modules"):
        return trace_stage.saved("build", model)
    if args is None:
        raise KilnError("build: a torch.nn.Module needs example inputs: kiln.build(module, args)")
    if not isinstance(args, (tuple, list, dict)) and not _is_a(args, "torch", "Tensor"):
        raise KilnError(
            f"build: args is of type {type(args).__name__}, allowed: a tensor, a tuple or a dict of tensors"
        )
    modes = [(module, module.training) for module in model.modules()]
    try:
        return trace_stage.export("build", model, args, dynamic_shapes)
    finally:
        for module, training in modes:
            module.training = training
