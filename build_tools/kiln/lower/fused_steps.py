"""Steps of fused groups; groups that are structurally equal share one kernel, lowered once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from kiln.config import sizes
from kiln.config.sizes import SizeExpr
from kiln.errors import KilnError
from kiln.kernels.cpu.gemm_int8 import narrow
from kiln.kernels.families import Part, kernels_of
from kiln.lower.dims import Dims
from kiln.lower.packings import Packings, limited
from kiln.lower.recompute import computed, constant_formula
from kiln.lower.schema import KernelArgument, KernelRecord, SizeArgument
from kiln.lower.steps import SIZE_PARAMETER, Steps, label_of, operators
from kiln.lower.views.in_place_padding import copy_of, with_views
from kiln.opinfo import attach
from kiln.opinfo.attach import OpInfo, refusal
from kiln.params import store
from kiln.tir import abi
from kiln.tir.builder import Machine
from kiln.tir.kernel_name import digest
from kiln.tir.symbol_factors import whole_products
from kiln.tir.symbols import SymbolRanges, divided


@dataclass(frozen=True)
class Made:
    """The kernel of a step (`part`); `again(machine)` lowers it for another machine; returns its symbol."""

    part: Part
    again: Callable[[Machine], str]


class Groups:
    """Adds the steps of fused groups to `steps`."""

    def __init__(
        self, dims: Dims, machine: Machine, target: tvm.target.Target, packings: Packings | None = None
    ) -> None:
        self.dims, self.machine, self.target = dims, machine, target
        self._packings: Packings = packings or {}
        self._forms: dict[str, Sequence[int] | None] = {}  # parameter → its allowed forms
        self.steps = Steps(box=dims.box)
        # function → the values that its call passes for the parameters that are sizes.
        self.given: dict[Any, dict[Any, SizeExpr]] = {}
        # structural hash of a kernel → (kernel, symbol, scratch memory) of the kernels lowered so far.
        self._lowered: dict[int, list[tuple[tirx.PrimFunc, str, list[tuple[str, int]]]]] = {}
        self._groups: dict[Any, Any] = {}
        self.made: dict[int, Made] = {}  # index of a step → its kernel

    def add(
        self, func: tirx.PrimFunc, ops: list[OpInfo], inputs: list[str], outputs: list[str], name: str
    ) -> None:
        """Add the steps of one fused group.

        `inputs`, `outputs`: names of tensors. `name`: a unique name of the function, for the cache of groups.
        """
        known = frozenset(i for i, item in enumerate(inputs) if self.steps.tensors[item].kind == "param")
        places = [*inputs, *outputs]
        values = self.values_of(func, places)
        views = {i: self.steps.views[item] for i, item in enumerate(places) if item in self.steps.views}
        small = frozenset(i for i in known if narrow(self.steps.params[inputs[i]]))
        forms = self._forms_of(inputs[1]) if 1 in known else None
        key = (name, known, small, tuple(views.items()), repr(list(values.values())), repr(forms))
        if key not in self._groups and values:
            bare = [p for p in func.params if tirx.is_buffer_var(p)]
            func = tirx.PrimFunc(bare, func.body, None, attrs=func.attrs)
            func, made = whole_products(func, values)
            replaced = [product.a for product in made.values()]
            values = {
                **{old: value for old, value in values.items() if old not in replaced},
                **{new: self.dims.size(product, values) for new, product in made.items()},
            }
        elif values:
            values = self._groups[key][2]
        ranges = self.ranges_of(values)
        if key not in self._groups:
            func = with_views(func, views, ranges)
            parts = []
            try:
                machine = limited(self.machine, forms)
                for part in kernels_of(func, ops, set(known), machine, views, small, ranges):
                    symbol, scratch = self.kernel(part, ops)
                    parts.append((part, symbol, scratch))
            except KilnError:
                raise
            except Exception as error:  # TVM's passes raise many kinds
                raise KilnError(f"{self.dims.model}: {refusal(ops, error)}") from error
            self._groups[key] = func, parts, values
        func, parts, values = self._groups[key]
        first = len(self.steps.steps)
        self._run(func, parts, ops, places, outputs, values)
        ranges = self.ranges_of(values)

        def again(machine: Machine, number: int) -> str:
            made = kernels_of(func, ops, set(known), limited(machine, forms), views, small, ranges)
            return self.kernel(made[number], ops)[0]

        for number, (part, _, _) in enumerate(parts):
            self.made[first + number] = Made(part, functools.partial(again, number=number))

    def _forms_of(self, name: str) -> Sequence[int] | None:
        """The forms in which the weight `name` may be stored, see lower/packings.py; None: any form."""
        if not self._packings or name not in self.steps.params:
            return None
        if name not in self._forms:
            self._forms[name] = self._packings.get(store.digest(self.steps.params[name]))
        return self._forms[name]

    def values_of(self, func: tirx.PrimFunc, places: list[str]) -> dict[Any, SizeExpr]:
        """By variable, the sizes in the shapes of the parameters of `func`; `places`: the tensors passed."""
        values = dict(self.given.get(func, {}))
        for param, name in zip((p for p in func.params if tirx.is_buffer_var(p)), places, strict=True):
            for size, value in zip(param.shape, self.steps.tensors[name].shape, strict=True):
                if isinstance(size, tirx.Var):
                    values.setdefault(size, value)
                elif (
                    isinstance(size, tirx.Mul)
                    and isinstance(size.a, tirx.Var)
                    and isinstance(size.b, tirx.IntImm)
                ):
                    values.setdefault(size.a, divided(value, int(size.b)))
        return values

    def ranges_of(self, values: Mapping[Any, SizeExpr]) -> SymbolRanges:
        """The range of each variable in the bucket's box."""
        return SymbolRanges(
            {variable: sizes.bounds(value, self.steps.box) for variable, value in values.items()}
        )

    def _run(
        self,
        func: tirx.PrimFunc,
        parts: list[Any],
        ops: list[OpInfo],
        names: list[str],
        outputs: list[str],
        values: Mapping[Any, SizeExpr],
    ) -> None:
        """Add one step for each kernel of a group; `names`: the tensors passed as parameters of `func`."""
        places = dict(zip(func.params, names, strict=True))
        for part, symbol, scratch in parts:
            arguments: list[str | SizeArgument] = []
            for position, buffer in enumerate(part.buffers):
                if buffer not in places:
                    shape = [self.dims.size(size, values) for size in buffer.shape]
                    places[buffer] = self.steps.new(str(buffer.dtype), shape).name
                argument = places[buffer]
                if position in part.kernel.packs:
                    argument = self._pack(argument, part, position, symbol)
                arguments.append(argument)
            for dtype, size in scratch:
                elements = size * 8 // tvm.DataType(dtype).bits
                arguments.append(self.steps.new(dtype, [elements], "workspace").name)
            arguments += [SizeArgument(dim=values[variable]) for variable in part.kernel.sizes]
            written = [places[b] for b in part.buffers if places[b] in outputs or b not in func.params]
            if part.kernel.family == "loops":
                written = [places[part.buffers[-1]]]
            self.step(symbol, part, ops, arguments, written, values)

    def step(
        self,
        symbol: str,
        part: Part,
        ops: list[OpInfo],
        arguments: list[str | SizeArgument],
        written: list[str],
        values: Mapping[Any, SizeExpr],
    ) -> None:
        """Add a step that runs the kernel `symbol` of `part`; `written`: names of the tensors written."""
        tasks = 0 if part.kernel.tasks is None else part.kernel.tasks
        self.steps.call(
            symbol,
            arguments,
            written,
            label_of(ops) or part.kernel.family,
            extent=self.dims.size(part.kernel.ranges.simplify(tasks), values),
            attrs=ops[0]["attrs"] if ops else {},
            macs=part.macs,
            in_place=[
                argument
                for position in part.kernel.in_place
                if isinstance(argument := arguments[position], str)
            ],
        )

    def _pack(self, name: str, part: Part, position: int, symbol: str) -> str:
        """The name of the tensor with parameter `name` packed for argument `position` of kernel `symbol`."""
        value = self.steps.params[name]
        packed = np.ascontiguousarray(part.kernel.packs[position](value))
        new_name = f"{name}.{symbol}"
        if new_name not in self.steps.params:
            self.steps.constant(new_name, packed)
        return new_name

    def kernel(self, part: Part, ops: list[OpInfo]) -> tuple[str, list[tuple[str, int]]]:
        """Lower the kernel of `part`, unless an equal one is lowered. Returns its symbol and scratch buffers.

        A scratch buffer is a pair (dtype, bytes).
        """
        structure = int(tvm_ffi.structural_hash(part.kernel.func))
        for func, symbol, scratch in self._lowered.get(structure, []):
            if tvm_ffi.structural_equal(func, part.kernel.func):
                return symbol, scratch
        lowered = abi.lower(part.kernel, self.target)
        stem = ops[0]["name"].split(".")[-1] if ops else "kernel"
        symbol = f"kilnk_{stem}_{digest(lowered.func)}"  # the prefix kiln_ is reserved for the runtime
        self._lowered.setdefault(structure, []).append((part.kernel.func, symbol, lowered.scratch))
        if self.steps.has_kernel(symbol):
            return symbol, lowered.scratch
        self.steps.functions[symbol] = lowered.func.with_attr("global_symbol", symbol)
        written = abi.written(lowered.func)
        pointers = lowered.func.params[: len(part.buffers)]
        arguments = [
            KernelArgument(dtype=str(buffer.dtype), const=pointer not in written)
            for buffer, pointer in zip(part.buffers, pointers, strict=True)
        ]
        arguments += [KernelArgument(dtype=dtype) for dtype, _size in lowered.scratch]
        arguments += [SIZE_PARAMETER for _ in part.kernel.sizes]
        self.steps.kernels.append(
            KernelRecord(
                symbol=symbol,
                args=arguments,
                parallel=part.kernel.tasks is not None,
                family=part.kernel.family,
                ops=operators(ops),
                flops=2 * part.macs,
            )
        )
        return symbol, lowered.scratch

    def replace(self, symbols: Mapping[str, str]) -> None:
        """Make steps call kernel `symbols[old]` in place of `old`; both kernels have the same parameters."""
        old = {symbol for symbol, new in symbols.items() if symbol != new}
        self.steps.steps = [
            step.model_copy(update={"kernel": symbols.get(step.kernel, step.kernel)})
            for step in self.steps.steps
        ]
        self.steps.kernels = [kernel for kernel in self.steps.kernels if kernel.symbol not in old]
        for symbol in old:
            del self.steps.functions[symbol]

    def copy(self, name: str, key: str) -> str:
        """Add a step that copies tensor `name`; returns the name of the copy.

        `key`: a unique name of the step. A constant with an affine formula is computed, not copied.
        """
        source = self.steps.tensors[name]
        target = self.steps.new(source.dtype, source.shape)
        if 0 in source.shape:
            return target.name
        func, copies = copy_of(source.shape, source.dtype)
        root = self.steps.root(name)
        affine = (
            constant_formula(self.steps.params[root.name], source.shape) if root.kind == "param" else None
        )
        if affine is None:
            self.add(func, copies, [name], [target.name], key)
        else:
            func = computed(attach.with_ops(func, copies), {0: affine})
            self.add(func, attach.of(func), [], [target.name], key)
        return target.name
