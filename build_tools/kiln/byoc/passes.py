"""The partitioning passes of one build: all backends before lowering, and again after fusion."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kiln.byoc import gpu_choices
from kiln.byoc.backend import Backend, Code, TargetFacts
from kiln.byoc.casts import cancel_casts
from kiln.byoc.match import Match
from kiln.byoc.partition import Partition
from kiln.byoc.registry import load
from kiln.config import Target
from kiln.config.byoc import Byoc, may_compute
from kiln.config.library_choices import LibraryChoices
from kiln.config.precisions import is_narrow
from kiln.graph.pipeline import Pass


def facts_of(target: Target, threads: str, precision: str = "fp32", rank: int | None = None) -> TargetFacts:
    """The TargetFacts of a target for code generators. `threads`: pthread or none.

    `rank`: see TargetFacts; if it is given, tiles measured earlier are ignored.
    """
    gpu = 0 if target.cuda is None else int(target.cuda.newest.removeprefix("sm_"))
    cores = 1 if threads == "none" else target.cores
    choices = gpu_choices.choices_of(target.cuda, precision) if rank is None else {}
    tiles = gpu_choices.tiles_of(choices, "triton")
    return TargetFacts(target.arch, target.vector.isa, cores, gpu, precision, target.cuda, tiles, rank or 0)


def external_passes(choices: LibraryChoices, target: Target, threads: str, precision: str = "fp32") -> Passes:
    """The passes that compute subgraphs by the libraries of byoc.json."""
    backends = [load(name) for name in choices.backends]
    facts = facts_of(target, threads, precision)
    chosen = ChosenBackends(choices.byoc, choices.chosen)
    return Passes(backends, Partition(facts, chosen), chosen.subgraphs)


class ChosenBackends:
    """Decides whether a library computes a subgraph: by the configuration's globs and by `chosen`.

    `chosen`: with `auto`, the backend that was fastest for each subgraph, by the subgraph's key. `subgraphs`:
    `backend key` of all that it was asked about.
    """

    def __init__(self, byoc: Byoc, chosen: Mapping[str, str] | None = None) -> None:
        self.byoc, self.chosen = byoc, chosen
        self.subgraphs: set[str] = set()

    def __call__(self, backend: Backend, match: Match, code: Code) -> bool:
        subgraph = f"{backend.name} {match.key}"
        self.subgraphs.add(subgraph)
        if self.chosen is not None and self.chosen.get(match.key) != backend.name:
            return False
        return may_compute(self.byoc, subgraph)


class Passes:
    """Implements kiln.byoc.external.External with one Partition for all backends.

    `subgraphs`: `backend key` of the subgraphs that the passes have found so far.
    """

    def __init__(
        self, backends: list[Backend], partition: Partition, subgraphs: Collection[str] = ()
    ) -> None:
        self.backends, self.partition, self.subgraphs = backends, partition, subgraphs

    def before(self) -> list[tuple[str, Pass]]:
        passes = [(f"byoc_{backend.name}", self.partition.graph(backend)) for backend in self.backends]
        narrow = is_narrow(self.partition.facts.precision)
        return [*passes, ("byoc_casts", cancel_casts)] if narrow else passes

    def after(self, values: Mapping[str, Any]) -> list[tuple[str, Pass]]:
        return [
            (f"byoc_{backend.name}_groups", self.partition.groups(backend, values))
            for backend in self.backends
        ]
