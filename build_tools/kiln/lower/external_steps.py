"""Steps that external libraries compute: each calls a function defined in generated C or CUDA C."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tvm

from kiln.config import sizes
from kiln.lower.fused_steps import GroupLowering
from kiln.lower.schema import ExternalCode, GridAndBlock, KernelArgument, KernelRecord, SizeArgument, Step
from kiln.lower.steps import SIZE_PARAMETER, LoweredTensor, label_of, operators
from kiln.tir.symbols import simplify


class Externals:
    """Adds the steps of the subgraphs that kiln.byoc has assigned to libraries."""

    def __init__(self, mod: tvm.IRModule, groups: GroupLowering) -> None:
        self.groups, self.steps = groups, groups.steps
        self._about = json.loads(str((mod.attrs or {}).get("kiln.externals", "{}")))
        self._copies: dict[str, str] = {}  # input → its copy with slack, which libraries read

    def add(self, call: tvm.ir.Call, inputs: list[str], numbers: list[Any]) -> str:
        """Add the step of the `call_dps_packed` `call`; returns the tensor name of its result.

        `inputs`: names of tensors. `numbers`: sizes, the number of tasks if the function is parallel, and the
        three sizes of the grid if it is a kernel on a GPU.
        """
        symbol = str(call.args[0].global_symbol)
        facts = self._about[symbol]
        dims = self.groups.dims
        inputs = [self._readable(name, facts["reads_past"]) for name in inputs]
        output = self.steps.new(str(call.ty.dtype), dims.shape(call.ty))
        block = facts["block"]  # threads in a block of a GPU kernel; None for C
        grid = [dims.size(simplify(n)) for n in numbers[-3:]] if block else []
        numbers = numbers[:-3] if block else numbers
        extent = 0
        if facts["parallel"]:
            *numbers, tasks = numbers
            extent = dims.size(simplify(tasks))
        scratch = [self.steps.new("uint8", [facts["scratch"]], "workspace").name] if facts["scratch"] else []
        elements = int(np.prod([sizes.bounds(size, self.steps.box)[1] for size in output.shape]))
        if not self.steps.has_kernel(symbol):
            self._kernel(symbol, facts, inputs, output, bool(scratch), len(numbers), elements)
        self.steps.steps.append(
            Step(
                kernel=symbol,
                args=[*inputs, output.name, *scratch, *(SizeArgument(dim=dims.size(n)) for n in numbers)],
                writes=[output.name],
                label=label_of(facts["ops"]),
                extent=extent,
                attrs=facts["anchor"],
                macs=facts["depth"] * elements,
                in_place=[inputs[position] for position in facts["in_place"]],
                launch=GridAndBlock(grid=grid, block=block) if block else None,
            )
        )
        return output.name

    def _kernel(
        self, symbol: str, facts: dict[str, Any], inputs: list[str], output: LoweredTensor, scratch: bool,
        numbers: int, elements: int,
    ) -> None:  # fmt: skip
        """Add the record of the library function `symbol` to the kernels."""
        arguments = [KernelArgument(dtype=self.steps.tensors[name].dtype, const=True) for name in inputs]
        arguments.append(KernelArgument(dtype=output.dtype))
        arguments += [KernelArgument(dtype="uint8")] if scratch else []
        arguments += [SIZE_PARAMETER for _ in range(numbers)]
        self.steps.kernels.append(
            KernelRecord(
                symbol=symbol,
                args=arguments,
                parallel=facts["parallel"],
                family=facts["backend"],
                ops=operators(facts["ops"]),
                flops=2 * facts["depth"] * elements,
                external=ExternalCode(
                    **{key: facts[key] for key in ("backend", "key", "opens", "block", "source")},
                    **facts.get("ptx", {}),
                ),
            )
        )

    def _readable(self, name: str, slack: int) -> str:
        """The name of a tensor with the content of `name` and at least `slack` readable bytes after its end.

        An input is copied into the arena. A parameter needs no slack: another parameter follows it in the
        image, or the bytes that fill up the image.
        """
        root = self.steps.root(name)
        if slack == 0 or root.kind == "param":
            return name
        if root.kind == "input":
            if name not in self._copies:
                self._copies[name] = self.groups.copy(name)
            name = self._copies[name]
            root = self.steps.root(name)
        root.slack = max(root.slack, slack)
        return name
