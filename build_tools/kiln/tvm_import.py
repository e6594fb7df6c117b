"""Imports TVM in three quarters of its time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def names_listed_once() -> Iterator[None]:
    """While this lasts, `import tvm` lists the names of its global functions only when there are new ones.

    apache-tvm-ffi 0.1.12: each of the 50 modules `_ffi_api` asks for all 2,000 names, one after the other, to
    find its own: 0.2 of the 0.7 seconds. No effect with a version that does it in another way.
    """
    try:
        from tvm_ffi import registry

        plain = registry.list_global_func_names
        functor = registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")
    except (ImportError, AttributeError, ValueError):
        yield
        return
    known: list[str] = []

    def names() -> list[str]:
        name_of = functor()
        count = name_of(-1)
        if count != len(known):
            known[:] = [name_of(number) for number in range(count)]
        return known

    registry.list_global_func_names = names
    try:
        yield
    finally:
        registry.list_global_func_names = plain
