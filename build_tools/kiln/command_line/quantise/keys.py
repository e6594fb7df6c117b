"""The YAML file of a quantised model: the keys of the float model that hold for it as well."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kiln.config import Model, sizes
from kiln.config.library import identifier

# The file's own keys, the part that the quantised file already is, and limits and types of a float model.
_LEFT_OUT = ("name", "aliases", "source", "format", "cut", "tolerance", "weights")


def keys_for(model: Model, out: Path) -> tuple[Path, str] | None:
    """The path and the text of a YAML file next to the quantised model `out`; None if there are no keys.

    `model` is the float model, whose ranges of sizes, state, special cases and settings hold for the
    quantised one: inputs and outputs are the same. Paths of data files are relative to the new file.
    """
    content = model.model_dump(mode="json", exclude_unset=True)
    keys = {key: value for key, value in content.items() if key not in _LEFT_OUT}
    if not keys:
        return None
    text = yaml.safe_dump(
        {"source": {"kind": "file", "path": out.name}, **_readable(keys, out.parent.resolve())},
        sort_keys=False, default_flow_style=None, allow_unicode=True,
    )  # fmt: skip
    return out.with_name(f"{identifier(out.stem)}.yaml"), text


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
