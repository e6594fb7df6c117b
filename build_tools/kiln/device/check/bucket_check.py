"""Which bucket served a vector: held against golden.json, and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kiln.device.bundle import Vector
from kiln.device.check.execute import Check, Outcome


def check_buckets(vectors: Sequence[Vector], outcome: Outcome) -> list[Check]:
    """For each vector of a model with buckets whether the one that must serve it did, or a case of it."""
    checks = []
    for vector, planned, ran in zip(vectors, outcome.buckets, outcome.ran, strict=True):
        if not vector.bucket:
            continue
        name, text = f"bucket of vector {vector.name}", ran
        if planned != vector.bucket:
            text = f"'{planned}' would serve it, not '{vector.bucket}'"
        elif ran != planned and not ran.startswith(f"{planned}_"):
            text = f"'{ran}' ran, which is no case of '{planned}'"
        checks.append(Check(name, text == ran, text))
    return checks


def in_order(golden: Mapping[str, Any], vectors: Sequence[Vector]) -> list[int]:
    """The positions of the vectors, those of one bucket together."""
    rank = {bucket["name"]: index for index, bucket in enumerate(golden.get("buckets") or [])}
    return sorted(range(len(vectors)), key=lambda index: rank.get(vectors[index].bucket, -1))


def print_bucket(golden: Mapping[str, Any], padding: Mapping[str, float], name: str, arena: int) -> None:
    """One line over a bucket's vectors: its sizes, the bytes of arena it has run in, the part of padding.

    `padding`: the mean part by bucket, of those that pad.
    """
    entry = next(bucket for bucket in golden["buckets"] if bucket["name"] == name)
    waste = (
        f"; {100 * padding[name]:.0f} % of what it computes is padding, on average" if name in padding else ""
    )
    print(f"  bucket {name} ({sizes_text(entry['dims'])}): arena of {arena} bytes{waste}")


def sizes_text(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The sizes of a bucket as people write them: `batch 1, seq 17..64 padded to 64`."""
    shown = []
    for name, part in parts.items():
        span = str(part["min"]) if part["min"] == part["max"] else f"{part['min']}..{part['max']}"
        multiple = f" by {part['multiple']}" if part.get("multiple", 1) > 1 and ".." in span else ""
        padded = f" padded to {part['size']}" if part.get("strategy") == "pad" else ""
        shown.append(f"{name} {span}{multiple}{padded}")
    return ", ".join(shown)
