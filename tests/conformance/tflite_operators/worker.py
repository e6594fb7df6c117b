"""Runs the cases: those that LiteRT takes are imported, lowered, compiled together and compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.frontend.options import ImportOptions

from ..onnx_nodes.results import Result
from ..onnx_nodes.worker import run_all
from .files import Array, OperatorCase, folder_of_cases


@dataclass(frozen=True)
class Opened:
    """A case as a file, with LiteRT's results."""

    case: OperatorCase
    path: Path
    expected: Sequence[Array]

    @property
    def name(self) -> str:
        return self.case.name

    @property
    def inputs(self) -> list[Array]:
        return self.case.inputs


def results(cases: Sequence[OperatorCase], jobs: int = 1) -> Iterator[tuple[OperatorCase, Result | None]]:
    """What became of each case; None: LiteRT itself refuses it, so that there is nothing to compare."""
    with folder_of_cases() as name:
        opened = {}
        for case in cases:
            try:
                opened[case.name] = Opened(case, *case.open(Path(name)))
            except ValueError:
                yield case, None
        for result in run_all(list(opened.values()), jobs, _load, _compare):
            yield opened[result.name].case, result


def _load(opened: Any, folder: Path) -> tuple[Path, ImportOptions]:
    return opened.path, ImportOptions("m")


def _compare(opened: Any, found: Sequence[Array]) -> str:
    return str(opened.case.difference(found, opened.expected))
