"""Write profile.json as a page and as a trace: the time of a run by kernel family and by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kiln.files import atomic_write, read_json, write_json
from kiln.plan.schema import Plan, read_plan
from kiln.plan.variants import plan_of
from kiln.report.html import attributes, environment, place_of, rounded_number
from kiln.report.origins import SourceNode, origins, short, source_nodes
from kiln.report.trace import trace
from kiln.stages.use import ProfileStage

_LISTED = 8  # most facts about a device that are shown


def run(args: ProfileStage) -> None:
    """Write the page and the trace, and print their paths."""
    profile = read_json(args.profile)
    nodes = source_nodes(args.source) if args.source else []
    profile = described(profile, plan_of(read_plan(args.plan), profile["variant"]), nodes)
    atomic_write(args.out, render(profile))
    write_json(args.trace, trace(profile))
    print(f"{args.out}: where the time goes, step by step")
    print(f"{args.trace}: the same for Perfetto (ui.perfetto.dev)")


def described(profile: Mapping[str, Any], plan: Plan, nodes: Sequence[SourceNode]) -> dict[str, Any]:
    """The profile with the names of the plan's variants; steps with nodes of the model's file and tensors.

    Tensors are text, such as "float32 1 × 8 × 8 × 16". A step of another plan than the profiled one has none.
    """
    kernels = {kernel.symbol: kernel for kernel in plan.kernels}
    buckets = {bucket.name: bucket for bucket in plan.buckets}
    origins_of = {name: origins(plan, bucket.steps, nodes) for name, bucket in buckets.items()}
    steps = []
    for step in profile["steps"]:
        of_plan = buckets[step["bucket"]].steps if step["bucket"] in buckets else []
        tensors: dict[str, list[str]] = {"reads": [], "writes": []}
        if step["index"] < len(of_plan) and of_plan[step["index"]].kernel == step["kernel"]:
            pairs = zip(of_plan[step["index"]].args, kernels[step["kernel"]].args, strict=True)
            for location in (place_of(*pair) for pair in pairs):
                if location["shape"]:
                    tensors["writes" if location["written"] else "reads"].append(
                        f"{location['dtype']} {location['shape']}"
                    )
        origin = origins_of.get(step["bucket"], {}).get(step["index"])
        steps.append({**step, **tensors, "nodes": list(origin.nodes) if origin else []})
    variants = [] if plan.cpu is None else [variant.name for variant in plan.cpu.variants]
    return {**profile, "steps": steps, "variants": variants}


def render(profile: Mapping[str, Any]) -> str:
    """The text of the page, without scripts. `profile` is the result of `bench.profile` or of `described`."""
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
    greatest_share = max((step["share"] for step in steps), default=0.0) or 1.0
    return {
        "name": name,
        "runs": [row for row in profile["runs"] if row["bucket"] == name],
        "time": sum(step["time"] for step in steps),
        "families": _families(steps),
        "steps": [_step(step, greatest_share) for step in steps],
    }


def _families(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Total time of the steps of each kernel family, slowest first."""
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for step in steps:
        grouped.setdefault(step["family"] or "others", []).append(step)
    rows = []
    for name, group in grouped.items():
        time, shared = (sum(step[key] for step in group) for key in ("time", "time_threads"))
        with_peak = [step for step in group if step["of_peak"] is not None]
        timed = sum(step["time"] for step in with_peak)
        rows.append(
            {
                "name": name,
                "steps": len(group),
                "time": time,
                "share": sum(step["share"] for step in group),
                "of_peak": sum(s["of_peak"] * s["time"] for s in with_peak) / timed if timed else None,
                "faster": time / shared if shared else None,
            }
        )
    return sorted(rows, key=lambda row: -row["time"])


def _step(step: Mapping[str, Any], greatest_share: float) -> dict[str, Any]:
    ops = [{"name": short(op["name"]), "attrs": attributes(op["attrs"])} for op in step["ops"]]
    return {
        **step,
        "ops": ops,
        "detail": next((op["attrs"] for op in ops if op["attrs"]), ""),
        "work": rounded_number(step["operations"]) if step["operations"] else "",
        "faster": step["time"] / step["time_threads"] if step["time_threads"] else None,
        "width": f"{100 * step['share'] / greatest_share:.1f}",
    }
