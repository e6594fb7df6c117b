"""Keys of a model that changed nothing: a glob without a subgraph is an error, other keys get a line.

Whether a key has an effect is known only when all buckets are lowered: a subgraph's name contains its sizes,
and one bucket may have an operator that another one does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kiln.config import Target
from kiln.config.library_choices import LibraryChoices
from kiln.config.slice_records import PlanConfig
from kiln.lower.schema import KernelRecord, LoweredBucket


def check_effects(config: PlanConfig, target: Target, buckets: Sequence[LoweredBucket]) -> None:
    """Print a line for each of `winograd` and `checks` that changed no step of any bucket."""
    where = f"kiln: warning: model '{config.name}'"
    if config.winograd in ("f2", "f4") and not any(k.family == "winograd" for k in _kernels(buckets)):
        reason = (
            "kernels on a GPU do not use the algorithm"
            if target.cuda is not None
            else "it is for convolutions of 3x3 with strides of 1 and without groups, whose weights may grow "
            f"(weight_growth of the target: {target.weight_growth:g})"
        )
        print(f"{where}: winograd: {config.winograd} changes nothing on target '{target.name}': {reason}")
    steps = (step for bucket in buckets for case in bucket.cases for step in case.steps)
    if config.checks == "indices" and not any(step.check is not None for step in steps):
        print(f"{where}: checks: indices changes nothing: no operator has indices that a run computes")


def check_libraries(
    model: str, target: str, choices: LibraryChoices, buckets: Sequence[LoweredBucket]
) -> None:
    """Print a line for each library that computes nothing; raise KilnError for a glob that matches nothing.

    With `auto` the stage that chooses the libraries has told both.
    """
    if choices.byoc.auto:
        return
    usable, subgraphs = choices.backends, {name for bucket in buckets for name in bucket.subgraphs or ()}
    if choices.globs_of_model:
        choices.byoc.check_globs(model, target, usable, usable, subgraphs)
    used = {kernel.external.backend for kernel in _kernels(buckets) if kernel.external is not None}
    for name in usable:
        if name not in used:
            reason = (
                "others, or the globs, have all its subgraphs"
                if any(subgraph.split(" ", 1)[0] == name for subgraph in subgraphs)
                else "it supports no subgraph that is left for it"
            )
            print(f"kiln: warning: model '{model}': byoc: {name} computes nothing on '{target}': {reason}")


def _kernels(buckets: Sequence[LoweredBucket]) -> Iterator[KernelRecord]:
    return (kernel for bucket in buckets for case in bucket.cases for kernel in case.kernels)
