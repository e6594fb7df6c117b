"""Steps of fused groups; groups that are structurally equal share one kernel, lowered once."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from kiln.config import sizes
from kiln.config.sizes import SizeExpr
from kiln.errors import KilnError
from kiln.kernels.cpu.gemm_int8 import narrow
from kiln.kernels.families import GroupKernel
from kiln.kernels.variants import kernels_of_variants
from kiln.lower.dims import Dims
from kiln.lower.packings import Packings, limited
from kiln.lower.recompute import computed, constant_formula
from kiln.lower.schema import KernelArgument, KernelRecord, SizeArgument, Step, StepCall
from kiln.lower.step_kernels import Build, StepKernel, VariantKernel, element_type
from kiln.lower.steps import SIZE_PARAMETER, Steps, label_of, operators
from kiln.lower.views.in_place_padding import copy_of, with_views
from kiln.opinfo import attach
from kiln.opinfo.attach import OpInfo, refusal
from kiln.params import store
from kiln.params.encodings import Encoding, find
from kiln.tir import abi
from kiln.tir.builder import Machine
from kiln.tir.kernel_name import digest
from kiln.tir.symbol_factors import whole_products
from kiln.tir.symbols import SymbolRanges, divided


class GroupLowering:
    """Adds the steps of fused groups to `steps`.

    `counts_refused`: why no step can count a size of the run; empty: it can.

    `machine`, `target`: of the target's own variant. `more`: the further variants, in order. The last variant
    decides where the kernels of a group are divided and how weights are packed (kernels/variants.py).
    """

    counts_refused = ""

    def __init__(
        self, dims: Dims, machine: Machine, target: tvm.target.Target, packings: Packings | None = None,
        more: Sequence[Build] = (),
    ) -> None:  # fmt: skip
        self.dims, self.target = dims, target
        self.builds = [Build("", machine, target), *more]
        self.machine = self.builds[-1].machine
        self._packings: Packings = packings or {}
        self._forms: dict[str, Sequence[int] | None] = {}  # parameter → its allowed forms
        self.steps = Steps(box=dims.box)
        # function → the values that its call passes for the parameters that are sizes.
        self.given: dict[Any, dict[Any, SizeExpr]] = {}
        # structural hash of a kernel → (kernel, symbol, scratch memory) of the kernels lowered so far.
        self._lowered: dict[int, list[tuple[tirx.PrimFunc, Build, VariantKernel]]] = {}
        self._encoded: dict[str, Encoding | None] = {}  # parameter → its encoding
        self._groups: dict[Any, Any] = {}
        self.made: dict[int, StepKernel] = {}  # index of a step → its kernel

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
        encodings = self._encodings_of(inputs, known)
        key = (
            name, known, small, tuple(views.items()), repr([*values.values()]), repr(forms), repr(encodings)
        )  # fmt: skip
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
            try:
                machines = [limited(build.machine, forms) for build in self.builds]
                forms_of = kernels_of_variants(
                    func, ops, set(known), machines, views, small, ranges, encodings
                )
                parts = [self.kernels(of_variants, ops) for of_variants in forms_of]
            except KilnError:
                raise
            except Exception as error:  # TVM's passes raise many kinds
                raise KilnError(f"{self.dims.model}: {refusal(ops, error)}") from error
            self._groups[key] = func, parts, values
        func, parts, values = self._groups[key]
        first = len(self.steps.steps)
        self._run(func, parts, ops, places, outputs, values)
        ranges = self.ranges_of(values)

        def again(region: tuple[int, int], number: int) -> dict[str, str]:
            machines = [replace(limited(build.machine, forms), upcoming=region) for build in self.builds]
            made = kernels_of_variants(func, ops, set(known), machines, views, small, ranges, encodings)
            new = self.kernels(made[number], ops)
            return {old.symbol: one.symbol for old, one in zip(parts[number], new, strict=True)}

        for number, of_variants in enumerate(parts):
            self.made[first + number] = StepKernel(
                of_variants[-1].part, functools.partial(again, number=number)
            )

    def _encodings_of(self, inputs: Sequence[str], known: frozenset[int]) -> dict[int, Encoding]:
        """The encodings of the constants among `inputs`, by position."""
        found = {}
        for position in sorted(known):
            name = inputs[position]
            if name not in self._encoded:
                self._encoded[name] = find(self.steps.params[self.steps.root(name).name])
            encoding = self._encoded[name]
            if encoding is not None:
                found[position] = encoding
        return found

    def _forms_of(self, name: str) -> Sequence[int] | None:
        """The forms in which the weight `name` may be stored, see lower/packings.py; None: any form."""
        if not self._packings or name not in self.steps.params:
            return None
        if name not in self._forms:
            self._forms[name] = self._packings.get(store.digest(self.steps.params[name]))
        return self._forms[name]

    def values_of(self, func: tirx.PrimFunc, places: list[str]) -> dict[Any, SizeExpr]:
        """By variable in the shapes of the parameters of `func`, its size; `places`: the tensors passed."""
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
        parts: list[list[VariantKernel]],
        ops: list[OpInfo],
        names: list[str],
        outputs: list[str],
        values: Mapping[Any, SizeExpr],
    ) -> None:
        """Add one step for each kernel of a group; `names`: the tensors passed as parameters of `func`."""
        places = dict(zip(func.params, names, strict=True))
        for kernels in parts:
            for buffers in zip(*(one.part.buffers for one in kernels), strict=True):
                if buffers[-1] not in places:  # of the variants' buffers between kernels, the largest
                    shapes = [[self.dims.size(size, values) for size in buffer.shape] for buffer in buffers]
                    dtype = str(buffers[-1].dtype)
                    name = self.steps.new(dtype, max(shapes, key=self._elements)).name
                    places |= dict.fromkeys(buffers, name)
            part = kernels[-1].part
            tensors = [places[buffer] for buffer in part.buffers]
            for position in part.kernel.packs:
                tensors[position] = self._pack(tensors[position], part, position, kernels[-1].symbol)
            written = [places[b] for b in part.buffers if places[b] in outputs or b not in func.params]
            if part.kernel.family == "loops":
                written = [places[part.buffers[-1]]]
            self.step(kernels, ops, tensors, written, values)

    def _elements(self, shape: Sequence[SizeExpr]) -> int:
        """Number of elements of a tensor of `shape` at the greatest sizes."""
        return math.prod(sizes.bounds(size, self.steps.box)[1] for size in shape)

    def step(
        self,
        kernels: Sequence[VariantKernel],
        ops: list[OpInfo],
        tensors: list[str],
        written: list[str],
        values: Mapping[Any, SizeExpr],
    ) -> None:
        """Add a step that runs `kernels`, one for each variant, on `tensors`.

        `written`: names of the tensors written. Scratch memory is shared: the variants' greatest sizes.
        """
        scratch: list[str] = []
        for buffers in itertools.zip_longest(*(one.scratch for one in kernels)):
            dtype, size = max((b for b in buffers if b is not None), key=lambda buffer: buffer[1])
            elements = size * 8 // tvm.DataType(dtype).bits
            scratch.append(self.steps.new(dtype, [elements], "workspace").name)

        def call(one: VariantKernel) -> StepCall:
            kernel = one.part.kernel
            tasks = 0 if kernel.tasks is None else kernel.tasks
            numbers = [SizeArgument(dim=values[variable]) for variable in kernel.sizes]
            extent = self.dims.size(kernel.ranges.simplify(tasks), values)
            arguments: list[str | SizeArgument] = [*tensors, *scratch[: len(one.scratch)], *numbers]
            return StepCall(kernel=one.symbol, extent=extent, args=arguments)

        part, calls = kernels[-1].part, [call(one) for one in kernels]
        names = [build.name for build in self.builds]
        self.steps.call(
            calls[0].kernel,
            calls[0].args,
            written,
            label_of(ops) or part.kernel.family,
            extent=calls[0].extent,
            attrs=ops[0]["attrs"] if ops else {},
            macs=part.macs,
            in_place=[
                tensors[position]
                for position in part.kernel.in_place
                if all(position in one.part.kernel.in_place for one in kernels)
            ],
            variants={name: own for name, own in zip(names, calls, strict=True) if own != calls[0]},
        )

    def _pack(self, name: str, part: GroupKernel, position: int, symbol: str) -> str:
        """The name of the tensor with parameter `name` packed for argument `position` of kernel `symbol`."""
        value = self.steps.params[name]
        packed = np.ascontiguousarray(part.kernel.packs[position](value))
        label = part.kernel.labels.get(position)
        new_name = f"{name}.{label}.{symbol}" if label else f"{name}.{symbol}"
        if new_name not in self.steps.params:
            self.steps.constant(new_name, packed)
        return new_name

    def kernels(self, parts: Sequence[GroupKernel], ops: list[OpInfo]) -> list[VariantKernel]:
        """Lower the kernel of a step for every variant, in order; `parts` has one of each."""
        return [self._kernel(part, ops, build) for part, build in zip(parts, self.builds, strict=True)]

    def _kernel(self, part: GroupKernel, ops: list[OpInfo], build: Build) -> VariantKernel:
        """Lower the kernel of `part` for a variant.

        An equal kernel is lowered once, also for several variants with the same vector unit: the other
        features have is in the loops where it is used.
        """
        structure = int(tvm_ffi.structural_hash(part.kernel.func))
        for func, of, made in self._lowered.get(structure, []):
            alike = (of.machine.isa, of.machine.vector_bits) == (build.machine.isa, build.machine.vector_bits)
            if alike and tvm_ffi.structural_equal(func, part.kernel.func):
                return replace(made, part=part)
        lowered = abi.lower(part.kernel, build.target)
        stem = ops[0]["name"].split(".")[-1] if ops else "kernel"
        symbol = f"kilnk_{stem}_{digest(lowered.func)}"  # the prefix kiln_ is reserved for the runtime
        symbol += f"_{build.name}" if build.name else ""
        made = VariantKernel(part, symbol, lowered.scratch)
        self._lowered.setdefault(structure, []).append((part.kernel.func, build, made))
        if self.steps.has_kernel(symbol):
            return made
        self.steps.functions[symbol] = lowered.func.with_attr("global_symbol", symbol)
        written = abi.written(lowered.func)
        pointers = lowered.func.params[: len(part.buffers)]
        arguments = [
            KernelArgument(dtype=element_type(pointer), const=pointer not in written) for pointer in pointers
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
                variant=build.name or None,
            )
        )
        return made

    def rearrange(self, order: Sequence[int]) -> None:
        """Put the steps into the order of the indices `order`."""
        self.steps.steps = [self.steps.steps[index] for index in order]
        self.made = {at: self.made[index] for at, index in enumerate(order) if index in self.made}

    def replace(self, symbols: Mapping[str, str]) -> None:
        """Make steps call kernel `symbols[old]` in place of `old`; both kernels have the same parameters."""
        old = {symbol for symbol, new in symbols.items() if symbol != new}

        def renamed(step: Step) -> Step:
            calls = {
                name: call.model_copy(update={"kernel": symbols.get(call.kernel, call.kernel)})
                for name, call in step.variants.items()
            }
            return step.model_copy(
                update={"kernel": symbols.get(step.kernel, step.kernel), "variants": calls}
            )

        self.steps.steps = [renamed(step) for step in self.steps.steps]
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

    def copy_into(self, name: str, target: str, key: str) -> None:
        """Add a step that copies tensor `name` into tensor `target`, of the same type; `key`: see `copy`."""
        source = self.steps.tensors[name]
        if 0 not in source.shape:
            self.add(*copy_of(source.shape, source.dtype), [name], [target], key)
