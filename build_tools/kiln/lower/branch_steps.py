"""Steps of the branches of a graph (frontend/branches.py): three control steps, and memory for the results.

Both branches write the memory of the results, by the step that makes a value where only this branch has it,
else by a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kiln.frontend import branches
from kiln.lower.fused_steps import GroupLowering
from kiln.lower.schema import BranchMark, KernelArgument, KernelRecord, Step

CONTROL = "kiln_branch"  # no function: the plan's step itself decides where the run goes on


@dataclass
class _Choice:
    """A choice whose steps are being added: `start` is the index of the first step of its open branch."""

    number: int
    condition: str
    results: list[str]
    start: int = 0


class BranchSteps:
    """Adds the control steps of branches to `groups.steps`, and the steps that write their results."""

    def __init__(self, groups: GroupLowering) -> None:
        self.groups, self.steps = groups, groups.steps
        self._open: list[_Choice] = []
        self._count = 0

    def add(
        self, mark: Literal["first", "second", "end"], call: Any, value: Callable[[Any], str]
    ) -> str | list[str]:
        """Add the steps of one place in the order of `call`; returns the tensor names of its results.

        `value`: the tensor name of an expression; operands of a branch have one when it ends.
        """
        condition, first, second = branches.parts(call)
        if mark == "first":
            types = [expr.ty for expr in first]
            results = [self.steps.new(str(ty.dtype), self.groups.dims.shape(ty)).name for ty in types]
            self._open.append(_Choice(self._count, value(condition), results))
            self._count += 1
        choice = self._open[-1]
        if mark != "first":
            self._write(choice, [value(operand) for operand in (first if mark == "second" else second)])
        self._control(choice, mark)
        choice.start = len(self.steps.steps)
        if mark == "end":
            self._open.pop()
        return choice.results if len(choice.results) > 1 else choice.results[0]

    def _write(self, choice: _Choice, values: Sequence[str]) -> None:
        """Make `values`, computed by the branch that ends here, the results of the choice."""
        roots = [self.steps.root(name).name for name in values]
        for name, root, result in zip(values, roots, choice.results, strict=True):
            if roots.count(root) == 1 and self._in_place(choice, root, result):
                self.steps.tensors[root].alias = result
            else:
                self.groups.copy_into(name, result)

    def _in_place(self, choice: _Choice, made: str, result: str) -> bool:
        """Whether the steps of the open branch may make tensor `made` in the memory of `result`."""
        tensor, target = self.steps.tensors[made], self.steps.tensors[result]
        box = self.steps.box
        alike = (tensor.dtype, tensor.record(box).bytes) == (target.dtype, target.record(box).bytes)
        if tensor.kind != "activation" or not alike or tensor.slack:
            return False
        if any(self.steps.root(name).name == made for name in self.steps.views):
            return False
        before = self.steps.steps[: choice.start]
        inside = self.steps.steps[choice.start :]
        return self._uses(inside, made) and not self._uses(before, made)

    def _uses(self, steps: Sequence[Any], tensor: str) -> bool:
        return any(self.steps.root(name).name == tensor for step in steps for name in step.tensors)

    def _control(self, choice: _Choice, mark: Literal["first", "second", "end"]) -> None:
        if not self.steps.has_kernel(CONTROL):
            condition = KernelArgument(dtype="bool", const=True)
            self.steps.kernels.append(
                KernelRecord(symbol=CONTROL, args=[condition], parallel=False, family="branch", check=True)
            )
        text = {"first": "first branch", "second": "second branch", "end": "end"}[mark]
        label = f"{text} of choice {choice.number}"
        self.steps.steps.append(
            Step(
                kernel=CONTROL,
                args=[choice.condition],
                writes=[],
                label=label,
                branch=BranchMark(number=choice.number, part=mark),
                macs=0,
            )
        )
