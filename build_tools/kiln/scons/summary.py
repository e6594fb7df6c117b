"""The last lines of goals: the paths of the outputs, and whether anything was built."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kiln.files import read_json
from kiln.scons.session import session

_STARTED = time.monotonic()


def bundles(target: Sequence[Any], source: Sequence[Any], env: Any) -> None:
    """Print the folder of each bundle, and the time of the build or that it is up to date."""
    seconds = f"built in {time.monotonic() - _STARTED:.1f} s" if session().console.stages else "up to date"
    for node in source:
        if str(node).endswith("manifest.json"):
            session().console.line(f"{Path(str(node)).parent}: {seconds}")


def images(target: Sequence[Any], source: Sequence[Any], env: Any) -> None:
    """Print the path of each image, its size and the RAM that a program needs for its tables."""
    for node in source:
        path = Path(str(node))
        facts = Path(session().work) / path.parent.name / path.stem / "image.json"
        if path.suffix == ".img" and facts.is_file():
            figures = read_json(facts)
            session().console.line(
                f"{path}: {figures['bytes']:,} bytes, at a multiple of {figures['align']}; RAM: "
                f"{figures['tables_bytes']:,} bytes of tables, {figures['arena_bytes']:,} of arena"
            )


def packages(target: Sequence[Any], source: Sequence[Any], env: Any) -> None:
    """Print the path of each package and its size."""
    for node in source:
        path = Path(str(node))
        session().console.line(f"{path}: package of {path.stat().st_size:,} bytes")


def pages(target: Sequence[Any], source: Sequence[Any], env: Any) -> None:
    """Print the path of each report."""
    for node in source:
        session().console.line(f"{node}: report")


def tests(target: Sequence[Any], source: Sequence[Any], env: Any) -> None:
    """Print the tests that passed in an earlier build and did not run again."""
    if not session().console.stages:
        for node in source:
            session().console.line(
                f"{Path(str(node)).parent.relative_to(session().work)}: passed before, unchanged"
            )
