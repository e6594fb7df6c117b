"""Steps of the variants of a target: each variant runs the same steps, some of them with other kernels."""

from __future__ import annotations

from kiln.plan.schema import PlannedStep


def step_of(step: PlannedStep, variant: str) -> PlannedStep:
    """`step` with the kernel, arguments and extent that `variant` uses."""
    own = step.variants.get(variant)
    return step if own is None else step.model_copy(update=dict(own))
