"""Write profile.json as a page and as a trace: the time of a run by kernel family and by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kiln.files import atomic_write, read_json, write_json
from kiln.report.html import attributes, environment, many
from kiln.report.origins import short
from kiln.report.trace import trace
from kiln.stages.use import ProfileStage

_LISTED = 8  # most facts about a device that are shown


def run(args: ProfileStage) -> None:
    """Write the page and the trace, and print their paths."""
    profile = read_json(args.profile)
    atomic_write(args.out, render(profile))
    write_json(args.trace, trace(profile))
    print(f"{args.out}: where the time goes, step by step")
    print(f"{args.trace}: the same for Perfetto (ui.perfetto.dev)")


def render(profile: Mapping[str, Any]) -> str:
    """The text of the page, without scripts. `profile` is the result of `kiln.device.check.bench.profile`."""
    names = list(dict.fromkeys(step["bucket"] for step in profile["steps"]))
    device = {k: v for k, v in profile["device"].items() if isinstance(v, (str, int, float))}
    return (
        environment()
        .get_template("profile.html.j2")
        .render(
            profile=profile,
            device=dict(list(device.items())[:_LISTED]),
            buckets=[
                _bucket(profile, name, [step for step in profile["steps"] if step["bucket"] == name])
                for name in names
            ],
        )
    )


def _bucket(profile: Mapping[str, Any], name: str, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    most = max((step["share"] for step in steps), default=0.0) or 1.0
    return {
        "name": name,
        "runs": [row for row in profile["runs"] if row["bucket"] == name],
        "time": sum(step["time"] for step in steps),
        "families": _families(steps),
        "steps": [_step(step, most) for step in steps],
    }


def _families(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Total time of the steps of each kernel family, slowest first."""
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for step in steps:
        grouped.setdefault(step["family"] or "others", []).append(step)
    rows = []
    for name, group in grouped.items():
        time, shared = (sum(step[key] for step in group) for key in ("time", "time_threads"))
        known = [step for step in group if step["of_peak"] is not None]
        timed = sum(step["time"] for step in known)
        rows.append(
            {
                "name": name,
                "steps": len(group),
                "time": time,
                "share": sum(step["share"] for step in group),
                "of_peak": sum(s["of_peak"] * s["time"] for s in known) / timed if timed else None,
                "faster": time / shared if shared else None,
            }
        )
    return sorted(rows, key=lambda row: -row["time"])


def _step(step: Mapping[str, Any], most: float) -> dict[str, Any]:
    ops = [{"name": short(op["name"]), "attrs": attributes(op["attrs"])} for op in step["ops"]]
    return {
        **step,
        "ops": ops,
        "detail": next((op["attrs"] for op in ops if op["attrs"]), ""),
        "work": many(step["operations"]) if step["operations"] else "",
        "faster": step["time"] / step["time_threads"] if step["time_threads"] else None,
        "width": f"{100 * step['share'] / most:.1f}",
    }
