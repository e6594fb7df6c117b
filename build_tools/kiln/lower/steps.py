"""Result of the `lower` stage as plain data: tensors, kernels, steps, parameters.

No stage after `lower` needs Relax to read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import tvm
from tvm import tirx

from kiln.config import sizes
from kiln.config.sizes import SizeExpr
from kiln.lower.schema import (
    KernelArgument,
    KernelRecord,
    LoweredFunction,
    OperatorRecord,
    PatchRecord,
    Step,
    TensorRecord,
)
from kiln.opinfo.attributes import OpInfo
from kiln.tir.builder import Array
from kiln.tir.view import TensorView

TensorKind = Literal["input", "param", "activation", "workspace"]
# (least, greatest) size by dimension.
Box = Mapping[str, tuple[int, int]]


# The parameter of a kernel that is the value of a dynamic size.
SIZE_PARAMETER = KernelArgument(dtype="int32", const=True, scalar=True)


def operators(ops: Sequence[OpInfo]) -> list[OperatorRecord]:
    """Op info as records of steps.json."""
    return [OperatorRecord.model_validate(op) for op in ops]


def label_of(ops: Sequence[OpInfo]) -> str:
    """Label of a step that computes `ops`, such as `conv2d+relu`; empty without operators."""
    return "+".join(op["name"].removeprefix("nn.") for op in ops)


@dataclass
class LoweredTensor:
    """A tensor of the plan.

    `alias`: name of the tensor whose memory it uses, with another shape; None: memory of its own. `slack`:
    bytes after its end that a library may read.
    """

    name: str
    dtype: str
    shape: list[SizeExpr]
    kind: TensorKind
    alias: str | None = None
    slack: int = 0

    def record(self, box: Box | None = None) -> TensorRecord:
        """The tensor in steps.json, with its bytes at the greatest sizes of `box`, slack included."""
        elements = 1
        for size in self.shape:
            elements *= sizes.bounds(size, box or {})[1]
        width = (int(tvm.DataType(self.dtype).bits) + 7) // 8
        return TensorRecord(
            name=self.name,
            dtype=self.dtype,
            shape=self.shape,
            kind=self.kind,
            alias=self.alias,
            bytes=elements * width + self.slack,
        )


@dataclass
class Steps:
    """The input of all later stages: tensors, kernels, steps, parameters, and the lowered functions."""

    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    tensors: dict[str, LoweredTensor] = field(default_factory=dict)
    kernels: list[KernelRecord] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    params: dict[str, Array] = field(default_factory=dict)
    functions: dict[str, tirx.PrimFunc] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # functions as JSON, where they were written so
    box: dict[str, tuple[int, int]] = field(default_factory=dict)
    # tensor name → its place in the memory of a larger tensor, where it does not use all of that memory.
    views: dict[str, TensorView] = field(default_factory=dict)
    patched: PatchRecord | None = None
    _count: int = 0

    def record(self) -> LoweredFunction:
        """The function in steps.json."""
        return LoweredFunction(
            inputs=self.inputs,
            outputs=self.outputs,
            tensors=[tensor.record(self.box) for tensor in self.tensors.values()],
            kernels=self.kernels,
            steps=self.steps,
        )

    def has_kernel(self, symbol: str) -> bool:
        """Whether `kernels` has the kernel `symbol`."""
        return any(kernel.symbol == symbol for kernel in self.kernels)

    def add(self, tensor: LoweredTensor) -> LoweredTensor:
        """Add `tensor` under its own name and return it."""
        self.tensors[tensor.name] = tensor
        return tensor

    def new(
        self, dtype: str, shape: list[SizeExpr], kind: TensorKind = "activation", alias: str | None = None
    ) -> LoweredTensor:
        """Add a tensor under a new name and return it."""
        self._count += 1
        return self.add(LoweredTensor(f"t{self._count}", dtype, shape, kind, alias))

    def constant(self, name: str, value: Array) -> LoweredTensor:
        """Add a parameter; returns the tensor that holds it."""
        self.params[name] = value
        return self.add(LoweredTensor(name, str(value.dtype), list(value.shape), "param"))

    def root(self, name: str) -> LoweredTensor:
        """The tensor that owns the memory of tensor `name`: the last one of its chain of aliases."""
        tensor = self.tensors[name]
        while tensor.alias is not None:
            tensor = self.tensors[tensor.alias]
        return tensor

    def drop_unused(self) -> None:
        """Remove tensors that no step uses, such as weights that steps read in packed form only."""
        used = {name for step in self.steps for name in step.tensors}
        used |= set(self.inputs) | set(self.outputs)
        for name in list(used):
            while (alias := self.tensors[name].alias) is not None:
                used.add(alias)
                name = alias
        self.tensors = {n: t for n, t in self.tensors.items() if n in used}
        self.params = {n: v for n, v in self.params.items() if n in used}
