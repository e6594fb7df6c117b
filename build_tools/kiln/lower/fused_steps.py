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
from tvm import tirx

from kiln.config import sizes
from kiln.config.sizes import SizeExpr
from kiln.errors import KilnError
from kiln.kernels.cpu.gemm_int8 import magnitude
from kiln.kernels.cpu.gemm_pairs import pairs_together
from kiln.kernels.families import FusedGroup, GroupKernel
from kiln.kernels.variants import kernels_of_variants
from kiln.lower.dims import Dims
from kiln.lower.lowered_kernels import KernelPlan, LoweredKernels
from kiln.lower.packings import Packings, limited
from kiln.lower.recompute import computed, constant_formula
from kiln.lower.schema import SizeArgument, Step, StepCall
from kiln.lower.step_kernels import Build, StepKernel, VariantKernel
from kiln.lower.steps import Steps, label_of
from kiln.lower.views.in_place_padding import copy_of, with_views
from kiln.opinfo import attach
from kiln.opinfo.attach import OpInfo, refusal
from kiln.params import store
from kiln.params.encodings import Encoding
from kiln.tir.builder import Machine
from kiln.tir.symbol_factors import whole_products
from kiln.tir.symbols import SymbolRanges, divided


class GroupLowering:
    """Adds the steps of fused groups to `steps`.

    `counts_refused`: the reason why no step may count a size during the run; empty if steps may.

    `machine`, `target`: those of the target's own variant. `more`: the further variants, in order. The last
    variant decides where the kernels of a group are divided and how weights are packed (kernels/variants.py).

    `plan`: kernels lowered beforehand. With `ahead`, kernels are not lowered but entered in `plan`, to be
    lowered together; the steps of such an object must not be used.
    """

    counts_refused = ""

    def __init__(
        self, dims: Dims, machine: Machine, target: tvm.target.Target, packings: Packings | None = None,
        more: Sequence[Build] = (), plan: KernelPlan | None = None, ahead: bool = False,
    ) -> None:  # fmt: skip
        self.dims, self.target = dims, target
        self.builds = [Build("", machine, target), *more]
        self.machine = self.builds[-1].machine
        self._packings: Packings = packings or {}
        self._forms: dict[str, Sequence[int] | None] = {}  # parameter → its allowed forms
        self.steps = Steps(box=dims.box)
        # function → the values that its call passes for the parameters that are sizes.
        self.given: dict[Any, dict[Any, SizeExpr]] = {}
        self._ahead, self._plan = ahead, plan or KernelPlan()
        self._kernels = self._plan if ahead else LoweredKernels(self.steps, self._plan)
        self._made = self._plan.groups  # by group: its function, its kernels for each variant, its sizes
        self._groups: dict[Any, list[list[VariantKernel]]] = {}  # by group: its lowered kernels
        self.made: dict[int, StepKernel] = {}  # index of a step → its kernel

    def add(self, func: tirx.PrimFunc, ops: list[OpInfo], inputs: list[str], outputs: list[str]) -> None:
        """Add the steps of one fused group; groups with equal functions, such as equal layers, share kernels.

        `inputs`, `outputs`: names of tensors.
        """
        constants = frozenset(i for i, item in enumerate(inputs) if self.steps.tensors[item].kind == "param")
        tensor_names = [*inputs, *outputs]
        values = self.values_of(func, tensor_names)
        views = {i: self.steps.views[item] for i, item in enumerate(tensor_names) if item in self.steps.views}
        arrays = {i: self.steps.params[inputs[i]] for i in constants}
        limits = {i: magnitude(w) for i, w in arrays.items() if str(w.dtype) == "int8"}
        together = {i: pairs_together(w) for i, w in arrays.items() if str(w.dtype) == "int16"}
        forms = self._forms_of(inputs[1]) if 1 in constants else None
        encodings = self._encodings_of(inputs, constants)
        group = FusedGroup(func, ops, constants, views, limits, together, encodings=encodings)
        key = (
            self._plan.number(func), constants, repr(limits), repr(together), tuple(views.items()),
            repr([*values.values()]), repr(forms), repr(encodings),
        )  # fmt: skip
        try:
            if key not in self._made:
                self._made[key] = self._make(group, values, forms)
            func, forms_of, values = self._made[key]
            if key not in self._groups:
                self._groups[key] = [self.kernels(of_variants, ops) for of_variants in forms_of]
        except KilnError:
            raise
        except Exception as error:  # TVM's passes raise many kinds
            raise KilnError(f"{self.dims.model}: {refusal(ops, error)}") from error
        step_kernels = self._groups[key]
        first = len(self.steps.steps)
        self._add_steps(func, step_kernels, ops, tensor_names, outputs, values)
        made_group = replace(group, func=func, ranges=self.ranges_of(values))

        def again(region: tuple[int, int], number: int) -> dict[str, str]:
            machines = [
                replace(limited(build.machine, forms), prefetch_range=region) for build in self.builds
            ]
            variant_kernels = kernels_of_variants(made_group, machines)
            new = self.kernels(variant_kernels[number], ops)
            return {
                old.symbol: new_kernel.symbol
                for old, new_kernel in zip(step_kernels[number], new, strict=True)
            }

        for number, of_variants in enumerate(step_kernels):
            self.made[first + number] = StepKernel(
                of_variants[-1].part, functools.partial(again, number=number)
            )

    def _make(
        self, group: FusedGroup, values: dict[Any, SizeExpr], forms: Sequence[int] | None
    ) -> tuple[tirx.PrimFunc, list[list[GroupKernel]], dict[Any, SizeExpr]]:
        """Make the kernels of a group for each variant; the function returned has parameters `values`.

        `values`: the size of each variable in shapes. `forms`: as returned by `_forms_of`.
        """
        func = group.func
        if values:
            bare = [p for p in func.params if tirx.is_buffer_var(p)]
            func = tirx.PrimFunc(bare, func.body, None, attrs=func.attrs)
            func, products = whole_products(func, values)
            replaced = [product.a for product in products.values()]
            values = {
                **{old: value for old, value in values.items() if old not in replaced},
                **{new: self.dims.size(product, values) for new, product in products.items()},
            }
        ranges = self.ranges_of(values)
        func = with_views(func, group.views, ranges)
        machines = [limited(build.machine, forms) for build in self.builds]
        return func, kernels_of_variants(replace(group, func=func, ranges=ranges), machines), values

    def _encodings_of(self, inputs: Sequence[str], constants: frozenset[int]) -> dict[int, Encoding]:
        """The encodings of the constants among `inputs`, by position."""
        encodings = {
            position: self._plan.encoding(self.steps.params[self.steps.root(inputs[position]).name])
            for position in sorted(constants)
        }
        return {position: encoding for position, encoding in encodings.items() if encoding is not None}

    def _forms_of(self, name: str) -> Sequence[int] | None:
        """The forms in which the weight `name` may be stored, see lower/packings.py; None: any form."""
        if not self._packings or name not in self.steps.params:
            return None
        if name not in self._forms:
            self._forms[name] = self._packings.get(store.digest(self.steps.params[name]))
        return self._forms[name]

    def values_of(self, func: tirx.PrimFunc, tensor_names: list[str]) -> dict[Any, SizeExpr]:
        """The size of each variable in the shapes of the parameters of `func`, which are `tensor_names`.

        In the order of the shapes: TVM passes further sizes in an order that differs from run to run, which
        would be that of the kernel's arguments.
        """
        given = self.given.get(func, {})
        values: dict[Any, SizeExpr] = {}
        for param, name in zip((p for p in func.params if tirx.is_buffer_var(p)), tensor_names, strict=True):
            for size, value in zip(param.shape, self.steps.tensors[name].shape, strict=True):
                if isinstance(size, tirx.Var):
                    values.setdefault(size, given.get(size, value))
                elif (
                    isinstance(size, tirx.Mul)
                    and isinstance(size.a, tirx.Var)
                    and isinstance(size.b, tirx.IntImm)
                ):
                    values.setdefault(size.a, given.get(size.a, divided(value, int(size.b))))
        return values | {variable: given[variable] for variable in sorted(given, key=str)}

    def ranges_of(self, values: Mapping[Any, SizeExpr]) -> SymbolRanges:
        """The range of each variable in the bucket's box."""
        return SymbolRanges(
            {variable: sizes.bounds(value, self.steps.box) for variable, value in values.items()}
        )

    def _add_steps(
        self,
        func: tirx.PrimFunc,
        step_kernels: list[list[VariantKernel]],
        ops: list[OpInfo],
        names: list[str],
        outputs: list[str],
        values: Mapping[Any, SizeExpr],
    ) -> None:
        """Add one step for each kernel of a group; `names`: the tensors passed as parameters of `func`."""
        tensor_of = dict(zip(func.params, names, strict=True))
        for kernels in step_kernels:
            for buffers in zip(*(variant.part.buffers for variant in kernels), strict=True):
                if buffers[-1] not in tensor_of:  # of the variants' buffers between kernels, the largest
                    shapes = [[self.dims.size(size, values) for size in buffer.shape] for buffer in buffers]
                    dtype = str(buffers[-1].dtype)
                    name = self.steps.new(dtype, max(shapes, key=self._elements)).name
                    tensor_of |= dict.fromkeys(buffers, name)
            last_kernel = kernels[-1].part
            tensors = [tensor_of[buffer] for buffer in last_kernel.buffers]
            for position in last_kernel.kernel.packs:
                tensors[position] = self._pack(tensors[position], last_kernel, position, kernels[-1].symbol)
            written = [
                tensor_of[b] for b in last_kernel.buffers if tensor_of[b] in outputs or b not in func.params
            ]
            if last_kernel.kernel.family == "loops":
                written = [tensor_of[last_kernel.buffers[-1]]]
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
        for buffers in itertools.zip_longest(*(variant.scratch for variant in kernels)):
            dtype, size = max((b for b in buffers if b is not None), key=lambda buffer: buffer[1])
            elements = size * 8 // tvm.DataType(dtype).bits
            scratch.append(self.steps.new(dtype, [elements], "workspace").name)

        def call(variant: VariantKernel) -> StepCall:
            kernel = variant.part.kernel
            tasks = 0 if kernel.tasks is None else kernel.tasks
            numbers = [SizeArgument(dim=values[variable]) for variable in kernel.sizes]
            extent = self.dims.size(kernel.ranges.simplify(tasks), values)
            arguments: list[str | SizeArgument] = [*tensors, *scratch[: len(variant.scratch)], *numbers]
            return StepCall(kernel=variant.symbol, extent=extent, args=arguments)

        last_kernel, calls = kernels[-1].part, [call(variant) for variant in kernels]
        names = [build.name for build in self.builds]
        self.steps.steps.append(
            Step(
                kernel=calls[0].kernel,
                args=calls[0].args,
                writes=written,
                label=label_of(ops) or last_kernel.kernel.family,
                extent=calls[0].extent,
                attrs=ops[0]["attrs"] if ops else {},
                macs=last_kernel.macs,
                in_place=[
                    tensors[position]
                    for position in last_kernel.kernel.in_place
                    if all(position in variant.part.kernel.in_place for variant in kernels)
                ],
                copies=last_kernel.kernel.copies or None,
                variants={
                    name: variant_call
                    for name, variant_call in zip(names, calls, strict=True)
                    if variant_call != calls[0]
                },
            )
        )

    def _pack(self, name: str, group_kernel: GroupKernel, position: int, symbol: str) -> str:
        """The name of the tensor with parameter `name` packed for argument `position` of kernel `symbol`."""
        if self._ahead:  # the kernel has no symbol yet
            return name
        value = self.steps.params[name]
        packed = np.ascontiguousarray(group_kernel.kernel.packs[position](value))
        label = group_kernel.kernel.labels.get(position)
        new_name = f"{name}.{label}.{symbol}" if label else f"{name}.{symbol}"
        if new_name not in self.steps.params:
            self.steps.constant(new_name, packed)
        return new_name

    def kernels(self, group_kernels: Sequence[GroupKernel], ops: list[OpInfo]) -> list[VariantKernel]:
        """Lower the kernel of a step for every variant, in order; `group_kernels` has one of each."""
        lowered = self._kernels
        return [
            lowered.of(group_kernel, ops, build)
            for group_kernel, build in zip(group_kernels, self.builds, strict=True)
        ]

    def rearrange(self, order: Sequence[int]) -> None:
        """Put the steps into the order of the indices `order`."""
        self.steps.steps = [self.steps.steps[index] for index in order]
        self.made = {position: self.made[index] for position, index in enumerate(order) if index in self.made}

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

    def copy(self, name: str) -> str:
        """Add a step that copies tensor `name`; returns the name of the copy.

        A constant with an affine formula is computed, not copied.
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
            self.add(func, copies, [name], [target.name])
        else:
            func = computed(attach.with_ops(func, copies), {0: affine})
            self.add(func, attach.of(func), [], [target.name])
        return target.name

    def copy_into(self, name: str, target: str) -> None:
        """Add a step that copies tensor `name` into tensor `target`, of the same type."""
        source = self.steps.tensors[name]
        if 0 not in source.shape:
            self.add(*copy_of(source.shape, source.dtype), [name], [target])
