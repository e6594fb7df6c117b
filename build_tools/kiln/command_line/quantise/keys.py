"""The YAML file of a quantised model: the keys of the float model that hold for it as well."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kiln.config import Model, sizes
from kiln.config.library import identifier
from kiln.files import atomic_write

# The file's own keys, the part that the quantised file already is, and limits and types of a float model.
_LEFT_OUT = ("name", "aliases", "source", "format", "cut", "tolerance", "weights")


def write_keys(model: Model, out: Path) -> Path | None:
    """Write a YAML file next to the quantised model `out`; returns its path, or None if there are no keys to
    write.

    `model` is the float model, whose ranges of sizes, state, special cases and settings hold for the
    quantised one: inputs and outputs are the same. An existing file is not overwritten, as it may have been
    edited. Paths of data files are relative to the new file.
    """
    content = model.model_dump(mode="json", exclude_unset=True)
    keys = {key: value for key, value in content.items() if key not in _LEFT_OUT}
    described = out.with_name(f"{identifier(out.stem)}.yaml")
    if not keys:
        return None
    if not described.exists():
        folder = out.parent.resolve()
        text = yaml.safe_dump(
            {"source": {"kind": "file", "path": out.name}, **_readable(keys, folder)},
            sort_keys=False, default_flow_style=None, allow_unicode=True,
        )  # fmt: skip
        atomic_write(described, text)
    return described


def _readable(value: Any, folder: Path) -> Any:
    """Keys as a person writes them: sizes as text, paths relative to `folder`."""
    if isinstance(value, Mapping):
        return {key: _entry(key, item, folder) for key, item in value.items()}
    return [_readable(item, folder) for item in value] if isinstance(value, list) else value


def _entry(key: str, item: Any, folder: Path) -> Any:
    if key == "shape" and isinstance(item, list):
        return [sizes.show(size) if isinstance(size, list) else size for size in item]
    if key in ("path", "traffic", "costs") and isinstance(item, str) and Path(item).is_absolute():
        return os.path.relpath(item, folder)
    return _readable(item, folder)
