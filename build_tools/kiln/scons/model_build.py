"""One model on one target: paths of the files between the stages, and slices of the configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kiln.config import (
    Model,
    Target,
    canonical_json,
    load_model,
    load_target,
    stage_config,
    target_config,
)
from kiln.config.byoc import Byoc, read
from kiln.config.faults import first_fault
from kiln.config.library_choices import LibraryChoices
from kiln.config.precisions import FIRST_ARCH
from kiln.config.source import FileSource
from kiln.errors import KilnError
from kiln.paths import command_name
from kiln.scons import exported
from kiln.scons.given_dims import with_dims
from kiln.scons.session import session
from kiln.scons.stage import text_file
from kiln.sources.onnx_data import external_files
from kiln.sources.torch_model import Shapes
from kiln.toolchain import compiler_command

if TYPE_CHECKING:
    from kiln.byoc.backend import Backend

_models: dict[tuple[str, str | None], Model] = {}  # by name or path, and the option `dims`
_targets: dict[str, Target] = {}
_functions: dict[str, str] = {}  # by model, the Python function that returns it
_shapes: dict[str, Shapes] = {}  # by model that is a part of a PyTorch program, the shapes of its inputs
_sources: dict[str, dict[str, Any]] = {}
_printed: set[str] = set()


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build that neither the model's file nor the target's file contains.

    `dump`: write the IR after each pass. `byoc`: the external libraries; `precision`, `dims`: in place of the
    model's own. `device`: where the bundle runs, and where `byoc=auto` times subgraphs; None: on the target's
    runner. `variants`: the target's variants to build, separated by commas; None: the variants that the model
    names, or all.
    """

    dump: bool = False
    byoc: str | None = None
    precision: str | None = None
    dims: str | None = None
    device: str | None = None
    variants: str | None = None


class ModelBuild:
    """One model on one target.

    `of_model` is the folder of files that all targets share, `folder` the folder of files for this target.
    `auto` is the reason, in one line, why `byoc=auto` uses no library; None where it uses one.
    """

    def __init__(self, model: str, target: str, options: BuildOptions) -> None:
        self.options = options
        self._words = [model, "--target", target]
        self.model = _model(model, options.dims)
        self.target = _with_variants(_target(target), self.model, options.variants)
        if options.precision is not None:
            self.model = self.model.model_copy(update={"precision": options.precision})
        _check_combination(self.model, self.target)
        work = Path(session().work)
        self.name, self.subject = self.model.name, f"{self.target.name}/{self.model.name}"
        session().limits[self.name] = self.model.limits
        self.of_model = work / "models" / self.name
        of_variants = "" if self.target is _target(target) else "@" + "+".join(self.target.variant_names)
        self.of_target = work / f"{self.target.name}{of_variants}"
        self.folder = self.of_target / self.name
        self.bundle = Path(session().bundles) / self.target.name / self.name
        self.threads = self.model.threads or self.target.threads
        self.source = self.of_model / f"source.{self.model.format}"
        self.exported = self.of_model / "source.onnx"  # by the stage `export`, of an archive
        self.limits = self.of_model / "limits.json"  # by the stage `limits`
        self.program_sizes = json.dumps(_shapes.get(self.name, {}))  # for the stage `cut`
        self.source_name = _functions.get(self.name) or _path_for_errors(self.model, str(self.source))
        self.byoc = _byoc(options.byoc) or self.model.byoc or self.target.byoc or Byoc()
        if self.target.libraries:
            from kiln.byoc.registry import check_folders  # only where a library is named

            check_folders(self.target)
        self.backends, self.absent = _backends(self.byoc, self.target) if self.byoc.is_used else ([], {})
        self.auto = _without_libraries(self) if self.byoc.auto and not self.backends else None

    def slice(self, name: str) -> Path:
        """A slice of the model's configuration, as a file that changes only when the slice does."""
        return text_file(self.of_model / f"{name}.json", canonical_json(stage_config(self.model, name)))

    def target_json(self) -> Path:
        """The whole target as a file."""
        return text_file(self.of_target / "target.json", canonical_json(target_config(self.target)))

    @property
    def compare_command(self) -> str | None:
        """The command that names the first tensor of this model that is wrong.

        None where `compare` refuses the model, or computes it with another precision.
        """
        if self.options.precision is not None:
            return None
        flags = {"--device": self.options.device, "--byoc": self.options.byoc, "--dims": self.options.dims}
        options = [word for flag, value in flags.items() if value is not None for word in (flag, value)]
        return shlex.join([command_name(), "compare", *self._words, *options])

    @property
    def backend_names(self) -> list[str]:
        """The names of the backends to use."""
        return [backend.name for backend in self.backends]

    def byoc_json(self) -> Path:
        """The backends to use, and with `byoc=auto` the reasons why others are not used, as a file."""
        content = LibraryChoices(
            byoc=self.byoc,
            backends=self.backend_names,
            absent=dict(self.absent) if self.byoc.auto else {},
            # A target's globs are for many models; a copy of a model may have other subgraphs than the model.
            globs_of_model=self.byoc is self.model.byoc and not session().builds_copies,
        )
        return text_file(self.folder / "byoc.json", canonical_json(content.model_dump(mode="json")))

    def no_choice_file(self, path: Path) -> Path:
        """The result of `byoc=auto` where there is no backend to use, as the file `path`."""
        content = LibraryChoices(byoc=self.byoc, backends=[], summary=self.auto or "")
        return text_file(path, canonical_json(content.model_dump(mode="json")))

    def dump(self, folder: Path) -> Path | None:
        """`folder`, if the IR after each pass is to be written."""
        return folder if self.options.dump else None

    def local_files(self, name: str) -> list[Any]:
        """The user's files that the slice `name` names (sources of kind `file`), as SCons nodes.

        Includes the external data files that hold a model's weights.
        """
        sources = [Path(name) for name in _file_sources(stage_config(self.model, name))]
        paths = [*sources, *(path for name in sources for path in external_files(name))]
        # A missing file is reported by the stage, with the key that names it.
        return [session().file(str(path)) for path in paths if path.is_file()]


def _check_combination(model: Model, target: Target) -> None:
    """Raise KilnError where the target does not support the model's threads, parameters or precision."""
    if model.threads not in (None, "none") and not target.system.threads:
        raise KilnError(
            f"model '{model.name}': threads: '{model.threads}': target '{target.name}' has no threads, "
            "allowed: none"
        )
    storage = model.params.storage or target.params_storage
    if storage == "section" and target.system.format in ("coff", "macho"):
        raise KilnError(
            f"model '{model.name}': params.storage: 'section' on target '{target.name}': object files for "
            f"{target.system.name} cannot have sections of any name, allowed: embedded, file"
        )
    if storage != "section" and "section" in model.params.model_fields_set:
        raise KilnError(
            f"model '{model.name}': params.section: '{model.params.section}', but params.storage is "
            f"'{storage}': set params.storage: section, or remove the key"
        )
    if model.weights is not None and target.cuda is not None:
        raise KilnError(
            f"model '{model.name}': weights: {model.weights.type} is for CPUs, '{target.name}' is a GPU: "
            "remove the key, or use precision: fp16"
        )
    if model.precision == "fp32":
        return
    if target.cuda is None:
        raise KilnError(
            f"model '{model.name}': precision {model.precision} is for targets with an NVIDIA GPU, "
            f"'{target.name}' has none; allowed: fp32"
        )
    first = FIRST_ARCH.get(model.precision, 0)
    if int(target.cuda.oldest.removeprefix("sm_")) < first:
        raise KilnError(
            f"model '{model.name}': precision {model.precision} is for GPUs from sm_{first} on, "
            f"'{target.name}' has {target.cuda.oldest}; allowed: fp32, fp16"
        )


def _with_variants(target: Target, model: Model, names_given: str | None) -> Target:
    """The target with the variants that the command line (`names_given`) or the model names, or with all."""
    names, where = model.variants, f"model '{model.name}': variants"
    if names_given is not None:
        names, where = [name.strip() for name in names_given.split(",") if name.strip()], "option 'variants'"
    if names is None or set(names) == set(target.variant_names):
        return target
    try:
        return target.with_variants(names)
    except ValueError as error:
        raise KilnError(f"{where}: {error}") from None


def _byoc(text: str | None) -> Byoc | None:
    """Parse `byoc=` of the command line; None where it is not set."""
    if text is None:
        return None
    try:
        return Byoc.model_validate(read(text))
    except ValidationError as error:
        raise KilnError(f"option 'byoc': {first_fault(error)}") from None


def _backends(byoc: Byoc, target: Target) -> tuple[list[Backend], dict[str, str]]:
    """The backends to use, and by name the reason why `auto` cannot use a backend.

    Raises KilnError where a backend that the user named, or its library, is not available for the target.
    """
    from kiln.byoc.libraries.find import locate
    from kiln.byoc.registry import selected_backends  # only where a library is asked for

    usable, absent = [], {}
    for backend in selected_backends(byoc, target):
        try:
            locate(backend, target)
            usable.append(backend)
        except KilnError as error:
            if byoc.named:
                raise
            absent[backend.name] = str(error)
    return usable, absent


def _without_libraries(unit: ModelBuild) -> str:
    """The reason why `byoc=auto` has no backend to use. Prints it, once in a build."""
    from kiln.byoc.registry import reason_for_no_backend

    reason = reason_for_no_backend(unit.target, unit.absent)
    if reason not in _printed:
        _printed.add(reason)
        session().console.line(f"kiln: {reason}")
    return reason


def _path_for_errors(model: Model, copy: str) -> str:
    """The model's path for error messages: the user's own path for a source of kind `file`, else `copy`."""
    if not isinstance(model.source, FileSource):
        return copy
    path = Path(model.source.path)
    text = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
    return f"./{text}" if text.startswith("-") else text  # or a stage would read it as an option


def _file_sources(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if value.get("kind") == "file" and isinstance(value.get("path"), str):
            yield value["path"]
        for item in value.values():
            yield from _file_sources(item)
    elif isinstance(value, list):
        for item in value:
            yield from _file_sources(item)


def _model(name: str, dims: str | None) -> Model:
    if (name, dims) not in _models:
        model = load_model(name)
        model = exported.resolve(model if dims is None else with_dims(model, dims), _functions, _shapes)
        source = {**model.source.model_dump(), "dims": dims}
        if _sources.setdefault(model.name, source) != source:
            raise KilnError(f"model '{name}': another model of this build is called '{model.name}' too")
        _models[name, dims] = model
    return _models[name, dims]


def _target(name: str) -> Target:
    if name not in _targets:
        target = load_target(name)
        if target.name == "models":
            raise KilnError(f"target '{name}': a target cannot be called 'models'")
        compiler_command(target)  # raises now, not after minutes, when the compiler is missing
        _targets[name] = target
    return _targets[name]
