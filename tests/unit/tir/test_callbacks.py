"""Exceptions in functions that TVM calls back reach the caller as they were raised, and harm nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kiln
import pytest
import tvm_ffi
from kiln import callbacks
from kiln.errors import KilnError
from relaxed import module
from tvm import relax, tirx

PACKAGE = Path(kiln.__file__).parent
# What must be taken from kiln.callbacks.
CALLERS = (
    "structural_map", "structural_walk", "structural_visit", "structural_mutate", "StructuralMutator",
    "StructuralVisitor", "post_order_visit", "stmt_functor", "expr_functor", "mutator", "visitor",
    "function_pass", "module_pass", "dataflowblock_pass", "prim_func_pass", "LegalizeOps", "FuseOpsByPattern",
    "rewrite_call", "rewrite_bindings", "register_global_func", "convert_func",
)  # fmt: skip


class OwnError(Exception):
    """A class that TVM does not know."""


def fail(kind: type[BaseException]) -> Callable[..., Any]:
    def raises(*_: Any) -> Any:
        raise kind("said so")

    return raises


A, B = tirx.Var("a", "int64"), tirx.Var("b", "int64")
SUM = (A + B) * (A - B)


def copied_then(rule: Callable[[Any], Any]) -> Any:
    """A walk in which `rule` gets a node whose children have been replaced."""
    return callbacks.structural_map(SUM, ((tirx.Var, lambda _: tirx.Var("z", "int64")), (tirx.Mul, rule)))


@pytest.mark.parametrize("kind", [KilnError, OwnError, ValueError, KeyboardInterrupt])
def test_walks_raise_what_a_callback_raised(kind: type[BaseException]) -> None:
    for _ in range(100):  # a damaged heap would end the process
        with pytest.raises(kind, match="said so"):
            copied_then(fail(kind))
    with pytest.raises(kind, match="said so"):
        callbacks.structural_walk(SUM, ((tirx.Mul, fail(kind)),))
    with pytest.raises(kind, match="said so"):
        callbacks.post_order_visit(relax.const(1.0), fail(kind))


def test_walks_inside_walks_raise_too() -> None:
    with pytest.raises(OwnError):
        copied_then(lambda _: copied_then(fail(OwnError)))


def test_a_rule_that_returns_nothing_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="returned NoneType"):
        copied_then(lambda _: None)


def test_the_first_exception_ends_the_walk() -> None:
    seen: list[Any] = []

    def visit(variable: Any) -> None:
        seen.append(variable)
        raise OwnError

    with pytest.raises(OwnError):
        callbacks.structural_walk(SUM, ((tirx.Var, visit),))
    assert len(seen) == 1


def test_walks_return_what_tvm_does() -> None:
    double = callbacks.structural_map(A + B, ((tirx.Add, lambda node: node.a * node.b),))
    assert isinstance(double, tirx.Mul)
    found = callbacks.structural_walk(SUM, ((tirx.Sub, tvm_ffi.VisitInterrupt),))
    assert isinstance(found.value, tirx.Sub)
    assert callbacks.structural_walk(A, ((tirx.Sub, tvm_ffi.VisitInterrupt),)) is None


@pytest.mark.parametrize("kind", [KilnError, NotImplementedError, MemoryError, KeyboardInterrupt])
def test_passes_and_mutators_keep_the_class(kind: type[BaseException]) -> None:
    mod = module([((4,), "float32")], lambda x: relax.op.add(x, x))
    with pytest.raises(kind, match="said so"):
        callbacks.LegalizeOps({"relax.add": fail(kind)})(mod)

    @callbacks.mutator
    class Mutator(relax.PyExprMutator):  # type: ignore[misc]  # tvm is untyped
        visit_call_ = fail(kind)

    with pytest.raises(kind, match="said so"):
        Mutator(mod).visit_expr(mod["main"])


def test_no_module_passes_by_the_guard() -> None:
    """Functions of TVM that call back are named only in kiln/callbacks.py, and imported from there."""
    name = re.compile(r"\b(?:\w+\.)+(" + "|".join(CALLERS) + r")\b")
    taken = re.compile(r"^from (?!kiln)\S+ import .*\b(" + "|".join(CALLERS) + r")\b", re.MULTILINE)
    wrong = [
        f"{path.relative_to(PACKAGE)}: {found.group(1)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "callbacks.py"
        for pattern in (name, taken)
        for found in pattern.finditer(path.read_text())
        if not found.group(0).startswith(("kiln.", "callbacks."))
    ]
    assert wrong == []
