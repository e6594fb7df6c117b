"""The slow import of TVM that the process of the stages works around: if one fails, its workaround can go."""

from __future__ import annotations

import inspect

from kiln.tvm_import import names_listed_once
from tvm_ffi import registry


def test_every_module_lists_the_names_of_all_functions() -> None:
    """tvm_import.py lists them only when there are new ones."""
    assert "list_global_func_names()" in inspect.getsource(registry.init_ffi_api)


def test_names_are_listed_again_after_a_new_one() -> None:
    plain = registry.list_global_func_names
    with names_listed_once():
        first = registry.list_global_func_names()
        assert first is registry.list_global_func_names()
        registry.register_global_func("kiln.test_names", lambda: None, override=True)
        assert "kiln.test_names" in registry.list_global_func_names()
    registry.remove_global_func("kiln.test_names")
    assert registry.list_global_func_names is plain and set(plain()) | {"kiln.test_names"} == {
        *first,
        "kiln.test_names",
    }
