"""The last line of each goal: where the bundle is, and whether there was anything to do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kiln.scons.session import session

_STARTED = time.monotonic()


def bundles(target: Sequence[Any], source: Sequence[Any], env: Any) -> None:
    """Say where the bundles are."""
    seconds = f"built in {time.monotonic() - _STARTED:.1f} s" if session().console.stages else "up to date"
    for node in source:
        if str(node).endswith("manifest.json"):
            session().console.line(f"{Path(str(node)).parent}: {seconds}")


def tests(target: Sequence[Any], source: Sequence[Any], env: Any) -> None:
    """Say which of the tests had passed before and had no reason to be done again."""
    if not session().console.stages:
        for node in source:
            session().console.line(
                f"{Path(str(node)).parent.relative_to(session().work)}: passed before, unchanged"
            )
