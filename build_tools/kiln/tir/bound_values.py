"""Values that expressions bind become statements, which LLVM's code generator binds once.

TVM 0.27's LowerIntrin writes a remainder whose sign it does not know as Let(r, a % b, ...). The simplifier
that the code generator runs on indices binds such a variable each time it meets the expression; where a
condition around a second place makes the value simpler there, it stops: "Binding of variable rmod ...
conflicts with previous binding".
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from kiln.callbacks import structural_map, structural_walk
from kiln.tir.symbols import variables

_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def bound_values(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with a Bind statement in place of each Let whose value is a scalar integer without conditions.

    A value that loads an element, or divides by a number that is not a constant, stays where it is: the
    condition around it may be what makes it valid.
    """
    if not _contains(func.body, tirx.Let):
        return func
    rules = (
        ((tirx.Bind, tirx.BufferStore, tirx.Evaluate), _leaf),
        (tirx.IfThenElse, _branch),
        (tirx.For, _loop),
    )
    return func.with_body(structural_map(func.body, rules))


class _Extraction:
    """The statements that one statement needs before it."""

    def __init__(self) -> None:
        self.statements: list[Any] = []
        self.kept: set[Any] = set()

    def __call__(self, node: Any) -> Any:
        """`node` with variables in place of the Let expressions in it; their values join `statements`."""
        return structural_map(node, ((tirx.Let, self._on_let),), order="pre")

    def _on_let(self, let: Any) -> Any:
        if not self._is_free(let.value):
            self.kept.add(let.var)
            return let
        value = self(let.value)
        fresh = tirx.Var(let.var.name, let.var.ty)
        self.statements.append(tirx.Bind(fresh, value))
        bound = let.var
        body = structural_map(let.body, ((tirx.Var, lambda var: fresh if var.same_as(bound) else var),))
        return self(body)

    def _is_free(self, value: Any) -> bool:
        dtype = tvm.DataType(str(value.ty.dtype))
        if str(value.ty.dtype) not in ("int32", "int64") or int(dtype.lanes) != 1:
            return False
        if _contains(value, TensorLoad) or self.kept.intersection(variables(value)):
            return False

        def on_division(node: Any) -> Any:
            safe_divisor = isinstance(node.b, tirx.IntImm) and int(node.b) not in (0, -1)
            return None if safe_divisor else tvm_ffi.VisitInterrupt()

        return structural_walk(value, [(_DIVISIONS, on_division)]) is None

    def before(self, statement: tirx.Stmt) -> Any:
        """The statements, then `statement`."""
        return tirx.SeqStmt([*self.statements, statement]) if self.statements else statement


def _leaf(statement: tirx.Stmt) -> Any:
    extract = _Extraction()
    return extract.before(extract(statement))


def _branch(node: Any) -> Any:
    extract = _Extraction()
    condition = extract(node.condition)
    if not extract.statements:
        return node
    return extract.before(tirx.IfThenElse(condition, node.then_case, node.else_case))


def _loop(node: Any) -> Any:
    extract = _Extraction()
    low, extent = extract(node.min), extract(node.extent)
    if not extract.statements:
        return node
    parts = (
        node.loop_var,
        low,
        extent,
        node.kind,
        node.body,
        node.thread_binding,
        node.annotations,
        node.step,
    )
    return extract.before(tirx.For(*parts))


def _contains(node: Any, kind: Any) -> bool:
    return structural_walk(node, [(kind, lambda _: tvm_ffi.VisitInterrupt())]) is not None
