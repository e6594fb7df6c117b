"""Steps of the variants of a target: each variant runs the same steps, some of them with other kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from kiln.lower.schema import Step, VariantFeatures
from kiln.plan.schema import Plan, PlannedBucket, PlannedStep

StepOrPlanned = TypeVar("StepOrPlanned", Step, PlannedStep)


def step_of(step: StepOrPlanned, variant: str) -> StepOrPlanned:
    """`step` with the kernel, arguments and extent that `variant` uses."""
    changes = step.variants.get(variant)
    return step if changes is None else step.model_copy(update=dict(changes))


def distinct(
    buckets: Sequence[PlannedBucket], variants: Sequence[VariantFeatures]
) -> tuple[list[PlannedBucket], list[VariantFeatures]]:
    """The buckets and variants without the variants that call the same kernels as the variant before.

    `variants`: in the order in which they are preferred. A variant is left out only where its processors can
    run the variant before, which they then use: a variant for integers, for instance, of a model of floats.
    """
    steps = [step for bucket in buckets for step in bucket.steps]
    kept = list(variants[:1])
    for variant in variants[1:]:
        runs_it = set(kept[-1].features) <= set(variant.features)
        calls = [(step.variants.get(kept[-1].name), step.variants.get(variant.name)) for step in steps]
        if not runs_it or any(before != own for before, own in calls):
            kept.append(variant)
    names = {variant.name for variant in kept}
    return [_with_calls_of(bucket, names) for bucket in buckets], kept


def _with_calls_of(bucket: PlannedBucket, names: set[str]) -> PlannedBucket:
    """`bucket` with the calls of the variants in `names` alone."""
    steps = [
        step.model_copy(
            update={"variants": {name: call for name, call in step.variants.items() if name in names}}
        )
        for step in bucket.steps
    ]
    return bucket.model_copy(update={"steps": steps})


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
