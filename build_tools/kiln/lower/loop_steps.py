"""Steps of the loops of a graph (frontend/loops.py): memory for carried values, and two control steps.

Each carried value has memory of its own, which is written before the loop and at the end of each iteration.
Where the step that makes the new value may write there directly, there is no copy at the end.
"""

from __future__ import annotations

from typing import Any

from kiln.errors import KilnError
from kiln.frontend import added_operators, loops
from kiln.lower.fused_steps import GroupLowering
from kiln.lower.schema import KernelArgument, KernelRecord, LoopMark, Step

CONTROL = "kiln_loop"  # no function: the plan's step itself decides where the run goes on


class LoopSteps:
    """Adds the steps of loops to `groups.steps`."""

    def __init__(self, groups: GroupLowering, on_gpu: bool) -> None:
        self.groups, self.steps, self.on_gpu = groups, groups.steps, on_gpu
        self._memory: dict[int, list[str]] = {}  # by loop, the tensors that hold its values
        self._first: dict[int, int] = {}  # by loop, the index of its first control step

    def is_loop(self, call: Any) -> bool:
        """Whether `call` begins or ends a loop."""
        return added_operators.name_of(call) in (loops.BEGIN, loops.END)

    def add(self, call: Any, inputs: list[str]) -> list[str]:
        """Add the steps of `call`; returns the names of its results. Raises KilnError on a GPU."""
        if self.on_gpu:
            raise KilnError(
                f"{self.groups.dims.model}: a Loop, Scan or WHILE whose iterations are not unrolled: kernels "
                "of this target run on a GPU; make the number of iterations a small constant, or build for "
                "a CPU"
            )
        about = added_operators.attributes_of(call)
        number, count = int(about["loop"]), int(about["values"])
        if added_operators.name_of(call) == loops.BEGIN:
            return self._begin(number, inputs[:count])
        return [*self._end(number, inputs[:count]), *inputs[count:]]

    def _begin(self, number: int, first: list[str]) -> list[str]:
        held = [self.groups.copy(name) for name in first]
        self._memory[number], self._first[number] = held, len(self.steps.steps)
        self._control(number, held, ends=False)
        return held

    def _end(self, number: int, following: list[str]) -> list[str]:
        held = self._memory[number]
        sources = []
        for index, name in enumerate(following):
            root = self.steps.root(name).name
            # Of values that change places, none may be overwritten before it is read.
            if root in held and root != held[index]:
                name = self.groups.copy(name)
            sources.append(name)
        for index, name in enumerate(sources):
            root = self.steps.root(name).name
            if root == held[index]:
                continue
            roots = [self.steps.root(other).name for other in sources]
            if roots.count(root) == 1 and self._in_place(number, root, held[index]):
                self.steps.tensors[root].alias = held[index]
            else:
                self.groups.copy_into(name, held[index])
        self._control(number, held, ends=True)
        return held

    def _in_place(self, number: int, made: str, held: str) -> bool:
        """Whether the steps may make the tensor `made` in the memory of `held`, the value before."""
        tensor, previous = self.steps.tensors[made], self.steps.tensors[held]
        alike = (tensor.dtype, tensor.shape, tensor.slack) == (previous.dtype, previous.shape, previous.slack)
        viewed = any(self.steps.root(name).name == made for name in self.steps.views)
        inside = self.steps.steps[self._first[number] + 1 :]
        before = self.steps.steps[: self._first[number] + 1]
        if (
            tensor.kind != "activation"
            or not alike
            or viewed
            or any(self._uses(step, made) for step in before)
        ):
            return False
        if any(step.loop is not None for step in inside):  # steps of a loop inside run several times
            return False
        first = next(
            (index for index, step in enumerate(inside) if made in map(self._root, step.writes)), None
        )
        if first is None or any(self._uses(step, held) for step in inside[first + 1 :]):
            return False
        step = inside[first]
        operands = [self._root(name) for name in step.in_place]
        return not self._uses(step, held) or (held in operands and self._uses(step, held) == 1)

    def _root(self, name: str) -> str:
        return self.steps.root(name).name

    def _uses(self, step: Step, tensor: str) -> int:
        """Number of arguments of `step` that are stored in the memory of `tensor`."""
        return [self._root(name) for name in step.tensors].count(tensor)

    def _control(self, number: int, held: list[str], *, ends: bool) -> None:
        if not self.steps.has_kernel(CONTROL):
            condition = KernelArgument(dtype="bool", const=True)
            self.steps.kernels.append(
                KernelRecord(symbol=CONTROL, args=[condition], parallel=False, family="loop", check=True)
            )
        label = f"{'end' if ends else 'begin'} of loop {number}"
        self.steps.steps.append(
            Step(
                kernel=CONTROL,
                args=[held[0]],
                writes=held,
                label=label,
                loop=LoopMark(number=number, ends=ends),
                macs=0,
            )
        )
