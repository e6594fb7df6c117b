"""Lists of targets, models, devices, backends and own operators, and their text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from kiln.byoc import registry
from kiln.config import list_devices, list_models, list_targets
from kiln.operators.registry import operators


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


def _operators() -> list[dict[str, object]]:
    """The operators of the user; the key `file` is the Python file that declares one."""
    return [
        {
            "name": ".".join(filter(None, (operator.operator.domain, operator.operator.name))),
            "description": ", ".join(filter(None, (operator.operator.description, operator.file))),
            "file": operator.file,
        }
        for operator in operators()
    ]


LISTS: dict[str, Callable[[], Sequence[dict[str, object]]]] = {
    "targets": _targets,
    "models": _models,
    "devices": _devices,
    "backends": _backends,
    "operators": _operators,
}

# What `kiln list` prints for a kind without entries.
EMPTY = {
    **{kind: f"no {kind}" for kind in LISTS},
    "operators": "no operators of your own: there are none in ./operators (docs/own-operator.md)",
}


def listing(entries: Sequence[dict[str, object]]) -> str:
    """The entries of a list as aligned text."""
    width = max((len(str(entry["name"])) for entry in entries), default=0) + 2
    lines = []
    for entry in entries:
        first, *rest = textwrap.wrap(str(entry["description"]), 110 - width) or [""]
        lines.append(f"{entry['name']!s:<{width}}{first}".rstrip())
        lines += [f"{'':<{width}}{line}" for line in rest]
    return "\n".join(lines)
