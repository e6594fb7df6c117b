"""Lowered kernels of a model: each is lowered once, in this process or beforehand in its forks.

Lowering takes most of the time of the `lower` stage, and no kernel needs another one. But the steps need the
symbol of each kernel, which is a digest of its lowered code, and its scratch memory. So the graph is walked
twice: in the first walk, `KernelPlan` records the kernels, which forks then lower; in the second walk,
`LoweredKernels` uses the results. A kernel that the first walk missed is lowered in the second one, with the
same result.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from kiln import forks
from kiln.callbacks import structural_walk
from kiln.kernels.families import GroupKernel
from kiln.lower.schema import KernelArgument, KernelRecord
from kiln.lower.step_kernels import Build, VariantKernel, element_type
from kiln.lower.steps import SIZE_PARAMETER, Steps, operators
from kiln.opinfo.attach import OpInfo
from kiln.params.encodings import Encoding, find
from kiln.params.store import from_text
from kiln.tir import abi
from kiln.tir.builder import Array
from kiln.tir.kernel_name import digest, with_plain_names


@dataclass(frozen=True)
class _Ready:
    """A lowered kernel: its function, named `symbol`, and the function as JSON where a fork wrote that."""

    symbol: str
    func: tirx.PrimFunc
    scratch: list[tuple[str, int]]
    text: str | None = None


def _lower(group_kernel: GroupKernel, ops: Sequence[OpInfo], build: Build) -> _Ready:
    lowered = abi.lower(group_kernel.kernel, build.target)
    plain = with_plain_names(lowered.func)
    stem = ops[0]["name"].split(".")[-1] if ops else "kernel"
    symbol = f"kilnk_{stem}_{digest(plain)}"  # the prefix kiln_ is reserved for the runtime
    symbol += f"_{build.name}" if build.name else ""
    func = plain.with_attr("global_symbol", symbol)
    return _Ready(symbol, func, lowered.scratch)


@dataclass
class _Known:
    """Values by function; structurally equal functions have one value.

    Variants with the same vector unit share equal kernels: their other features change the loops that use
    them. But a multiplication and an addition of floats become one instruction only if the variant has fused
    multiply-add.
    """

    entries: dict[Any, list[tuple[tirx.PrimFunc, Any]]] = field(default_factory=dict)

    def find(self, func: tirx.PrimFunc, structure: int, build: Build | None = None) -> Any:
        """The value of `func`, whose structural hash is `structure`, or None. `build`: of a kernel."""
        for other, value in self.entries.get(self._key(func, structure, build), []):
            if other.same_as(func) or tvm_ffi.structural_equal(other, func):
                return value
        return None

    def add(self, func: tirx.PrimFunc, structure: int, value: Any, build: Build | None = None) -> None:
        self.entries.setdefault(self._key(func, structure, build), []).append((func, value))

    @staticmethod
    def _key(func: tirx.PrimFunc, structure: int, build: Build | None) -> tuple[Any, ...]:
        if build is None:
            return (structure,)
        machine = build.machine
        fused = machine.fma or not _multiplies_floats(func)  # fused multiply-add changes the code
        return structure, machine.isa, machine.vector_bits, fused


def _multiplies_floats(func: tirx.PrimFunc) -> bool:
    """Whether a kernel reads floats first and multiplies floats: of 32 or 64 bits, or computed in 32.

    A kernel that reads integers first multiplies floats only to scale its results.
    """
    if "float" not in str(func.params[0].dtype):
        return False
    float_products = []

    def on_product(node: tirx.Mul) -> None:
        if "float" in str(node.ty.dtype):
            float_products.append(node)

    structural_walk(func.body, [(tirx.Mul, on_product)])
    return bool(float_products)


class KernelPlan:
    """Notes the kernels that a walk of the graph needs, and lowers them in forks of this process."""

    def __init__(self) -> None:
        self._known = _Known()
        self._needed: list[tuple[GroupKernel, Sequence[OpInfo], Build]] = []
        self._ready: dict[int, _Ready] = {}
        # By group, its function and kernels as GroupLowering made them, for the second walk.
        self.groups: dict[Any, Any] = {}
        self._functions, self._numbers = _Known(), itertools.count()  # see `number`
        # By the address of a parameter's value, which is kept here: its encoding. Names of parameters are not
        # the same in both walks, since the first one packs nothing.
        self._encodings: dict[int, tuple[Array, Encoding | None]] = {}

    def number(self, func: tirx.PrimFunc) -> int:
        """A number that is the same for all structurally equal functions, and for no others."""
        structure = tvm_ffi.structural_hash(func)
        number: int | None = self._functions.find(func, structure)
        if number is None:
            number = next(self._numbers)
            self._functions.add(func, structure, number)
        return number

    def of(self, part: GroupKernel, ops: Sequence[OpInfo], build: Build) -> VariantKernel:
        """Note that the kernel of `part` is needed. The symbol in the result is a placeholder."""
        structure = tvm_ffi.structural_hash(part.kernel.func)
        number = self._known.find(part.kernel.func, structure, build)
        if number is None:
            number = len(self._needed)
            self._known.add(part.kernel.func, structure, number, build)
            self._needed.append((part, ops, build))
        return VariantKernel(part, f"planned{number}", [])

    def lower(self) -> None:
        """Lower the kernels noted so far. Kernels that fail are left to the second walk, which raises."""
        with tempfile.TemporaryFile() as file:  # without a name, so that a killed process leaves nothing

            def write(number: int) -> None:
                with contextlib.suppress(Exception):  # TVM's passes raise many kinds
                    ready = _lower(*self._needed[number])
                    text = tvm.ir.save_json(ready.func)
                    _append(file.fileno(), [number, ready.symbol, ready.scratch, text])

            forks.each(write, range(len(self._needed)))
            file.seek(0)
            for line in file:
                number, symbol, scratch, text = json.loads(line)
                pairs = [(dtype, size) for dtype, size in scratch]
                self._ready[number] = _Ready(symbol, from_text(text), pairs, text)

    def encoding(self, value: Array) -> Encoding | None:
        """The encoding of a parameter's value, searched once for both walks."""
        if id(value) not in self._encodings:
            self._encodings[id(value)] = (value, find(value))
        return self._encodings[id(value)][1]

    def find(self, func: tirx.PrimFunc, structure: int, build: Build) -> _Ready | None:
        """The lowered kernel of `func`, where the forks made one."""
        return self._ready.get(self._known.find(func, structure, build))


def _append(file: int, record: Sequence[Any]) -> None:
    """Append a line to a file that forks share; completely, or not at all where that fails."""
    fcntl.lockf(file, fcntl.LOCK_EX)
    end = os.lseek(file, 0, os.SEEK_END)
    try:
        with os.fdopen(file, "ab", closefd=False) as stream:
            stream.write(f"{json.dumps(record)}\n".encode())
    except OSError:
        os.ftruncate(file, end)
        raise
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)


class LoweredKernels:
    """Lowers kernels and adds their functions and records to `steps`; `plan`: kernels lowered beforehand."""

    def __init__(self, steps: Steps, plan: KernelPlan) -> None:
        self._steps, self._plan = steps, plan
        self._known = _Known()

    def of(self, part: GroupKernel, ops: Sequence[OpInfo], build: Build) -> VariantKernel:
        """The lowered kernel of `part` for a variant. Raises exceptions of TVM's passes."""
        structure = tvm_ffi.structural_hash(part.kernel.func)
        lowered_before: VariantKernel | None = self._known.find(part.kernel.func, structure, build)
        if lowered_before is not None:
            return replace(lowered_before, part=part)
        ready = self._plan.find(part.kernel.func, structure, build) or _lower(part, ops, build)
        lowered_before = VariantKernel(part, ready.symbol, ready.scratch)
        self._known.add(part.kernel.func, structure, lowered_before, build)
        if not self._steps.has_kernel(ready.symbol):
            self._steps.functions[ready.symbol] = ready.func
            if ready.text is not None:
                self._steps.texts[ready.symbol] = ready.text
            self._steps.kernels.append(_record(part, ops, build, ready))
        return lowered_before


def _record(group_kernel: GroupKernel, ops: Sequence[OpInfo], build: Build, ready: _Ready) -> KernelRecord:
    written = abi.written(ready.func)
    pointers = ready.func.params[: len(group_kernel.buffers)]
    arguments = [
        KernelArgument(dtype=element_type(pointer), const=pointer not in written) for pointer in pointers
    ]
    arguments += [KernelArgument(dtype=dtype) for dtype, _size in ready.scratch]
    arguments += [SIZE_PARAMETER for _ in group_kernel.kernel.sizes]
    return KernelRecord(
        symbol=ready.symbol,
        args=arguments,
        parallel=group_kernel.kernel.tasks is not None,
        family=group_kernel.kernel.family,
        ops=operators(ops),
        flops=2 * group_kernel.macs,
        variant=build.name or None,
    )
