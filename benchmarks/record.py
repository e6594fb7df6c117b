"""The results of the benchmark's runs in one file, so that a long comparison can be made in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kiln.files import read_json, write_json

from benchmarks.compare import Match
from benchmarks.contenders import Contender
from benchmarks.footprint import Footprint, Sizes
from benchmarks.timing import Times

NAME = "record.json"


@dataclass
class Record:
    """Everything that the tables are made of."""

    machine: str
    contenders: list[Contender]
    rounds: int
    seconds: float  # of a turn
    matches: list[Match] = field(default_factory=list)
    footprints: list[Footprint] = field(default_factory=list)

    def follow(self, earlier: Record, order: Sequence[str]) -> Record:
        """This record and an earlier one together; of a model in both, this one counts.

        `order`: the order of the models in tables.
        """
        again = {(match.model, match.threads) for match in self.matches}
        cold = {one.model for one in self.footprints}
        contenders = {c.name: c for c in [*earlier.contenders, *self.contenders]}
        matches = [m for m in earlier.matches if (m.model, m.threads) not in again] + self.matches
        footprints = [one for one in earlier.footprints if one.model not in cold] + self.footprints
        rank = {name: at for at, name in enumerate(order)}
        return Record(
            self.machine,
            sorted(contenders.values(), key=lambda c: c.target is None),  # Kiln first; a stable order
            min(self.rounds, earlier.rounds),
            min(self.seconds, earlier.seconds),
            sorted(matches, key=lambda m: (rank.get(m.model, len(rank)), m.threads)),
            sorted(footprints, key=lambda one: rank.get(one.model, len(rank))),
        )


def save(record: Record, out: Path) -> None:
    """Write `out`/record.json."""
    write_json(out / NAME, asdict(record))


def load(out: Path) -> Record | None:
    """The record that `save` wrote into `out`; None if there is none."""
    if not (out / NAME).is_file():
        return None
    data: dict[str, Any] = read_json(out / NAME)
    data["contenders"] = [Contender(**{**c, "sources": tuple(c["sources"])}) for c in data["contenders"]]
    data["matches"] = [
        Match(**{**m, "times": {name: Times(**times) for name, times in m["times"].items()}})
        for m in data["matches"]
    ]
    data["footprints"] = [
        Footprint(**{**f, "sizes": Sizes(**f["sizes"]) if f["sizes"] else None}) for f in data["footprints"]
    ]
    return Record(**data)
