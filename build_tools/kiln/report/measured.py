"""Measurements in a report: times of steps, errors of tensors, tests of variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.emit.size_schema import SizeFile
from kiln.plan.schema import PlannedBucket
from kiln.report.origins import SourceNode

_ASSETS = Path(__file__).resolve().parent / "assets"


@dataclass(frozen=True)
class Measured:
    """profile.json (empty: not profiled), the worst row of compare.json by tensor, the nodes of the file."""

    profile: Mapping[str, Any]
    errors: Mapping[str, Mapping[str, Any]]
    nodes: Sequence[SourceNode]

    def times(self, bucket: PlannedBucket) -> Mapping[int, Mapping[str, Any]]:
        """The entries of profile.json for the steps of a bucket, by index.

        A step that calls another kernel than the one that was timed has no entry.
        """
        timed = {
            step["index"]: step for step in self.profile.get("steps", []) if step["bucket"] == bucket.name
        }
        calls = [{step.kernel, *(call.kernel for call in step.variants.values())} for step in bucket.steps]
        return {i: step for i, step in timed.items() if i < len(calls) and step["kernel"] in calls[i]}


def worst_rows(compared: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The row of the golden vector with the greatest error, for each tensor of compare.json."""

    def severity(row: Mapping[str, Any]) -> tuple[bool, bool, float]:
        error, limit = row["error"], row["limit"]
        return not row["passed"], error is None, 0.0 if error is None else error / limit if limit else error

    worst: dict[str, Mapping[str, Any]] = {}
    for row in compared.get("tensors", []):
        for name in (row["tensor"], *row.get("stored_as", [])):
            if name not in worst or severity(row) > severity(worst[name]):
                worst[name] = row
    return worst


def tested_variants(size: SizeFile, test: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of size.json's variants with the result of their golden vectors; none for a single variant."""
    rows = [] if size.linked is None else size.linked.variants
    tested = {entry["variant"]: entry for entry in [test, *test.get("variants", [])] if "variant" in entry}
    if len(rows) < 2:
        return []
    return [{**row.model_dump(), "tested": _tested(tested.get(row.name))} for row in rows]


def _tested(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "not tested here"
    if "not_run" in entry:
        return f"not run: {entry['not_run']}"
    return f"{len(entry['vectors'])} passed"


def asset(name: str) -> str:
    """The text of a file of report/assets."""
    return (_ASSETS / name).read_text(encoding="utf-8")
