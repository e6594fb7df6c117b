"""Steps of the variants of a target: each variant runs the same steps, some of them with other kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def step_of(step: Mapping[str, Any], variant: str) -> Mapping[str, Any]:
    """`step` of steps.json or plan.json with the kernel, arguments and extent that `variant` uses."""
    own = step.get("variants", {}).get(variant)
    return step if own is None else {**step, **own}
