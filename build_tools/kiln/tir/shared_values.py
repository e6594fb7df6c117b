"""Rewrites of statements: shared values are computed once, and not before the condition that guards them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Call

from kiln.callbacks import structural_map
from kiln.tir.op_names import op_name
from kiln.tir.vector_expr import Let, register

Concerned = Callable[[Any], bool]
Rewrite = Callable[[Let, Any], Any]
STATEMENTS = (tirx.BufferStore, tirx.Bind, tirx.IfThenElse, tirx.For)  # all that hold values


def rewritten(value: Any, statements: list[Any], concerns: Concerned, rewrite: Rewrite) -> Any:
    """rewrite(let, value); the statements that compute its shared values are added to `statements`.

    What a condition guards must not run before the condition, and copies of shared values instead of
    statements would double at every operation of a chain. An if_then_else which the rewrite `concerns`
    therefore becomes a branch that fills a register.
    """

    def on_call(call: Call) -> Any:
        if op_name(call) != "if_then_else" or not concerns(call):
            return call
        condition, yes, no = call.args
        condition = rewritten(condition, statements, concerns, rewrite)
        declaration, store, load = register(call, "chosen")
        branches = []
        for branch in (yes, no):
            inner: list[Any] = []
            last = store(rewritten(branch, inner, concerns, rewrite))
            branches.append(tirx.SeqStmt([*inner, last]) if inner else last)
        statements.extend([declaration, tirx.IfThenElse(condition, *branches)])
        return load

    return rewrite(Let(statements), structural_map(value, ((Call, on_call),), order="pre"))


def rewritten_statement(statement: tirx.Stmt, concerns: Concerned, rewrite: Rewrite) -> Any:
    """One of `STATEMENTS` with its value rewritten, after statements that compute shared values.

    The value of a branch is its condition, that of a loop its number of iterations.
    """
    if isinstance(statement, tirx.IfThenElse):
        value = statement.condition
    else:
        value = statement.extent if isinstance(statement, tirx.For) else statement.value
    if not concerns(value):
        return statement
    statements: list[Any] = []
    value = rewritten(value, statements, concerns, rewrite)
    if isinstance(statement, tirx.IfThenElse):
        result = tirx.IfThenElse(value, statement.then_case, statement.else_case)
    elif isinstance(statement, tirx.For):
        result = _with_extent(statement, value)
    elif isinstance(statement, tirx.Bind):
        result = tirx.Bind(statement.var, value)
    else:
        result = tirx.BufferStore(statement.buffer, value, statement.indices)
    return tirx.SeqStmt([*statements, result]) if statements else result


def _with_extent(loop: tirx.For, extent: Any) -> tirx.For:
    kept = (loop.body, loop.thread_binding, loop.annotations, loop.step)
    return tirx.For(loop.loop_var, loop.min, extent, loop.kind, *kept)
