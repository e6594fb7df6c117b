"""Lists the files with the results of a build in the file that KILN_RESULTS names, for `kiln … --json`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.files import write_json
from kiln.scons.model_build import ModelBuild
from kiln.scons.options import RESULTS

_entries: list[dict[str, Any]] = []


def add(unit: ModelBuild | None, goal: str, data: str | None, **files: Path) -> None:
    """Add the results of a goal: `files` by purpose; `data` is the purpose of the file with the figures.

    `unit`: the model on its target; None for a goal of no model.
    """
    if unit is None:
        entry(goal, data, files)
    else:
        entry(goal, data, files, unit.name, unit.target.name, unit.options.device)


def entry(
    goal: str,
    data: str | None,
    files: Mapping[str, Path],
    model: str | None = None,
    target: str | None = None,
    device: str | None = None,
) -> None:
    """Add the results of a goal for the named model, target and device; see `add`."""
    named = {purpose: str(path) for purpose, path in files.items()}
    _entries.append(
        {"goal": goal, "model": model, "target": target, "device": device, "files": named, "data": data}
    )
    path = os.environ.get(RESULTS)
    if path:
        write_json(Path(path), _entries)
