"""Helpers of the passes: read operators and constants, rewrite calls."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst, Op

from kiln.arrays import Array as Array
from kiln.callbacks import mutator, post_order_visit


def operator(expr: relax.Expr) -> str | None:
    """The name of the operator that `expr` calls (`relax.nn.conv2d`); None for other expressions."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, Op):
        return str(expr.op.name)
    return None


def variables(expr: relax.Expr) -> list[Any]:
    """The Relax variables that an expression reads."""
    names: list[Any] = []
    post_order_visit(expr, lambda part: names.append(part) if isinstance(part, relax.Var) else None)
    return names


def operands(expr: relax.Expr) -> list[Any]:
    """The arguments of a call, those in a tuple one by one; of another expression, itself alone."""
    args = getattr(expr, "args", [expr])
    return [item for arg in args for item in (arg.fields if isinstance(arg, relax.Tuple) else [arg])]


def constant(expr: relax.Expr) -> Array | None:
    """The value of a constant expression, or None."""
    if not isinstance(expr, GenericConst):
        return None
    value: Array = expr.value.numpy()
    return value


def number(expr: relax.Expr) -> float | None:
    """The value of a constant with one element; None for other expressions."""
    value = constant(expr)
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def const(value: Array | float, dtype: str) -> Any:
    """A Relax constant of `value` as `dtype`."""
    return relax.const(np.array(value, dtype=dtype, order="C"), dtype)


def static_shape(expr: relax.Expr) -> list[int]:
    """The sizes of a tensor expression of static shape."""
    return [int(size) for size in expr.ty.shape]


def integers(values: Any) -> list[int]:
    """An attribute's array of integers as a list."""
    return [int(value) for value in values]


OTHERS = "*"  # in place of an operator's name: the rule of all operators that have none of their own
Rule = Callable[["CallRewriter", Any], Any]


@mutator
class CallRewriter(relax.PyExprMutator):  # type: ignore[misc]  # tvm is untyped
    """Rewrites calls of operators, in order of execution; `rules` maps a name, or OTHERS, to its rule.

    A rule gets this object and the call, and returns the expression to use instead or None to keep it. While
    it runs, `original` is the call as `mod` has it, before the calls of its operands were rewritten.
    """

    def __init__(self, mod: tvm.IRModule, rules: dict[str, Rule]) -> None:
        super().__init__(mod)
        self.rules = rules
        self.original: Any = None

    def visit_call_(self, call: Any) -> Any:
        original = call
        call = self.visit_expr_post_order(call)
        self.original = original
        name = operator(call)
        rule = None if name is None else self.rules.get(name, self.rules.get(OTHERS))
        replacement = None if rule is None else rule(self, call)
        return call if replacement is None else replacement

    def emit(self, expr: relax.Expr) -> Any:
        """Bind `expr` to a new variable before the call that is being rewritten."""
        return self.builder_.emit(expr)

    def definition(self, expr: relax.Expr) -> Any:
        """The expression that a variable was bound to; for an item of a tuple, that of the tuple's field.

        Any other expression is returned unchanged.
        """
        if isinstance(expr, relax.Var):
            bound = self.lookup_binding(expr)
            expr = expr if bound is None else bound
        if isinstance(expr, relax.TupleGetItem):
            tuple_expr = self.definition(expr.tuple_value)
            return (
                self.definition(tuple_expr.fields[expr.index])
                if isinstance(tuple_expr, relax.Tuple)
                else expr
            )
        return expr


def rewrite_calls(mod: tvm.IRModule, rules: dict[str, Rule]) -> tvm.IRModule:
    """Apply `rules` to every Relax function of `mod`, which must be in normal form."""
    if OTHERS not in rules and not has_operator(mod, rules):
        return mod
    rewriter = CallRewriter(mod, rules)
    for variable, function in list(mod.functions_items()):
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(variable, rewriter.visit_expr(function))
    return rewriter.builder_.get()


def has_operator(mod: tvm.IRModule, names: Collection[str]) -> bool:
    """Whether a Relax function of `mod`, in normal form, calls an operator of these names."""

    def calls(body: Any) -> bool:
        for block in body.blocks:
            for binding in block.bindings:
                value = binding.value
                if operator(value) in names:
                    return True
                if isinstance(value, relax.If) and (calls(value.true_branch) or calls(value.false_branch)):
                    return True
        return False

    functions = (function for _, function in mod.functions_items())
    return any(isinstance(function, relax.Function) and calls(function.body) for function in functions)


def count_uses(mod: tvm.IRModule) -> dict[Any, int]:
    """Number of reads of each variable in the Relax functions of `mod`."""
    uses: dict[Any, int] = {}

    def note(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Var):
            uses[expr] = uses.get(expr, 0) + 1

    def count(expr: Any) -> None:
        """The reads in `expr`; TVM's visitor takes much longer for a call of an operator."""
        if isinstance(expr, relax.Call) and isinstance(expr.op, Op):
            for argument in expr.args:
                count(argument)
        elif isinstance(expr, relax.Var):
            note(expr)
        elif not isinstance(expr, GenericConst):
            post_order_visit(expr, note)

    for _, function in mod.functions_items():
        if isinstance(function, relax.Function):
            for block in function.body.blocks:
                for binding in block.bindings:
                    count(binding.value)
            count(function.body.body)
    return uses
