"""byoc=auto on a GPU: the backend of each subgraph, from measurements on that GPU, else from a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kiln.byoc import gpu_choices
from kiln.byoc.gpu_choices import OWN
from kiln.byoc.passes import ChosenBackends
from kiln.byoc.registry import load, names
from kiln.byoc.triton import integers
from kiln.config import Target
from kiln.config.library_choices import LibraryChoices, LibraryTime, TimedSubgraph
from kiln.config.slice_records import LowerConfig
from kiln.files import write_json
from kiln.stages.target import ChooseStage
from kiln.tune.subgraphs import Subgraph, subgraphs_of

RULE = "triton"  # the backend of a subgraph that was not measured, where tensor cores multiply


def choose_on_gpu(args: ChooseStage, config: LowerConfig, choices: LibraryChoices, target: Target) -> None:
    """Write the choice for each subgraph to --out, and print a summary."""
    assert target.cuda is not None
    threads, precision = config.threads_on(target), config.precision
    backends = [load(name) for name in choices.backends]
    allowed = ChosenBackends(choices.byoc)
    subgraphs = subgraphs_of(args.sources, backends, target, threads, allowed, precision)
    if choices.globs_of_model:
        choices.byoc.check_globs(config.name, target.name, names(), choices.backends, allowed.subgraphs)
    measured = gpu_choices.choices_of(target.cuda, precision)
    table = [_entry(subgraph, measured.get(subgraph.key), precision) for subgraph in subgraphs.values()]
    summary = _summary(table, target, measured)
    print(summary)
    chosen = {entry.part: entry.chosen for entry in table if entry.chosen != OWN}
    measured_on = target.cuda.tuned_for if measured else None
    made = {"chosen": chosen, "measured_on": measured_on, "parts": table, "summary": summary}
    write_json(args.out, choices.model_copy(update=made).model_dump(mode="json"))


def _entry(subgraph: Subgraph, measured: Any, precision: str) -> TimedSubgraph:
    """The choice for one subgraph, in the form of byoc-choose.

    `measured`: the subgraph's entry in kiln.byoc.gpu_choices; None: it was not measured.
    """
    supporting = [backend.name for backend in subgraph.backends]
    times: dict[str, LibraryTime | None] = dict.fromkeys(supporting)
    if measured is not None:
        us = measured.get("us", {})
        for name in [name for name in supporting if name in us and OWN in us]:
            ratio = round(us[name] / us[OWN], 3)
            worth = measured["backend"] == name
            times[name] = LibraryTime(kiln=us[OWN], us=us[name], ratio=ratio, worth=worth)
        if measured["backend"] == OWN or measured["backend"] in supporting:
            return _choice(subgraph, times, measured["backend"], "measured")
    on_tensor_cores = precision != "fp32" or subgraph.key.partition(" ")[0].endswith(integers.SUFFIX)
    by_rule = RULE if RULE in supporting and on_tensor_cores else OWN
    return _choice(subgraph, times, by_rule, "not timed: the rule")


def _choice(
    subgraph: Subgraph, times: Mapping[str, LibraryTime | None], chosen: str, why: str
) -> TimedSubgraph:
    return TimedSubgraph(part=subgraph.key, count=subgraph.count, times=dict(times), chosen=chosen, why=why)


def _summary(table: Sequence[TimedSubgraph], target: Target, measured_entries: Mapping[str, Any]) -> str:
    """The choices for a model and their reason, in one line."""
    total = sum(entry.count for entry in table)
    by_backends = sum(entry.count for entry in table if entry.chosen != OWN)
    measured = sum(entry.count for entry in table if entry.why == "measured")
    assert target.cuda is not None
    gpu = target.cuda.tuned_for or "no GPU"
    basis = f"{measured} of {total} subgraphs were measured on {gpu}, a rule decides the others"
    if not measured_entries:
        basis = f"nothing was measured on {gpu} yet (the goal tune does), a rule decides"
    return f"byoc=auto on {target.name}: backends compute {by_backends} of {total} subgraphs: {basis}"
