"""Finds targets, models and devices by name: a user's own in ./targets, … first, then the shipped ones."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.config import document
from kiln.config.c_words import can_name_model, too_long
from kiln.config.check import choices, validate
from kiln.config.host import resolve_native
from kiln.config.model import Model
from kiln.config.source import CONTROL, FUNCTION
from kiln.config.target import Target
from kiln.errors import KilnError
from kiln.file_kinds import kind_of
from kiln.paths import data_dir, user_dir

_OTHER_FORMATS = {".pt", ".pth", ".h5", ".keras", ".pb", ".safetensors", ".gguf"}
_MODEL_SUFFIXES = {".onnx": "onnx", ".tflite": "tflite", ".pt2": "pt2"}


@dataclass(frozen=True)
class Summary:
    """One line of a list of targets or models."""

    name: str
    description: str
    aliases: tuple[str, ...]
    path: Path


def load_target(name: str | os.PathLike[str]) -> Target:
    """Load the target called `name`, or the .yaml file `name`. Raises KilnError with file and line."""
    path = _find(str(name), "target")
    read = document.read(path)
    if isinstance(read.data, dict):
        _refuse_name(read)
        read.data = {"name": path.stem, **resolve_native(read.data)}
        _anchor_libraries(read.data, path.parent)
    return validate(Target, read)


def load_variant(name: str) -> Target:
    """The target of the given name without its variants, or of `name:variant` with that variant alone.

    Raises KilnError as `load_target`.
    """
    target_name, _, variant = name.partition(":")
    target = load_target(target_name)
    return target.for_variant(variant or target.base)


def load_model(name: str | os.PathLike[str]) -> Model:
    """Load a model by name or alias, or by the path of a .yaml, .onnx, .tflite or .pt2 file.

    `package.module:function` is a Python function that returns a PyTorch module.

    Raises KilnError with file and line for an error in the file, and for a file that does not exist.
    """
    text = str(name)
    suffix = Path(text).suffix.lower()
    if suffix in _MODEL_SUFFIXES:
        return _bare_model(Path(text), _MODEL_SUFFIXES[suffix])
    if FUNCTION.fullmatch(text):
        source = {"kind": "python", "function": text}
        return Model.model_validate(
            {"name": _name_of(text.rpartition(":")[2], text), "source": source, "format": "pt2"}
        )
    path = _find(text, "model")
    read = document.read(path)
    if isinstance(read.data, dict):
        _check_stem(path)
        _refuse_name(read)
        read.data = {"name": path.stem, **read.data}
        _default_format(read)
        _anchor_files(read.data, path.parent)
        _anchor_tables(read.data, path.parent)
    return validate(Model, read)


def list_targets() -> list[Summary]:
    """All targets that can be found by name, sorted. An unreadable file is listed with its error."""
    return _list("target")


def list_models() -> list[Summary]:
    """All models that can be found by name, sorted. An unreadable file is listed with its error."""
    return _list("model")


def find_device(name: str | os.PathLike[str]) -> Path:
    """File of the device called `name`, or the .yaml file `name` itself. Raises KilnError if absent."""
    return _find(str(name), "device")


def list_devices() -> list[Summary]:
    """All devices that can be found by name, sorted. An unreadable file is listed with its error."""
    return _list("device")


def identifier(text: str) -> str:
    """`text` as a valid C identifier: `My-Net v2` becomes `my_net_v2`, `main` becomes `m_main`."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "model"
    return name if can_name_model(name) and not name[0].isdigit() else f"m_{name}"


def _name_of(text: str, model: str) -> str:
    """The name of a model without a YAML file, from `text`. Raises KilnError where it is too long."""
    name = identifier(text)
    fault = too_long(name)
    if fault is not None:
        raise KilnError(f"model '{model}': {fault}")
    return name


def _bare_model(path: Path, kind: str) -> Model:
    if not path.is_file():
        raise KilnError(f"model '{path}': {_no_file(path)}")
    full = str(path.resolve())
    if CONTROL.search(full):
        raise KilnError(f"model '{path}': control characters in the path {full!r}; rename the file or folder")
    source = {"kind": "file", "path": full}
    return Model.model_validate({"name": _name_of(path.stem, str(path)), "source": source, "format": kind})


def _function_meant(name: str) -> str:
    """The name package.module:function that `name`, such as `nets/vision.py:small`, comes near to."""
    path, _, function = name.rpartition(":")
    module = path.removesuffix(".py").strip("./").replace("/", ".")
    parts = [*module.split("."), function or "function"]
    return f"{module}:{parts[-1]}" if all(part.isidentifier() for part in parts) else "nets.vision:small"


def _find(name: str, kind: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise KilnError(f"{kind} '{name}': {_no_file(path)}")
        return path.resolve()
    files = _files(kind)
    if name in files:
        return files[name]
    if kind == "target" and name.replace("-", "_") in files:
        return files[name.replace("-", "_")]
    names = dict(files)
    for summary in _list(kind):
        for alias in summary.aliases:
            names.setdefault(alias, summary.path)
    if name in names:
        return names[name]
    suffix = Path(name).suffix
    if kind == "model" and (suffix in _OTHER_FORMATS or _is_path(name)):
        raise KilnError(f"model '{name}': {_unknown_format(Path(name))}")
    if kind == "model" and ":" in name:
        raise KilnError(
            f"model '{name}': a PyTorch model is package.module:function, such as '{_function_meant(name)}'"
        )
    hint = f", or a path to a .yaml{', .onnx, .tflite or .pt2' if kind == 'model' else ''} file"
    raise KilnError(f"unknown {kind} '{name}'{choices(name, sorted(names))}{hint}")


def _is_path(name: str) -> bool:
    """Whether a file or folder `name` exists; a folder counts only if the name cannot be a model's."""
    path = Path(name)
    return path.is_file() or (path.exists() and (bool(path.suffix) or "/" in name))


def _no_file(path: Path) -> str:
    """The reason why file `path` cannot be read: a broken link, or no such file."""
    if path.is_dir():
        return "a folder, not a file"
    return "neither a file nor a folder" if path.exists() else "no such file"


def _unknown_format(path: Path) -> str:
    """The fault of `path`, which is not a model file: it is missing, a folder, or of an unknown format."""
    if not path.is_file() and not path.is_dir():
        return _no_file(path) + f"; allowed: {', '.join(_MODEL_SUFFIXES)}"
    try:
        kind = kind_of(path)
    except OSError as error:
        return f"cannot read: {error.strerror}"
    if kind is None and path.is_dir():
        kind = "a folder, not a file"
    description = f"unknown format '{path.suffix}'" if kind is None else kind
    return f"{description}; allowed: {', '.join(_MODEL_SUFFIXES)}"


def _files(kind: str) -> dict[str, Path]:
    """Files of all targets, models or devices by name; a user's file hides a shipped one of the same name."""
    files: dict[str, Path] = {}
    folders = [Path.cwd() / f"{kind}s", data_dir(f"{kind}s")]
    if kind == "device":  # devices belong to a user, not to a project
        folders.insert(1, user_dir() / "devices")
    for folder in folders:
        for path in sorted(folder.glob("*.yaml")):
            files.setdefault(path.stem, path.resolve())
    return files


def _list(kind: str) -> list[Summary]:
    summaries = []
    for name, path in sorted(_files(kind).items()):
        try:
            data = document.read(path).data
        except KilnError as error:
            data = {"description": f"cannot be used: {error}"}
        data = data if isinstance(data, dict) else {}
        aliases = data.get("aliases")
        alias_names = tuple(str(alias) for alias in aliases) if isinstance(aliases, list) else ()
        description = " ".join(str(data.get("description") or "").split())
        summaries.append(Summary(name, description, alias_names, path))
    return summaries


def _check_stem(path: Path) -> None:
    if not re.fullmatch("[a-z][a-z0-9_]*", path.stem):
        raise KilnError(
            f"{document.shorten(path)}: the file's name is the model's: lower-case letters, digits and _ "
            f"expected, a letter first, got '{path.stem}'; rename the file, to {identifier(path.stem)}.yaml "
            "for example"
        )


def _refuse_name(read: document.Document) -> None:
    if "name" in read.data:
        raise read.error(("name",), "not a key of this file; the file's own name is the name")


def _default_format(read: document.Document) -> None:
    """Set the key `format` where the file leaves it out. Raises KilnError where nothing says the format."""
    data, source = read.data, read.data.get("source")
    if "format" in data or not isinstance(source, dict):
        return
    if source.get("kind") == "generate":
        data["format"] = "onnx"
    if source.get("kind") == "python":
        data["format"] = "pt2"
    suffix = Path(str(source.get("path", ""))).suffix.lower()
    if suffix in _MODEL_SUFFIXES:
        data["format"] = _MODEL_SUFFIXES[suffix]
    elif source.get("kind") in ("file", "pypi") and isinstance(source.get("path"), str):
        raise read.error(
            ("source", "path"),
            f"'{source['path']}' ends in none of {', '.join(_MODEL_SUFFIXES)}: add the key 'format', "
            f"allowed: {', '.join(_MODEL_SUFFIXES.values())}",
        )


def _anchor_libraries(data: dict[str, Any], folder: Path) -> None:
    """Make the folders of libraries absolute: they are relative to the YAML file."""
    libraries = data.get("libraries")
    if isinstance(libraries, dict):
        data["libraries"] = {
            name: os.path.normpath(folder / path) if isinstance(path, str) else path
            for name, path in libraries.items()
        }


def _anchor_tables(data: dict[str, Any], folder: Path) -> None:
    """Make the paths of the dimensions' CSV files absolute: they are relative to the YAML file."""
    dims = data.get("dims")
    for dim in dims.values() if isinstance(dims, dict) else ():
        for key in ("traffic", "costs"):
            if isinstance(dim, dict) and isinstance(dim.get(key), str):
                dim[key] = os.path.normpath(folder / dim[key])


def _anchor_files(value: Any, folder: Path) -> None:
    """Make the path of every `kind: file` source absolute: it is relative to the YAML file."""
    if isinstance(value, dict):
        if value.get("kind") == "file" and isinstance(value.get("path"), str):
            value["path"] = os.path.normpath(folder / value["path"])
        for item in value.values():
            _anchor_files(item, folder)
    elif isinstance(value, list):
        for item in value:
            _anchor_files(item, folder)
