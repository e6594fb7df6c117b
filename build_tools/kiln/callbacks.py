"""Guards for Python functions that TVM calls back: exceptions must not pass through C++.

TVM 0.27 with tvm_ffi 0.1.14 has two defects when a callback raises:

1. `structural_map` releases a node twice when the node was copied (a child was replaced) and the callback
   for the node then raises. The heap is damaged; the process ends in SIGABRT or SIGSEGV, often much later.
2. On the way through C++ an exception of most classes becomes a RuntimeError: a KilnError would be shown as a
   traceback, and an `except` clause for a class of Kiln's own would never match.

Callbacks of walks therefore never raise: the guard keeps the first exception, skips the callbacks for the
remaining nodes, and raises the exception again after the C++ call has returned. Passes and mutators do not
damage the heap; for their exceptions the classes in `_KNOWN` are registered with TVM by name.

Other modules import these functions from here, never from TVM (tests/unit/tir/test_callbacks.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import relax, tirx

from kiln.errors import KilnError

Callback = Callable[[Any], Any]
# (class of nodes or tuple of classes, function of a node), in the order in which they are tried
Rules = Sequence[tuple[Any, Callback]]

_KNOWN = (KilnError, NotImplementedError, MemoryError, RecursionError, KeyboardInterrupt)

for _class in _KNOWN:
    tvm_ffi.register_error(_class.__name__, _class)

mutator = relax.expr_functor.mutator
prim_func_pass = tirx.transform.prim_func_pass
LegalizeOps = relax.transform.LegalizeOps


class _Guard:
    """The first exception that a callback of one walk raised."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def rules(self, rules: Rules, after: Callable[[Any], Any], maps: bool) -> list[tuple[Any, Callback]]:
        """`rules` with functions that never raise; after an exception each returns after(node)."""
        return [(kind, self._quiet(function, after, maps)) for kind, function in rules]

    def _quiet(self, function: Callback, after: Callable[[Any], Any], maps: bool) -> Callback:
        def call(node: Any) -> Any:
            if self.error is not None:
                return after(node)
            try:
                result = function(node)
                if maps and not isinstance(result, tvm_ffi.Object):
                    raise TypeError(f"a rule of structural_map returned {type(result).__name__}, not a node")
            except BaseException as error:  # KeyboardInterrupt too must not pass through C++
                self.error = error
                return after(node)
            return result

        return call

    def check(self) -> None:
        """Raise the exception that was kept, if any."""
        if self.error is not None:
            raise self.error


def structural_map(root: Any, rules: Rules, order: str = "post") -> Any:
    """Return `root` with each node replaced by the result of the first rule for its class, children first.

    With `order` "pre" a node is replaced first, then the children of its replacement. An exception of a rule
    ends the call and is raised.
    """
    guard = _Guard()
    result = tvm_ffi.structural_map(root, guard.rules(rules, lambda node: node, maps=True), order=order)
    guard.check()
    return result


def structural_walk(root: Any, rules: Rules, order: str = "post") -> Any:
    """Call the first rule for the class of each node, children first.

    With `order` "pre" a node comes before its children, which a rule may skip. Returns the VisitInterrupt
    that a rule returned, or None. An exception of a rule ends the call and is raised.
    """
    guard = _Guard()
    result = tvm_ffi.structural_walk(
        root, guard.rules(rules, tvm_ffi.VisitInterrupt, maps=False), order=order
    )
    guard.check()
    return result


def quiet_callback(function: Callable[..., None]) -> Callable[..., None]:
    """`function` for TVM to call, without the exceptions that it raises; the first goes to stderr."""
    reported = False

    def call(*arguments: Any) -> None:
        nonlocal reported
        try:
            function(*arguments)
        except Exception as error:
            if not reported:
                print(f"kiln: warning: {type(error).__name__}: {error}", file=sys.stderr)
            reported = True

    return call


def post_order_visit(expr: Any, visit: Callable[[Any], None]) -> None:
    """Call `visit` for each Relax expression in `expr`, operands first. An exception of `visit` is raised."""
    guard = _Guard()
    ((_, quiet),) = guard.rules([(None, visit)], lambda _: None, maps=False)
    relax.analysis.post_order_visit(expr, quiet)
    guard.check()
