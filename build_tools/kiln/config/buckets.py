"""The buckets of a model: which boxes of sizes get a build of their own, and in which order they are asked.

buckets.json, and one entry of it as bucket.json, is how the stages learn of them:

    {"format": 1, "dims": [{"name", "min", "max", "multiple"}], "fallback": "dynamic" | "error",
     "buckets": [{"name", "dims": {dim: {"strategy", "min", "max", "multiple", "size"}}}]}

and "measured": true of a padded dimension that is not to be proven.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiln.config.dims import Bucket, Dim, Segment, covers, segments, whole
from kiln.config.model import Model
from kiln.errors import KilnError

STATIC = "static"
MOST = 64  # builds of one model; more than that is a mistake in the YAML
_MOST_COMBINATIONS = 64 * MOST  # of which some may be equal; counted before the first one is made


@dataclass(frozen=True)
class Box:
    """One build of a model: by dimension the sizes it takes."""

    name: str
    dims: Mapping[str, Segment]

    def describe(self) -> dict[str, Any]:
        """The entry of buckets.json."""
        return {"name": self.name, "dims": {name: _described(part) for name, part in self.dims.items()}}


def _described(part: Segment) -> dict[str, Any]:
    return part.model_dump(exclude=None if part.measured else {"measured"})


def boxes(model: Model, chosen: Mapping[str, Sequence[Bucket]] | None = None) -> list[Box]:
    """The buckets of `model` in the order in which they are asked: the first that holds the sizes is taken.

    `chosen`: the buckets of the dimensions that say `auto`. Special sizes come first, the general functions
    for whatever is left (`fallback: dynamic`) last. Raises KilnError where there are too many.
    """
    dims = {name: _listed(name, dim, chosen or {}) for name, dim in model.dims.items()}
    _check_count(model, dims)
    rows = _rows(model, dims)
    if _open(model, dims):
        general = [[whole(dim)] if dim.fallback == "dynamic" else dims[n] for n, dim in model.dims.items()]
        rows += [dict(zip(model.dims, row, strict=True)) for row in itertools.product(*general)]
    found: list[Box] = []
    for row in rows:
        if not any(dict(box.dims) == row for box in found):
            found.append(Box(_name(model, row), row))
    if len(found) > MOST:
        raise KilnError(f"model '{model.name}': {len(found)} buckets, at most {MOST} are allowed")
    return found


def describe(model: Model, found: Sequence[Box]) -> dict[str, Any]:
    """The content of buckets.json."""
    dims = [{"name": n, "min": d.min, "max": d.max, "multiple": d.multiple} for n, d in model.dims.items()]
    fallback = "dynamic" if all(dim.fallback == "dynamic" for dim in model.dims.values()) else "error"
    return {
        "format": 1,
        "dims": dims,
        "fallback": fallback,
        "buckets": [box.describe() for box in found],
    }


def is_static(box: Box) -> bool:
    """Whether the sizes of a model are known when it is built: it has one bucket then, and no dimensions."""
    return all(part.strategy == "exact" and box.name == STATIC for part in box.dims.values())


def _listed(name: str, dim: Dim, chosen: Mapping[str, Sequence[Bucket]]) -> list[Segment]:
    buckets = chosen.get(name, []) if dim.auto else dim.buckets
    return segments(dim, list(buckets)) if buckets else [whole(dim)]


def _check_count(model: Model, dims: Mapping[str, list[Segment]]) -> None:
    """Raise KilnError where the lists of sizes combine to more buckets than anybody wants to list."""
    rows: Sequence[Mapping[str, Bucket]] = [{}] if model.buckets is None else model.buckets
    count = sum(math.prod(len(dims[name]) for name in dims if name not in row) for row in rows)
    if count > _MOST_COMBINATIONS:
        lists = [f"{name} {len(listed)}" for name, listed in dims.items() if len(listed) > 1]
        raise KilnError(
            f"model '{model.name}': {count:.4g} combinations of sizes ({', '.join(lists[:8])}"
            f"{', …' if len(lists) > 8 else ''}), at most {MOST} buckets are allowed: list fewer sizes in "
            "'dims', or the combinations that matter in 'buckets'"
        )


def _rows(model: Model, dims: Mapping[str, list[Segment]]) -> list[dict[str, Segment]]:
    if model.buckets is None:
        product = [dict(zip(dims, row, strict=True)) for row in itertools.product(*dims.values())]
        return sorted(product, key=_generality)
    rows = []
    for row in model.buckets:
        given = {n: segments(model.dims[n], [bucket])[0] for n, bucket in row.items()}
        options = [[given[n]] if n in given else dims[n] for n in model.dims]
        rows += [dict(zip(model.dims, choice, strict=True)) for choice in itertools.product(*options)]
    return sorted(rows, key=_generality)


def _generality(row: Mapping[str, Segment]) -> int:
    """Fewer is more special: what is exact must be asked before a bucket that holds the size too."""
    order = {"exact": 0, "pad": 1, "range": 1, "dynamic": 2}
    return sum(order[part.strategy] for part in row.values())


def _open(model: Model, dims: Mapping[str, list[Segment]]) -> bool:
    """Whether some sizes are in no listed bucket, and a general function is to take them."""
    if not any(dim.fallback == "dynamic" for dim in model.dims.values()):
        return False
    if model.buckets is not None:
        return True
    return not all(covers(dim, dims[name]) for name, dim in model.dims.items())


def _name(model: Model, row: Mapping[str, Segment]) -> str:
    moving = {name: part for name, part in row.items() if model.dims[name].min != model.dims[name].max}
    if not moving:
        return STATIC
    if all(part.strategy == "dynamic" for part in moving.values()):
        return "dynamic"
    pieces = []
    for name, part in moving.items():
        if part.strategy == "exact":
            pieces.append(f"{name}{part.size}")
        elif part.strategy == "pad":
            pieces.append(f"{name}_pad{part.size}")
        elif part.strategy == "range":
            pieces.append(f"{name}{part.min}_{part.max}")
    return "_".join(pieces)
