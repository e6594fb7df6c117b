"""Lists the files with the results of a build in the file that KILN_RESULTS names, for `kiln … --json`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kiln.files import write_json
from kiln.scons.model_build import ModelBuild
from kiln.scons.options import RESULTS

_entries: list[dict[str, Any]] = []


def add(unit: ModelBuild, goal: str, data: str | None, **files: Path) -> None:
    """Add the results of a goal: `files` by purpose, of which the JSON file `data` has the figures."""
    _entries.append(
        {
            "goal": goal,
            "model": unit.name,
            "target": unit.target.name,
            "device": unit.options.device,
            "files": {purpose: str(path) for purpose, path in files.items()},
            "data": data,
        }
    )
    path = os.environ.get(RESULTS)
    if path:
        write_json(Path(path), _entries)
