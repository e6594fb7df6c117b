"""Kernels as the build makes them, called from Python on memory with guards around every tensor."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from kiln.config import Target, load_target
from kiln.config.boxes import STATIC_BOX
from kiln.config.interface import Interface
from kiln.config.slice_records import PlanConfig
from kiln.device.check.host_cpu import obstacle
from kiln.emit.object_symbols import symbols
from kiln.emit.objects import compile_all
from kiln.emit.run_time_library import ALLOWED
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.schema import LoweredBucket, Step
from kiln.lower.steps import Steps
from kiln.lower.target_check import features_by_variant
from kiln.plan.lifetimes import root_of
from kiln.plan.schema import Plan, PlannedStep, PortArgument
from kiln.plan.stage import LowerResult, make_plan
from kiln.plan.variants import step_of
from relaxed import const as const
from relaxed import module as module

Array = npt.NDArray[Any]

GUARD = 128  # bytes before and after each tensor
FILL = 0x7F


class Memory:
    """Bytes between two guards, at an address that is aligned to `align` bytes and to no more.

    `room`: makes the array of that many bytes for them; None: memory of this process.
    """

    def __init__(self, size: int, align: int, room: Callable[[int], Array] | None = None) -> None:
        self._all = (room or (lambda count: np.empty(count, "uint8")))(size + 2 * GUARD + 2 * 64)
        self._all[:] = FILL
        start = -self._all.ctypes.data % 64 + GUARD
        start += align if align < 64 else 0
        self.bytes = self._all[start : start + size]
        self._before, self._after = self._all[start - 32 : start], self._all[start + size :]

    @property
    def pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.bytes.ctypes.data)

    def check(self, name: str) -> None:
        """Fail if a byte of a guard was overwritten."""
        assert (self._before == FILL).all(), f"{name}: bytes before it were written"
        assert (self._after == FILL).all(), f"{name}: bytes after it were written"


class Compiled:
    """The kernels of a module, compiled for a target and loaded into this process."""

    def __init__(
        self,
        mod: tvm.IRModule,
        target: Target,
        folder: Path,
        threads: str = "pthread",
        winograd: str = "off",
        variant: str | None = None,
        lowered: Steps | None = None,
    ) -> None:
        """`variant`: the variant whose kernels run; None: the target's own, lowered alone.

        `lowered`: what `lower` has made of `mod` for the target, so that several variants share it.
        """
        self.own = target.for_variant(variant or target.base)
        self.target, self.threads = target if variant else self.own, threads
        self.result = lowered or lower(mod, Lowering("m", self.target, threads, winograd=winograd))
        box = self.result.box
        self.tensors = {tensor.name: tensor.record(box) for tensor in self.result.tensors.values()}
        self.kernels = {kernel.symbol: kernel for kernel in self.result.kernels}
        self.variant = variant or ""
        self.steps = [step_of(step, self.variant) for step in self.result.steps]
        used = {step.kernel for step in self.steps}
        functions = {name: f for name, f in self.result.functions.items() if name in used}
        folder.mkdir(parents=True, exist_ok=True)
        self.object = folder / "kernels.o"
        self.undefined: set[str] = set()
        if self.result.functions:
            compile_all(functions, self.own, self.object, "m", self.result.kernels)
            self.undefined = undefined_symbols(self.object)
        self._library: ctypes.CDLL | None = None

    def load(self) -> Compiled:
        """Link, without a library: every symbol that the kernels need beyond the allowed ones is an error.

        So is an instruction that this machine lacks, which would end the whole process: see `runnable`.
        """
        assert self.undefined <= ALLOWED
        assert obstacle(self.own) is None, f"{self.own.name}: {obstacle(self.own)}"
        if self.result.functions:
            self._library = loaded(self.object)
        return self

    @property
    def families(self) -> list[str]:
        """The family of each kernel."""
        return [kernel.family for kernel in self.kernels.values()]

    def call(
        self, step: Step | PlannedStep, pointers: list[ctypes.c_void_p], tasks: Sequence[int] | None
    ) -> None:
        """Run one step at once, or its tasks one at a time in the order of `tasks`."""
        assert self._library is not None
        function = getattr(self._library, step.kernel)
        function.restype = None
        if not self.kernels[step.kernel].parallel:
            function(*pointers)
        elif tasks is None:
            function(*pointers, ctypes.c_int32(0), ctypes.c_int32(step.extent))
        else:
            for task in tasks:
                function(*pointers, ctypes.c_int32(task), ctypes.c_int32(task + 1))

    def _read(self, memory: Memory, name: str) -> Array:
        tensor = self.tensors[name]
        return memory.bytes.view(tensor.dtype).reshape(tensor.shape).copy()

    def separate(self, inputs: Sequence[Array], seed: int | None = None) -> list[Array]:
        """Run with memory of its own for each tensor, outputs aligned to their element only.

        `seed`: run the tasks of each step one by one, in a random order.
        """
        shuffle = None if seed is None else np.random.default_rng(seed)
        memory: dict[str, Memory] = {}
        for name, tensor in self.tensors.items():
            if tensor.alias is None:
                item = np.dtype(tensor.dtype).itemsize
                outer = tensor.kind == "input" or name in self._output_roots()
                memory[name] = Memory(tensor.bytes, item if outer else 64)
                if name in self.result.params:
                    memory[name].bytes[:] = _raw(self.result.params[name])
        for name, value in zip(self.result.inputs, inputs, strict=True):
            memory[name].bytes[:] = _raw(value)
        for step in self.steps:
            roots = [root_of(self.tensors, name) for name in step.tensors]
            tasks = None if shuffle is None else shuffle.permutation(step.extent).tolist()
            unwritten = set(roots) - {root_of(self.tensors, name) for name in step.writes}
            constant = [
                n for n in unwritten if n in self.tensors and self.tensors[n].kind in ("input", "param")
            ]
            constants = {name: memory[name].bytes.copy() for name in constant}
            self.call(step, [memory[name].pointer for name in roots], tasks)
            for name in constants:
                assert (memory[name].bytes == constants[name]).all(), f"{step.kernel} wrote into {name}"
        for name, item in memory.items():
            item.check(name)
        return [self._read(memory[root_of(self.tensors, name)], name) for name in self.result.outputs]

    def _output_roots(self) -> set[str]:
        return {root_of(self.tensors, name) for name in self.result.outputs}

    def planned(self, inputs: Sequence[Array]) -> list[Array]:
        """Run as a plan says: one arena, in which tensors share memory."""
        tensors = [self.tensors[name] for name in [*self.result.inputs, *self.result.outputs]]
        ports = [
            {"name": tensor.name, "c_name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape}
            for tensor in tensors
        ]
        count = len(self.result.inputs)
        interface = Interface.model_validate({"inputs": ports[:count], "outputs": ports[count:]})
        case = {"name": "", "params": "0/", "when": None, "lifted": {}, **dict(self.result.record())}
        values = {f"0/{name}": value for name, value in self.result.params.items()}
        variants = features_by_variant(self.target)
        lowered_bucket = {"cases": [case], "threads": self.threads, "variants": variants}
        lowered = LowerResult(LoweredBucket.model_validate(lowered_bucket), values)
        plan, payload = make_plan([lowered], [STATIC_BOX], interface, PlanConfig(name="m"), self.target)
        bucket = plan.buckets[0]
        places = {
            "arena": [Memory(bucket.arena_bytes, 64)],
            "params": [Memory(len(payload), 64)],
            "input": [Memory(np.asarray(value).nbytes, np.asarray(value).itemsize) for value in inputs],
            "output": [Memory(port.bytes, np.dtype(port.dtype).itemsize) for port in plan.outputs],
        }
        places["params"][0].bytes[:] = np.frombuffer(payload, "uint8")
        for memory, value in zip(places["input"], inputs, strict=True):
            memory.bytes[:] = _raw(value)
        variant = self._chosen(plan)
        for planned in bucket.steps:
            step, pointers = step_of(planned, variant), []
            for argument in step.args:
                memory = places[argument.at][argument.index if isinstance(argument, PortArgument) else 0]
                assert argument.offset + argument.bytes <= memory.bytes.size
                pointers.append(ctypes.c_void_p(memory.bytes.ctypes.data + argument.offset))
            self.call(step, pointers, None)
        for kind, memories in places.items():
            for memory in memories:
                memory.check(kind)
        for memory, value in zip(places["input"], inputs, strict=True):
            assert (memory.bytes == _raw(value)).all(), "an input was overwritten"
        return [
            self._read(memory, name)
            for memory, name in zip(places["output"], self.result.outputs, strict=True)
        ]

    def _chosen(self, plan: Plan) -> str:
        """The variant of a plan that serves the variant of this object: itself, or the last one before it."""
        names = self.target.variant_names
        own = names.index(self.variant) if self.variant else 0
        assert plan.cpu is not None
        return [kept.name for kept in plan.cpu.variants if names.index(kept.name) <= own][-1]

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs, after a check that neither tasks nor placement change a byte of them."""
        outputs = self.separate(inputs)
        for other in (self.separate(inputs, seed=1), self.planned(inputs)):
            for index, (a, b) in enumerate(zip(outputs, other, strict=True)):
                assert a.tobytes() == b.tobytes(), f"output {index} depends on tasks or placement"
        return outputs


def _raw(value: Array) -> npt.NDArray[np.uint8]:
    return np.frombuffer(np.ascontiguousarray(value).tobytes(), "uint8")


_NUMBERS = itertools.count()


def loaded(path: Path) -> ctypes.CDLL:
    """The object `path` as a library in this process.

    The linker alone: the compiler's driver would take four times as long to add a library and start-up code
    that kernels do not need. Each library has a name of its own: the loader would return one that it has
    loaded from the same path, whatever the file contains now.
    """
    library = path.with_suffix(f".{next(_NUMBERS)}.so")
    subprocess.run(["ld", "-shared", "-o", library, path], check=True)
    return ctypes.CDLL(str(library))


def undefined_symbols(path: Path) -> set[str]:
    """The undefined symbols of an object."""
    return {one.name for one in symbols(path.read_bytes()) if one.name and not one.defined}


def runnable(name: str, variant: str | None = None) -> Target:
    """A shipped target with all its variants; skips the test where this machine cannot run its code.

    `variant`: the variant whose code runs; None: the target's base.
    """
    target = load_target(name)
    reason = obstacle(target.for_variant(variant or target.base))
    if reason is not None:
        pytest.skip(f"{name}, variant {variant}: {reason}" if variant else f"{name}: {reason}")
    return target


def runnable_alone(name: str) -> Target:
    """The target of `runnable` without its variants, whose kernels would be lowered and compiled too."""
    target = runnable(name)
    return target.for_variant(target.base)


def run(mod: tvm.IRModule, inputs: Sequence[Array], target: Target, folder: Path) -> list[Array]:
    """Lower, compile, load and run a module."""
    return Compiled(mod, target, folder).load().run(inputs)


def close(got: Array, want: Array, tolerance: float = 1e-5) -> None:
    """Fail unless `got` has `want`'s shape and differs by no more than `tolerance` of its largest value."""
    assert got.shape == want.shape
    scale = max(1.0, float(np.abs(want).max(initial=0.0)))
    error = np.abs(got.astype("float64") - want.astype("float64"))
    assert not np.isnan(got).any() or np.isnan(want).any()
    worst = float(np.nanmax(error, initial=0.0))
    where = np.unravel_index(int(np.nanargmax(error)), error.shape) if error.size else ()
    assert worst <= tolerance * scale, f"error {worst:g} at {where}, scale {scale:g}"
