"""The steps of a bucket with the time that each took: operators, work, bytes moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiln.config import sizes


@dataclass(frozen=True)
class Step:
    """A step of the plan and how long it took."""

    index: int
    kernel: str
    family: str
    label: str  # its operators' names
    ops: Sequence[Mapping[str, Any]]  # {name, attrs} of each operator
    seconds: float
    operations: int  # a multiply-accumulate counts two
    dtype: str  # of its first argument
    params: int  # bytes read that no earlier step of the same run has read
    read: int  # bytes of its other inputs
    written: int

    @property
    def rate(self) -> float:
        """Giga-operations per second."""
        return self.operations / self.seconds * 1e-9 if self.seconds else 0.0

    @property
    def bytes(self) -> int:
        """Of all arguments: what it has to read and write at least."""
        return self.params + self.read + self.written

    def of_peak(self, flops: float | None) -> float | None:
        """The share of its time that its arithmetic alone would take at `flops` operations per second.

        None: there is next to none, or it is not in float32, or `flops` is not known.
        """
        if flops is None or self.dtype != "float32" or self.rate < 0.1:
            return None
        return self.operations / flops / self.seconds


def steps_of(
    plan: Mapping[str, Any], seconds: Sequence[float], bucket: int = 0, dims: Mapping[str, int] | None = None
) -> list[Step]:
    """The steps of a bucket of plan.json with a time for each; what depends on sizes is that for `dims`."""
    kernels = {kernel["symbol"]: kernel for kernel in plan["kernels"]}
    steps = []
    for index, (step, time) in enumerate(zip(plan["buckets"][bucket]["steps"], seconds, strict=True)):
        kernel = kernels[step["kernel"]]
        moved = {"params": 0, "read": 0, "written": 0}
        for argument, about in zip(step["args"], kernel["args"], strict=False):  # open sizes come behind
            which = "params" if argument["at"] == "params" else "read" if about.get("const") else "written"
            moved[which] += sizes.evaluate(argument.get("bytes", 0), dims or {})
        operations = 2 * sizes.evaluate(step.get("macs", 0), dims or {}) or kernel["flops"] or 0
        ops = [{"name": op["name"], "attrs": op.get("attrs") or {}} for op in kernel.get("ops", [])]
        family, dtype = kernel.get("family", ""), kernel["args"][0]["dtype"]
        steps.append(
            Step(index, step["kernel"], family, step["label"], ops, time, operations, dtype, **moved)
        )
    return steps
