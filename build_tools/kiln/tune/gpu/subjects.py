"""Candidates for a model's subgraphs on a GPU: Kiln's kernels, and each backend's kernels with every tile."""

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
from kiln.kernels.gpu.block_tile import Gpu, ProductTiles
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.steps import Steps
from kiln.tune.subgraphs import BETWEEN, Subgraph, passes_for, subgraphs_of

RANKS = 8  # tiles of a backend, and of Kiln's own kernels, that are measured for a subgraph


@dataclass(frozen=True)
class GpuSubject:
    """One candidate for the subgraph `key`: launches of `backend` with the tile `tile`, if it has one.

    `name` is unique among the subjects of a model. `steps`: the lowered subgraph. `product`: the name that
    Kiln's own kernels give its product on tensor cores; empty for other kernels.
    """

    name: str
    key: str
    backend: str
    tile: tuple[int, ...]
    steps: Steps
    product: str = ""

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
    """All candidates for a model, ordered by subgraph, and the subgraphs by key.

    `config`: the model's slice for `lower`. Only subgraphs that a backend supports have candidates.
    """
    precision = config.precision
    subgraphs = subgraphs_of(sources, backends, target, threads, lambda *_: True, precision)
    candidates: list[GpuSubject] = []
    for number, subgraph in enumerate(subgraphs.values()):
        candidates += _candidates(f"s{number}", subgraph, target, threads, precision)
    return candidates, subgraphs


def _candidates(
    stem: str, subgraph: Subgraph, target: Target, threads: str, precision: str
) -> Iterator[GpuSubject]:
    """The candidates for one subgraph, Kiln's own kernels first."""
    yield from _kiln_candidates(stem, subgraph, target, threads, precision)
    for backend in subgraph.backends:
        for rank in range(RANKS):
            tiles: list[tuple[int, ...]] = []

            def note(_backend: Backend, _match: Match, code: Code, tiles: Any = tiles) -> bool:
                tiles.append(code.tile)
                return True

            name = f"{stem}_{backend.name}{rank}"
            passes = passes_for(backend, target, threads, precision, rank, note)
            steps = lower(
                subgraph.module, Lowering(name, target, threads, external=passes, precision=precision)
            )
            if not tiles:
                break
            yield GpuSubject(name, subgraph.key, backend.name, tiles[0], steps)
            if not tiles[0]:
                break  # the backend has no other kernel for this subgraph


def _kiln_candidates(
    stem: str, subgraph: Subgraph, target: Target, threads: str, precision: str
) -> Iterator[GpuSubject]:
    """The candidates of Kiln's own kernels: one for each tile, if tensor cores compute one product."""
    assert target.cuda is not None
    for rank in range(RANKS):
        tiles = ProductTiles(Gpu.of(target.cuda), rank=rank)
        name = f"{stem}_{OWN}{rank or ''}"
        steps = lower(
            subgraph.module, Lowering(name, target, threads, precision=precision, product_tiles=tiles)
        )
        if len(tiles.chosen) != 1:
            if rank == 0:
                yield GpuSubject(name, subgraph.key, OWN, (), steps)
            return
        ((product, tile),) = tiles.chosen.items()
        yield GpuSubject(name, subgraph.key, OWN, tile, steps, product)
