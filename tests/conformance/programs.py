"""ONNX graphs imported, simplified, lowered and compiled as one program, and run at any sizes."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from kiln.config import sizes
from kiln.emit import objects
from kiln.graph.pipeline import simplify
from kiln.lower.llvm_target import tvm_target
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.schema import GridAndBlock, Step, TensorRecord
from kiln.lower.steps import Steps
from kiln.plan.lifetimes import root_of
from kiln.plan.loops import has_control, loop_ranges, without_invariants
from symbolic import Array, Dims, imported

from .lowered import Memory, loaded, runnable_alone


class TooManyError(Exception):
    """A step counts more elements than the bound of a size allows."""


def compile_unoptimised(functions: Mapping[str, Any], path: Path) -> None:
    """Compile functions for x86_64 without LLVM's optimisations, which take most of the time.

    For tests of graphs and of the order of steps. Those of the code of kernels optimise.
    """
    unoptimised = functools.partial(tvm_target, optimise=False)
    with mock.patch.object(objects, "tvm_target", unoptimised):
        objects.compile_object(dict(functions), runnable_alone("x86_64"), path)


class Program:
    """The kernels of the ONNX file `path`, compiled for x86_64 and loaded into this process.

    `dims`: the ranges of the dynamic dimensions. `optimise`: by LLVM, too.
    """

    def __init__(self, path: Path, dims: Dims | None = None, optimise: bool = False) -> None:
        mod, _ = imported(path, dims or {})
        self.steps = lower(simplify(mod), Lowering("m", runnable_alone("x86_64"), "pthread"))
        target = path.with_suffix(".o")
        if optimise:
            objects.compile_object(self.steps.functions, runnable_alone("x86_64"), target)
        else:
            compile_unoptimised(self.steps.functions, target)
        self.object = target
        self.library = loaded(target)

    def run(
        self, inputs: Sequence[Array], dims: Mapping[str, int] | None = None, calls: list[str] | None = None
    ) -> list[Array]:
        """The outputs at the sizes `dims`, every tensor between guards, in memory for the greatest sizes.

        `calls`: receives the label of each step that runs, in order.
        """
        return execute(self.steps, self.library, inputs, dims, calls=calls)


def execute(
    steps: Steps,
    library: Any,
    inputs: Sequence[Array],
    dims: Mapping[str, int] | None = None,
    of_inputs: Callable[[int], Any] | None = None,
    of_tensors: Callable[[int, int], Memory] = Memory,
    calls: list[str] | None = None,
) -> list[Array]:
    """The outputs of `steps`, whose kernels are in `library`, at the sizes `dims`.

    Every tensor is between guards, in memory for the greatest sizes; inputs and outputs are aligned to
    their element only. Raises TooManyError where a step counts more elements than the bound of a size.
    `of_inputs`: makes the memory of an input of so many bytes; `of_tensors`: of any tensor, of so many bytes
    and so aligned. `calls`: receives the label of each step that runs, in order.
    """
    dims = dict(dims or {})
    tensors = {tensor.name: tensor for tensor in steps.record().tensors}
    memory = _filled_memory(steps, tensors, inputs, of_inputs, of_tensors)
    parallel = {kernel.symbol for kernel in steps.kernels if kernel.parallel}
    order = without_invariants(tensors, steps.steps) if has_control(steps.steps) else steps.steps
    jumps = _Jumps(order)
    at = -1
    while (at := at + 1) < len(order):
        step = order[at]
        if calls is not None:
            calls.append(step.label)
        if step.branch is not None or step.loop is not None:
            at = jumps.after(at, bool(memory[root_of(tensors, step.tensors[0])].bytes[0]))
            continue
        if step.counts is not None:
            number = int(memory[root_of(tensors, str(step.args[0]))].bytes[:8].view("int64")[0])
            if not 0 <= number <= steps.box[step.counts.dim][1]:
                raise TooManyError(f"{step.counts.tensor}: {number}")
            dims[step.counts.dim] = number
        if step.counts is not None or step.check is not None:  # functions of the runtime
            continue
        arguments = [
            memory[root_of(tensors, argument)].pointer
            if isinstance(argument, str)
            else ctypes.c_int32(sizes.evaluate(argument.dim, dims))
            for argument in step.args
        ]
        if step.kernel in parallel:
            tasks = sizes.evaluate(step.extent, dims)
            arguments += [ctypes.c_int32(0), ctypes.c_int32(tasks)]
        if step.launch is not None:
            library.launch(step.kernel, _extents(step.launch, dims), arguments)
            continue
        getattr(library, step.kernel)(*arguments)
    for name, item in memory.items():
        item.check(name)
    return [_value(tensors, memory, name, dims) for name in steps.outputs]


def _filled_memory(
    steps: Steps,
    tensors: Mapping[str, TensorRecord],
    inputs: Sequence[Array],
    of_inputs: Callable[[int], Any] | None,
    of_tensors: Callable[[int, int], Memory],
) -> dict[str, Any]:
    """Memory of each tensor that is no alias, by its name; parameters and inputs are written into theirs."""
    outer = {root_of(tensors, name) for name in (*steps.inputs, *steps.outputs)}
    memory: dict[str, Any] = {
        name: of_tensors(tensor.bytes, np.dtype(tensor.dtype).itemsize if name in outer else 64)
        for name, tensor in tensors.items()
        if not tensor.alias
    }
    value_of_input = dict(zip(steps.inputs, inputs, strict=True))
    if of_inputs is not None:
        memory |= {name: of_inputs(value.nbytes) for name, value in value_of_input.items()}
    for name, value in {**steps.params, **value_of_input}.items():
        memory[name].bytes[: value.nbytes] = np.frombuffer(np.ascontiguousarray(value).tobytes(), "u1")
    return memory


class _Jumps:
    """The control steps of `order`: indices of the beginnings and ends of loops, and of parts of branches."""

    def __init__(self, order: Sequence[Step]) -> None:
        self._order = order
        self._begins = {end: begin for begin, end in loop_ranges(order)}
        self._ends = {begin: end for end, begin in self._begins.items()}
        self._parts = {
            (step.branch.number, step.branch.part): index
            for index, step in enumerate(order)
            if step.branch is not None
        }

    def after(self, at: int, condition: bool) -> int:
        """The index of the step before the next one, after control step `at` has read its condition."""
        branch, loop = self._order[at].branch, self._order[at].loop
        if loop is not None:
            if loop.ends:
                return self._begins[at] - 1
            return at if condition else self._ends[at]
        assert branch is not None
        if branch.part == "first" and not condition:
            return self._parts[branch.number, "second"]
        return self._parts[branch.number, "end"] if branch.part == "second" else at


def _value(
    tensors: Mapping[str, TensorRecord], memory: Mapping[str, Any], name: str, dims: Mapping[str, int]
) -> Array:
    """A copy of the tensor `name` at the sizes `dims`."""
    tensor = tensors[name]
    shape = [sizes.evaluate(size, dims) for size in tensor.shape]
    raw, dtype = memory[root_of(tensors, name)].bytes, np.dtype(tensor.dtype)
    count = int(np.prod(shape, dtype="int64")) * dtype.itemsize
    return np.asarray(raw[:count].view(dtype).reshape(shape).copy())


def _extents(launch: GridAndBlock, dims: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """The blocks of a launch at the sizes `dims`, and the threads of a block, along x, y and z."""
    return [sizes.evaluate(extent, dims) for extent in launch.grid], list(launch.block)
