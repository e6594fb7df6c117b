"""Steps for tensors stored inside larger ones: kernels that write there, copies, and fills of borders.

in_place_padding.py chooses the paddings that are done in place, in_place_concat.py the concats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx

from kiln.config.sizes import SizeExpr
from kiln.kernels.families import GroupKernel
from kiln.lower.fused_steps import GroupLowering
from kiln.lower.steps import LoweredTensor
from kiln.lower.views.in_place_concat import find_joins
from kiln.lower.views.in_place_padding import border, copy_of, find_views, padded_view
from kiln.opinfo.attach import OpInfo
from kiln.tir.view import TensorView


class Placement:
    """Adds the steps of calls whose results are stored inside larger tensors."""

    def __init__(self, mod: tvm.IRModule, ops: dict[str, list[OpInfo]], groups: GroupLowering) -> None:
        self.groups, self.steps = groups, groups.steps
        self._views = find_views(mod, ops, groups.machine)
        self._joins = find_joins(mod, ops, self._views)
        self._operands = self._find_operands(mod)  # operand of an in-place concat → (concat, view)
        self._results: dict[Any, LoweredTensor] = {}  # in-place concat → the tensor that holds its operands

    def _find_operands(self, mod: tvm.IRModule) -> dict[Any, tuple[Any, TensorView]]:
        calls = {b.var: b.value for block in mod["main"].body.blocks for b in block.bindings}
        return {
            operand: (concat, view)
            for concat, join in self._joins.items()
            for operand, view, direct in zip(
                calls[concat].args[1].fields, join.views, join.direct, strict=True
            )
            if direct
        }

    def add(self, var: Any, func: tirx.PrimFunc, ops: list[OpInfo], inputs: list[str]) -> str | None:
        """Add the steps of the group `func`, whose result is the variable `var` of main.

        Returns the tensor name of the result; None, without a step, where the result is stored separately.
        """
        if len(inputs) == 1 and inputs[0] in self.steps.views and self._is_border(ops, inputs[0]):
            return self._whole(inputs[0])
        if var in self._joins:
            return self._join(var, inputs)
        if var in self._operands:
            concat, place = self._operands[var]
            parent = self._whole_of(concat)
            return self._inside(func, self.groups.dims.shape(var.ty), inputs, ops, place, parent)
        view = self._views.get(var)
        if view is not None:
            return self._padded(func, self.groups.dims.shape(var.ty), inputs, ops, view)
        view = padded_view(ops)
        if view is not None:  # no producer writes inside: copy rows, without conditions
            source = self.steps.tensors[inputs[0]]
            func, copies = copy_of(source.shape, source.dtype)
            return self._whole(self._padded(func, source.shape, inputs, copies, view))
        return None

    def _is_border(self, ops: list[OpInfo], name: str) -> bool:
        """Whether `ops` is the padding whose result already contains tensor `name` as a view."""
        return padded_view(ops) == self.steps.views[name].with_pixel_gap(0)

    def _whole(self, name: str) -> str:
        """Name of the tensor that tensor `name` is stored in."""
        parent = self.steps.tensors[name].alias
        assert parent is not None
        return parent

    def _padded(
        self, func: tirx.PrimFunc, shape: list[SizeExpr], inputs: list[str], ops: list[OpInfo],
        view: TensorView,
    ) -> str:  # fmt: skip
        """Add a group whose result, of `shape`, is `view` of a padded tensor, and the step for the border."""
        dtype = str([param for param in func.params if tirx.is_buffer_var(param)][-1].dtype)
        parent = self._around(view, shape, dtype)
        inner = self._inside(func, shape, inputs, ops, view, parent)
        self._border(view, inner, parent)
        return inner

    def _around(self, view: TensorView, shape: Sequence[SizeExpr], dtype: str) -> LoweredTensor:
        """Add the tensor that holds a tensor of `shape` as `view`."""
        margins = [before + after for before, after in zip(view.before, view.after, strict=True)]
        outer = [_plus(size, more) for size, more in zip(shape, margins, strict=True)]
        parent = self.steps.new(dtype, outer)
        if view.pixel_gap:
            self.steps.views[parent.name] = view.parent_without_gaps()
        return parent

    def _inside(
        self, func: tirx.PrimFunc, shape: list[SizeExpr], inputs: list[str], ops: list[OpInfo],
        view: TensorView, parent: LoweredTensor,
    ) -> str:  # fmt: skip
        """Add a group whose result, of `shape`, is `view` of `parent`; returns the name of the result."""
        inner = self._inner(view, shape, parent)
        self.groups.add(func, ops, inputs, [inner])
        return inner

    def _inner(self, view: TensorView, shape: list[SizeExpr], parent: LoweredTensor) -> str:
        """Add a tensor of `shape` that is `view` of `parent`; returns its name."""
        inner = self.steps.new(parent.dtype, shape, alias=parent.name)
        self.steps.views[inner.name] = view
        return inner.name

    def _border(self, view: TensorView, inner: str, parent: LoweredTensor) -> None:
        """Add the step that fills the border around tensor `inner`, which is `view` of `parent`."""
        groups = self.groups
        shape = self.steps.tensors[inner].shape
        # Dynamic sizes become variables of the kernel's own, so that equal borders share one kernel.
        extents: list[Any] = [
            size if isinstance(size, int) else tirx.Var(f"n{axis}", "int64")
            for axis, size in enumerate(shape)
        ]
        pairs = zip(extents, shape, strict=True)
        values = {extent: size for extent, size in pairs if isinstance(extent, tirx.Var)}
        info: OpInfo = {
            "name": "nn.pad",
            "kind": "injective",
            "attrs": {"pad_value": view.value},
            "out_dtype": parent.dtype,
        }
        ranges = groups.ranges_of(values)
        kernels = [
            border(view, extents, parent.dtype, build.machine.lanes(parent.dtype), ranges)
            for build in groups.builds
        ]
        group_kernels = [GroupKernel(kernel, [kernel.func.params[0]], 0) for kernel in kernels]
        groups.step(groups.kernels(group_kernels, [info]), [info], [parent.name], [parent.name], values)

    def _whole_of(self, concat: Any) -> LoweredTensor:
        """The tensor that holds the result of an in-place concat; added with its first operand."""
        if concat not in self._results:
            shape = self.groups.dims.shape(concat.ty)
            self._results[concat] = self._around(self._joins[concat].place, shape, str(concat.ty.dtype))
        return self._results[concat]

    def _join(self, concat: Any, inputs: list[str]) -> str:
        """Add the copies and the border fill of an in-place concat; returns the name of its result."""
        join, parent = self._joins[concat], self._whole_of(concat)
        for source, view, direct in zip(inputs, join.views, join.direct, strict=True):
            if not direct:
                tensor = self.steps.tensors[source]
                func, copies = copy_of(tensor.shape, tensor.dtype)
                self._inside(func, tensor.shape, [source], copies, view, parent)
        if not any((*join.place.before, *join.place.after)):
            return parent.name
        inner = self._inner(join.place, self.groups.dims.shape(concat.ty), parent)
        self._border(join.place, inner, parent)
        return inner


def _plus(size: SizeExpr, more: int) -> SizeExpr:
    if isinstance(size, int) or not more:
        return size if not more else size + more
    return ["+", size, more]
