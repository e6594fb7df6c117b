"""The steps of a bucket with their times, operators, operations and bytes moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiln.plan.schema import ExpressionArgument, Plan


@dataclass(frozen=True)
class TimedStep:
    """A step of the plan, its time in seconds, and its work in this time: in all iterations of its loop."""

    index: int
    kernel: str
    family: str
    label: str  # names of the operators
    ops: Sequence[Mapping[str, Any]]  # {name, attrs} of each operator
    seconds: float
    operations: int  # a multiply-accumulate counts two
    dtype: str  # element type of the first argument
    params: int  # bytes read that no earlier step of the same run has read
    read: int  # bytes of the other inputs
    written: int

    @property
    def rate(self) -> float:
        """Giga-operations per second."""
        return self.operations / self.seconds * 1e-9 if self.seconds else 0.0

    @property
    def bytes(self) -> int:
        """Bytes of all arguments: the least that the step has to read and write."""
        return self.params + self.read + self.written

    def of_peak(self, flops: float | None) -> float | None:
        """The step's rate as a fraction of `flops`, the peak in operations per second.

        None where the step has next to no arithmetic or is not in float32, or where `flops` is not known.
        """
        if flops is None or self.dtype != "float32" or self.rate < 0.1:
            return None
        return self.operations / flops / self.seconds


def steps_of(
    plan: Plan, seconds: Sequence[float], bucket: int = 0, calls: Sequence[int] = ()
) -> list[TimedStep]:
    """The steps of one bucket of a plan with a time for each; operations and bytes at its greatest sizes.

    `calls`: how often a run calls each step; empty: once, as in plans without loops and branches.
    """
    kernels = {kernel.symbol: kernel for kernel in plan.kernels}
    planned = plan.buckets[bucket].steps
    steps = []
    for index, (step, time, times) in enumerate(
        zip(planned, seconds, calls or [1] * len(planned), strict=True)
    ):
        kernel = kernels[step.kernel]
        moved = {"params": 0, "read": 0, "written": 0}
        for argument, declared in zip(step.args, kernel.args, strict=True):
            if not isinstance(argument, ExpressionArgument):
                which = "params" if argument.at == "params" else "read" if declared.const else "written"
                moved[which] += times * argument.bytes
        operations = times * (2 * (step.macs or 0) or kernel.flops)
        ops = [{"name": op.name, "attrs": op.attrs} for op in kernel.ops]
        dtype = kernel.args[0].dtype
        steps.append(
            TimedStep(index, step.kernel, kernel.family, step.label, ops, time, operations, dtype, **moved)
        )
    return steps
