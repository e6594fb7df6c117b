"""byoc=auto on a GPU: the backend of each subgraph, from measurements on that GPU, else from a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kiln.byoc import gpu_choices
from kiln.byoc.backend import Backend
from kiln.byoc.gpu_choices import OWN
from kiln.byoc.passes import ChosenBackends
from kiln.byoc.registry import load
from kiln.byoc.triton import integers
from kiln.config import Target
from kiln.config.byoc import Byoc
from kiln.config.slice_records import LowerConfig
from kiln.files import write_json
from kiln.stages.target import ChooseStage
from kiln.tune.parts import Subgraph, parts_of

RULE = "triton"  # what computes a subgraph that was not measured, where tensor cores multiply


def choose_on_gpu(args: ChooseStage, config: LowerConfig, asked: Mapping[str, Any], target: Target) -> None:
    """Write the choice for each subgraph to --out, and print a summary."""
    assert target.cuda is not None
    threads, precision = config.threads_on(target), config.precision
    byoc, backends = Byoc.model_validate(asked["byoc"]), [load(name) for name in asked["backends"]]
    parts = parts_of(args.sources, backends, target, threads, ChosenBackends(byoc), precision)
    known = gpu_choices.choices_of(target.cuda, precision)
    table = [_entry(part, known.get(part.key), precision, backends) for part in parts.values()]
    summary = _summary(table, target, known)
    print(summary)
    chosen = {entry["part"]: entry["chosen"] for entry in table if entry["chosen"] != OWN}
    measured_on = target.cuda.tuned_for if known else None
    write_json(
        args.out, {**asked, "chosen": chosen, "measured_on": measured_on, "parts": table, "summary": summary}
    )


def _entry(part: Subgraph, known: Any, precision: str, backends: Sequence[Backend]) -> dict[str, Any]:
    """The choice for one subgraph, in the form of byoc-choose. `known`: its measured entry, or None."""
    able = [backend.name for backend in part.backends]
    times: dict[str, Any] = dict.fromkeys(able)
    if known is not None:
        us = known.get("us", {})
        for name in (one for one in able if one in us and OWN in us):
            ratio = round(us[name] / us[OWN], 3)
            times[name] = {OWN: us[OWN], "us": us[name], "ratio": ratio, "worth": known["backend"] == name}
        if known["backend"] == OWN or known["backend"] in able:
            return _choice(part, times, known["backend"], "measured")
    on_tensor_cores = precision != "fp32" or part.key.partition(" ")[0].endswith(integers.SUFFIX)
    ruled = RULE if RULE in able and on_tensor_cores else OWN
    return _choice(part, times, ruled, "not timed: the rule")


def _choice(part: Subgraph, times: Mapping[str, Any], chosen: str, why: str) -> dict[str, Any]:
    return {"part": part.key, "count": part.count, "times": dict(times), "chosen": chosen, "why": why}


def _summary(table: Sequence[Mapping[str, Any]], target: Target, known: Mapping[str, Any]) -> str:
    """The choices for a model and their reason, in one line."""
    total = sum(entry["count"] for entry in table)
    taken = sum(entry["count"] for entry in table if entry["chosen"] != OWN)
    measured = sum(entry["count"] for entry in table if entry["why"] == "measured")
    assert target.cuda is not None
    gpu = target.cuda.tuned_for or "no GPU"
    said = f"{measured} of {total} parts were measured on {gpu}, a rule decides the others"
    if not known:
        said = f"nothing was measured on {gpu} yet (the goal tune does), a rule decides"
    return f"byoc=auto on {target.name}: backends compute {taken} of {total} parts: {said}"
