"""Steps of the variants of a target: each variant runs the same steps, some of them with other kernels."""

from __future__ import annotations

from collections.abc import Iterable

from kiln.plan.schema import Plan, PlannedBucket, PlannedStep


def step_of(step: PlannedStep, variant: str) -> PlannedStep:
    """`step` with the kernel, arguments and extent that `variant` uses."""
    changes = step.variants.get(variant)
    return step if changes is None else step.model_copy(update=dict(changes))


def symbols_of(buckets: Iterable[PlannedBucket]) -> set[str]:
    """Symbols of the kernels that the steps of `buckets` call, in any variant."""
    steps = [step for bucket in buckets for step in bucket.steps]
    variant_symbols = {call.kernel for step in steps for call in step.variants.values()}
    return variant_symbols | {step.kernel for step in steps}


def plan_of(plan: Plan, variant: str) -> Plan:
    """The plan with the kernels that the steps of `variant` call in place of the first variant's."""
    buckets = [
        bucket.model_copy(update={"steps": [step_of(step, variant) for step in bucket.steps]})
        for bucket in plan.buckets
    ]
    return plan.model_copy(update={"buckets": buckets})


def called_by(plan: Plan, variant: str) -> set[str]:
    """Symbols of the kernels that the steps of one variant call."""
    return {step.kernel for bucket in plan.buckets for step in (step_of(s, variant) for s in bucket.steps)}
