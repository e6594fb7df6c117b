"""Lists of targets, models, devices and backends, as text or JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence

from kiln.byoc import registry
from kiln.config import list_devices, list_models, list_targets


def _targets() -> list[dict[str, object]]:
    return [{"name": entry.name, "description": entry.description} for entry in list_targets()]


def _models() -> list[dict[str, object]]:
    return [
        {"name": entry.name, "description": entry.description, "aliases": list(entry.aliases)}
        for entry in list_models()
    ]


def _devices() -> list[dict[str, object]]:
    return [{"name": entry.name, "description": entry.description} for entry in list_devices()]


def _backends() -> list[dict[str, object]]:
    backends = [registry.load(name) for name in registry.names()]
    return [
        {
            "name": backend.name,
            "description": f"{backend.library.name} ({backend.library.licence}), "
            + ("NVIDIA GPUs" if backend.device == "cuda" else ", ".join(backend.archs)),
        }
        for backend in backends
    ]


LISTS: dict[str, Callable[[], Sequence[dict[str, object]]]] = {
    "targets": _targets,
    "models": _models,
    "devices": _devices,
    "backends": _backends,
}


def listing(kind: str, as_json: bool) -> str:
    """The entries of `kind`, one of LISTS: aligned text, or JSON as a list of objects."""
    entries = LISTS[kind]()
    if as_json:
        return json.dumps(entries, indent=1, ensure_ascii=False)
    width = max((len(str(entry["name"])) for entry in entries), default=0) + 2
    lines = []
    for entry in entries:
        first, *rest = textwrap.wrap(str(entry["description"]), 110 - width) or [""]
        lines.append(f"{entry['name']!s:<{width}}{first}".rstrip())
        lines += [f"{'':<{width}}{line}" for line in rest]
    return "\n".join(lines)
