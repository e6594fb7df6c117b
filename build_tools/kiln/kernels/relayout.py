"""Relayout: functions that exist already, with tensors in other layouts; for libraries that want them so.

Needs PrimFuncs with op info (opinfo.annotate, and opinfo.fuse_tir where functions are fused). The functions
whose operators `choose` names layouts for are rewritten (kernels/relaid.py); those behind them take a layout
as it comes where their operators have a rule (kernels/layout_rules.py). Where there is none, the tensor is
copied back to the layout that the function was made for: so every function stays right. Guarantees: same
results; inputs and outputs of `main`, and all that is no PrimFunc, keep their layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.tirx import PrimFunc

from kiln.graph.bindings import CallRewriter, const, constant, rewrite_calls
from kiln.kernels import opinfo
from kiln.kernels.axes import Layout
from kiln.kernels.relaid import Choose, relaid

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def relayout(choose: Choose) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """The pass. `choose` gets the op info of an operator and returns the layouts wanted for it, or None.

    For a convolution (data, weights) or (data, weights, result): ("NCHW4c", "OIHW4i4o"); for a product
    (a, b) or (a, b, result): ("MK", "NK"). A part must divide its axis: else the operator stays as it is.
    """

    def run(mod: tvm.IRModule) -> tvm.IRModule:
        mod = rewrite_calls(mod, {"relax.call_tir": _Rule(mod, choose)})
        return relax.transform.DeadCodeElimination(["main"])(relax.transform.CanonicalizeBindings()(mod))

    return run


class _Rule:
    """Rewrites one call after another; knows which tensors are there in which layouts."""

    def __init__(self, mod: tvm.IRModule, choose: Choose) -> None:
        self.mod, self.choose = mod, choose
        self.stored: dict[Any, tuple[Any, Layout]] = {}  # variable → the same tensor, as a function left it
        self.copies: dict[tuple[Any, Layout], Any] = {}

    def __call__(self, rewriter: CallRewriter, call: Any) -> Any:
        func = self.mod[call.args[0]]
        arguments = list(call.args[1].fields)
        if (
            len(call.args) > 2
            or not isinstance(call.ty, relax.TensorType)
            or not all(isinstance(argument.ty, relax.TensorType) for argument in arguments)
            or len(opinfo.tensors(func)) != len(arguments) + 1
        ):
            return None
        roots = [self._root(rewriter, argument) for argument in arguments]
        found = [self.stored.get(root, (root, Layout.same(len(root.ty.shape)))) for root in roots]
        made = relaid(func, [layout for _, layout in found], self.choose)
        if made is None or all(layout.is_same for layout in made.layouts):
            return None
        *inputs, out = made.layouts
        given = [self._in(rewriter, root, layout) for root, layout in zip(roots, inputs, strict=True)]
        name = f"{call.args[0].name_hint}_relaid"
        variable = rewriter.builder_.add_func(_private(made.func), name)
        shape = out.shape(list(call.ty.shape))
        result = rewriter.emit(relax.call_tir(variable, given, relax.TensorType(shape, str(call.ty.dtype))))
        if out.is_same:
            return result
        back = _inverse(rewriter, result, out, call.ty)
        self.stored[back] = result, out
        return back

    def _root(self, rewriter: CallRewriter, expr: Any) -> Any:
        """The variable that another one is only a name for."""
        while isinstance(found := rewriter.definition(expr), relax.Var) and not found.same_as(expr):
            expr = found
        return expr

    def _in(self, rewriter: CallRewriter, root: Any, layout: Layout) -> Any:
        """A tensor in a layout: as it is there already, or copied once for all that want it so."""
        stored, has = self.stored.get(root, (root, Layout.same(layout.rank)))
        if has == layout:
            return stored
        if layout.is_same:
            return root
        value = constant(root)
        if value is not None:
            return const(layout.apply(value), str(value.dtype))
        if (root, layout) not in self.copies:
            self.copies[root, layout] = _copied(rewriter, root, layout)
        return self.copies[root, layout]


def _private(func: PrimFunc) -> PrimFunc:
    return func.without_attr("global_symbol") if func.attrs and "global_symbol" in func.attrs else func


def _info(layout: Layout, dtype: str, back: bool) -> opinfo.OpInfo:
    """A copy into a layout, or back from it: a transpose where no axis is split."""
    had = LETTERS[: layout.rank]
    name, attrs = "layout_transform", {"src_layout": had, "dst_layout": layout.name(had)}
    if back:
        attrs = {"src_layout": attrs["dst_layout"], "dst_layout": had}
    op: dict[str, Any] = {"name": name, "attrs": attrs}
    if not layout.split:
        order = (
            [layout.at(axis) for axis in range(layout.rank)] if back else [axis for axis, _ in layout.parts]
        )
        op = {"name": "permute_dims", "attrs": {"axes": order}}
    return {**op, "kind": "injective", "out_dtype": dtype, "args": [{"param": 0}], "nests": 1}


def _emit(rewriter: CallRewriter, value: Any, shape: list[Any], read: Any, info: opinfo.OpInfo) -> Any:
    dtype = info["out_dtype"]
    data = te.placeholder(list(value.ty.shape), dtype, "data")
    sizes = [tirx.IntImm("int64", size) if isinstance(size, int) else size for size in shape]
    copy = te.compute(sizes, lambda *indices: data(*read(list(indices))), name="copy")
    func = te.create_prim_func([data, copy]).with_attr("tirx.noalias", True).with_attr("op_pattern", 2)
    variable = rewriter.builder_.add_func(_private(opinfo.with_ops(func, [info])), info["name"])
    return rewriter.emit(relax.call_tir(variable, [value], relax.TensorType(shape, dtype)))


def _copied(rewriter: CallRewriter, value: Any, layout: Layout) -> Any:
    info = _info(layout, str(value.ty.dtype), False)
    return _emit(rewriter, value, layout.shape(list(value.ty.shape)), layout.backward, info)


def _inverse(rewriter: CallRewriter, value: Any, layout: Layout, ty: Any) -> Any:
    return _emit(rewriter, value, list(ty.shape), layout.forward, _info(layout, str(ty.dtype), True))
