"""The partitioning passes of one build: all backends before lowering, and again after fusion."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

from kiln.byoc import gpu_choices
from kiln.byoc.backend import Backend, Code, TargetFacts
from kiln.byoc.casts import cancel_casts
from kiln.byoc.match import Match
from kiln.byoc.partition import Partition
from kiln.byoc.registry import load
from kiln.config import Target
from kiln.config.byoc import Byoc
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


def external_passes(
    config: Mapping[str, Any], target: Target, threads: str, precision: str = "fp32"
) -> Passes:
    """The passes that byoc.json (`config`) specifies.

    `config`: {"byoc": the section, "backends": names} and, with `auto`, {"chosen": {subgraph: backend}}.
    """
    byoc = Byoc.model_validate(config["byoc"])
    backends = [load(name) for name in config["backends"]]
    facts = facts_of(target, threads, precision)
    return Passes(backends, Partition(facts, ChosenBackends(byoc, config.get("chosen"))))


class ChosenBackends:
    """Decides whether a library computes a subgraph: by the configuration's globs and by `chosen`.

    `chosen`: with `auto`, the backend that was fastest for each subgraph, by the subgraph's key.
    """

    def __init__(self, byoc: Byoc, chosen: Mapping[str, str] | None = None) -> None:
        self.byoc, self.chosen = byoc, chosen

    def __call__(self, backend: Backend, match: Match, code: Code) -> bool:
        if self.chosen is not None and self.chosen.get(match.key) != backend.name:
            return False
        key = f"{backend.name} {match.key}"
        return _matches_any(self.byoc.take, key) and not _matches_any(self.byoc.leave, key)


def _matches_any(globs: list[str], key: str) -> bool:
    """Whether a glob matches the key, with or without the backend's name before it."""
    return any(fnmatch.fnmatchcase(text, glob) for glob in globs for text in (key, key.split(" ", 1)[1]))


class Passes:
    """Implements kiln.byoc.external.External with one Partition for all backends."""

    def __init__(self, backends: list[Backend], partition: Partition) -> None:
        self.backends, self.partition = backends, partition

    def before(self) -> list[tuple[str, Pass]]:
        passes = [(f"byoc_{backend.name}", self.partition.graph(backend)) for backend in self.backends]
        narrow = is_narrow(self.partition.facts.precision)
        return [*passes, ("byoc_casts", cancel_casts)] if narrow else passes

    def after(self, values: Mapping[str, Any]) -> list[tuple[str, Pass]]:
        return [
            (f"byoc_{backend.name}_groups", self.partition.groups(backend, values))
            for backend in self.backends
        ]
