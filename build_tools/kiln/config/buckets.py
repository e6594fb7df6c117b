"""The buckets of a model: the boxes of sizes that get specialised code, and their order of priority."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from kiln.config.boxes import STATIC, Box, BoxList
from kiln.config.dims import Bucket, Dim, Segment, covers, segments, whole
from kiln.config.interface import Dimension
from kiln.config.model import Model
from kiln.errors import KilnError

MOST = 64  # buckets of one model; a greater number is a mistake in the YAML
_MOST_COMBINATIONS = 64 * MOST  # some may be equal; counted before any combination is formed


def boxes(model: Model, chosen: Mapping[str, Sequence[Bucket]] | None = None) -> list[Box]:
    """The buckets of `model` in order of priority: the first that contains the sizes of a run is used.

    `chosen`: the buckets of the dimensions with `buckets: auto`. The most specific buckets come first, the
    general code for all other sizes (`fallback: dynamic`) last. Raises KilnError if there are too many.
    """
    dims = {name: _listed(name, dim, chosen or {}) for name, dim in model.dims.items()}
    _check_count(model, dims)
    rows = _rows(model, dims)
    if _needs_general_code(model, dims):
        general = [[whole(dim)] if dim.fallback == "dynamic" else dims[n] for n, dim in model.dims.items()]
        rows += [dict(zip(model.dims, row, strict=True)) for row in itertools.product(*general)]
    result: list[Box] = []
    for row in rows:
        if not any(box.dims == row for box in result):
            result.append(Box(name=_name(model, row), dims=row))
    if len(result) > MOST:
        raise KilnError(f"model '{model.name}': {len(result)} buckets, at most {MOST} are allowed")
    return result


def listed(model: Model, found: Sequence[Box]) -> BoxList:
    """The content of buckets.json for the buckets `found`."""
    return BoxList(
        dims=[Dimension(name=n, min=d.min, max=d.max, multiple=d.multiple) for n, d in model.dims.items()],
        fallback="dynamic" if all(dim.fallback == "dynamic" for dim in model.dims.values()) else "error",
        buckets=list(found),
    )


def is_static(box: Box) -> bool:
    """Whether all sizes of the model are known at build time, so that this is its only bucket."""
    return all(segment.strategy == "exact" and box.name == STATIC for segment in box.dims.values())


def _listed(name: str, dim: Dim, chosen: Mapping[str, Sequence[Bucket]]) -> list[Segment]:
    """Segments of the buckets of one dimension; one segment for all sizes if it has no buckets."""
    buckets = chosen.get(name, []) if dim.auto else dim.buckets
    return segments(dim, list(buckets)) if buckets else [whole(dim)]


def _check_count(model: Model, dims: Mapping[str, list[Segment]]) -> None:
    """Raise KilnError if the lists of sizes have more than _MOST_COMBINATIONS combinations."""
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
    """The combinations of sizes that the model lists, in order of priority."""
    if model.buckets is None:
        product = [dict(zip(dims, row, strict=True)) for row in itertools.product(*dims.values())]
        return sorted(product, key=_generality)
    rows = []
    for row in model.buckets:
        fixed_here = {n: segments(model.dims[n], [bucket])[0] for n, bucket in row.items()}
        options = [[fixed_here[n]] if n in fixed_here else dims[n] for n in model.dims]
        rows += [dict(zip(model.dims, choice, strict=True)) for choice in itertools.product(*options)]
    return sorted(rows, key=_generality)


def _generality(row: Mapping[str, Segment]) -> int:
    """Sort key: smaller means more specific, so that exact sizes come before buckets that contain them."""
    order = {"exact": 0, "pad": 1, "range": 1, "dynamic": 2}
    return sum(order[segment.strategy] for segment in row.values())


def _needs_general_code(model: Model, dims: Mapping[str, list[Segment]]) -> bool:
    """Whether general code is needed: some sizes are in no listed bucket, and the fallback is dynamic."""
    if not any(dim.fallback == "dynamic" for dim in model.dims.values()):
        return False
    if model.buckets is not None:
        return True
    return not all(covers(dim, dims[name]) for name, dim in model.dims.items())


def _name(model: Model, row: Mapping[str, Segment]) -> str:
    """Name of a bucket, such as `static`, `dynamic` or `batch1_seq_pad128`."""
    dynamic = {name: sizes for name, sizes in row.items() if model.dims[name].min != model.dims[name].max}
    if not dynamic:
        return STATIC
    if all(sizes.strategy == "dynamic" for sizes in dynamic.values()):
        return "dynamic"
    pieces = []
    for name, sizes in dynamic.items():
        if sizes.strategy == "exact":
            pieces.append(f"{name}{sizes.size}")
        elif sizes.strategy == "pad":
            pieces.append(f"{name}_pad{sizes.size}")
        elif sizes.strategy == "range":
            pieces.append(f"{name}{sizes.min}_{sizes.max}")
    return "_".join(pieces)
