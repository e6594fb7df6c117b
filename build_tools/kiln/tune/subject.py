"""Subjects: operators that are lowered alone, each with one candidate (TuningRecord), to be timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import tvm
from tvm import relax

from kiln.arrays import Array
from kiln.config import Target
from kiln.config.sizes import ceil_div
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.schema import ExternalCode
from kiln.tir.tuning_records import TuningRecord, shapes_of


def module_of(key: str, seed: int = 0) -> tvm.IRModule:
    """A Relax module with the convolution of `key`, a bias and ReLU; `seed` sets the random parameters."""
    x_shape, w_shape, stride, dilation, groups = shapes_of(key)
    rng = np.random.default_rng(seed)
    scale = float(np.sqrt(np.prod(w_shape[:3])))
    weights = rng.standard_normal(w_shape, dtype="float32") / np.float32(scale)
    bias = rng.standard_normal(w_shape[3], dtype="float32")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(x_shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = relax.op.nn.conv2d(
                x, relax.const(weights), strides=stride, dilation=dilation, groups=groups,
                data_layout="NHWC", kernel_layout="HWIO",
            )  # fmt: skip
            result = relax.op.nn.relu(relax.op.add(product, relax.const(bias)))
            output = builder.emit_output(builder.normalize(result))
        builder.emit_func_output(output)
    return builder.get()


@dataclass(frozen=True)
class Memory:
    """A tensor of a subject; `kind` is one of the kinds in time_kernels.h.

    `values` are the values of a parameter; None for other tensors, or where the subject does not keep them.
    """

    name: str
    bytes: int
    kind: str
    values: Array | None = None


@dataclass(frozen=True)
class Call:
    """A call of a kernel: `arguments` are indices into the subject's tensors, `tasks` its number of tasks.

    `tasks` is None for a kernel that is not divided into tasks.
    """

    symbol: str
    arguments: tuple[int, ...]
    tasks: int | None


class Subject:
    """The kernels of one operator, lowered with one candidate."""

    # For a subgraph that a library computes: the code by symbol, and the calls made once.
    externals: Mapping[str, ExternalCode] = MappingProxyType({})
    opened: Sequence[Call] = ()

    def __init__(
        self, name: str, key: str, choice: TuningRecord, target: Target, threads: str, *, values: bool = False
    ) -> None:
        """`values`: keep the values of the parameters, to compare results."""
        self.name, self.key, self.choice = name, key, choice
        target = target.for_variant(target.base)
        steps = lower(module_of(key), Lowering(name, target, threads, winograd="auto", choices={key: choice}))
        self.functions: Mapping[str, tvm.tirx.PrimFunc] = {
            f"{name}_{symbol}": func.with_attr("global_symbol", f"{name}_{symbol}")
            for symbol, func in steps.functions.items()
        }
        # A symbol contains a hash of the kernel's code, so subjects with equal sets have equal kernels.
        self.content = frozenset(steps.functions)
        largest = max(steps.params, key=lambda param: steps.params[param].nbytes)
        kinds = {steps.outputs[0]: "OUTPUT", largest: "WEIGHTS"}
        self.memory = [
            Memory(
                tensor.name,
                tensor.record(steps.box).bytes,
                kinds.get(tensor.name, "INPUT" if tensor.kind in ("input", "param") else "SCRATCH"),
                steps.params.get(tensor.name) if values else None,
            )
            for tensor in steps.tensors.values()
        ]
        index_by_name = {memory.name: index for index, memory in enumerate(self.memory)}
        parallel = {kernel.symbol: kernel.parallel for kernel in steps.kernels}
        self.calls = [
            Call(
                f"{name}_{step.kernel}",
                tuple(index_by_name[argument] for argument in step.tensors),
                int(step.extent) if parallel[step.kernel] else None,
            )
            for step in steps.steps
        ]

    def slowest_share(self, cores: int) -> float:
        """Load imbalance: the busiest core's share of the tasks, times `cores`; 1 for an even division.

        The maximum over all kernels; a kernel that is not divided counts as one task.
        """
        counts = [1 if call.tasks is None else call.tasks for call in self.calls]
        return max(ceil_div(count, cores) * cores / count for count in counts)

    def operands(self, seed: int = 1) -> bytes:
        """Bytes of all inputs and parameters, one tensor after another; random values where it keeps none."""
        rng = np.random.default_rng(seed)
        contents = []
        for memory in self.memory:
            if memory.kind in ("INPUT", "WEIGHTS"):
                kept = memory.values
                values = rng.standard_normal(memory.bytes // 4, dtype="float32") if kept is None else kept
                contents.append(values.tobytes())
        return b"".join(contents)
