"""Checks that each golden vector was served by the bucket that golden.json names, and prints the buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kiln.config import sizes
from kiln.device.bundle import GoldenVector
from kiln.device.check.execute import Check, Outcome
from kiln.golden.schema import GoldenFile


def check_buckets(vectors: Sequence[GoldenVector], outcome: Outcome) -> list[Check]:
    """A check for each vector of a model with buckets: the expected bucket, or a special case of it, ran."""
    checks = []
    for vector, planned, ran in zip(vectors, outcome.buckets, outcome.ran, strict=True):
        if not vector.bucket:
            continue
        name, text = f"bucket of vector {vector.name}", ran
        if planned != vector.bucket:
            text = f"'{planned}' would serve it, not '{vector.bucket}'"
        elif ran != planned and not ran.startswith(f"{planned}_"):
            text = f"'{ran}' ran, which is not a special case of '{planned}'"
        checks.append(Check(name, text == ran, text))
    return checks


def in_order(golden: GoldenFile, vectors: Sequence[GoldenVector]) -> list[int]:
    """Indices of the vectors, grouped by bucket in the order of golden.json."""
    rank = {bucket.name: index for index, bucket in enumerate(golden.buckets or [])}
    return sorted(range(len(vectors)), key=lambda index: rank.get(vectors[index].bucket, -1))


def print_bucket(golden: GoldenFile, padding: Mapping[str, float], name: str, arena: int) -> None:
    """Print a heading for the vectors of the bucket `name`: sizes, `arena` in bytes, the fraction of padding.

    `padding` is the mean fraction of padding of each pad bucket, by name.
    """
    entry = next(bucket for bucket in golden.buckets or [] if bucket.name == name)
    waste = (
        f"; {100 * padding[name]:.0f} % of what it computes is padding, on average" if name in padding else ""
    )
    print(f"  bucket {name} ({sizes.ranges_text(entry.model_dump()['dims'])}): arena of {arena} bytes{waste}")
