"""Candidates for a model's subgraphs on a GPU: Kiln's own kernels, and those of backends with each tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.byoc.backend import Backend, Code
from kiln.byoc.gpu_choices import OWN
from kiln.byoc.match import Match
from kiln.config import Target
from kiln.config.slice_records import LowerConfig
from kiln.lower.pipeline import lower
from kiln.lower.steps import Steps
from kiln.tune.parts import BETWEEN, Subgraph, parts_of, passes_for

RANKS = 8  # tiles of a backend that are measured for a subgraph


@dataclass(frozen=True)
class GpuSubject:
    """One candidate for the subgraph `key`: launches of `backend` with the tile `tile`, if it has one.

    `name` is unique among the subjects of a model. `steps`: the lowered subgraph.
    """

    name: str
    key: str
    backend: str
    tile: tuple[int, ...]
    steps: Steps

    @property
    def launched(self) -> list[Any]:
        """The steps that are timed."""
        return [step for step in self.steps.steps if not _is_move(step.label)]


def _is_move(label: str) -> bool:
    return all(word in BETWEEN for word in label.split("+"))


def subjects_of(
    sources: Sequence[Path],
    backends: Sequence[Backend],
    target: Target,
    threads: str,
    config: LowerConfig,
) -> tuple[list[GpuSubject], dict[str, Subgraph]]:
    """All candidates for a model, those of a subgraph one after the other, and the subgraphs by key.

    `config`: the model's slice for `lower`. Only subgraphs that a backend supports have candidates.
    """
    precision = config.precision
    parts = parts_of(sources, backends, target, threads, lambda *_: True, precision)
    found: list[GpuSubject] = []
    for number, part in enumerate(parts.values()):
        found += _candidates(f"s{number}", part, target, threads, precision)
    return found, parts


def _candidates(
    stem: str, part: Subgraph, target: Target, threads: str, precision: str
) -> Iterator[GpuSubject]:
    """The candidates for one subgraph, Kiln's own kernels first."""
    steps = lower(part.module, stem, target, threads, precision=precision)
    yield GpuSubject(f"{stem}_{OWN}", part.key, OWN, (), steps)
    for backend in part.backends:
        for rank in range(RANKS):
            tiles: list[tuple[int, ...]] = []

            def note(_backend: Backend, _match: Match, code: Code, tiles: Any = tiles) -> bool:
                tiles.append(code.tile)
                return True

            name = f"{stem}_{backend.name}{rank}"
            passes = passes_for(backend, target, threads, precision, rank, note)
            steps = lower(part.module, name, target, threads, external=passes, precision=precision)
            if not tiles:
                break
            yield GpuSubject(name, part.key, backend.name, tiles[0], steps)
            if not tiles[0]:
                break  # the backend has no other kernel for this subgraph
