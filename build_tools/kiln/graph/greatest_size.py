"""The greatest values of sizes, from the ranges of the dynamic dimensions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, sym, tirx


def greatest_size(mod: tvm.IRModule) -> Callable[[Any], int]:
    """The function from a size, an int or an expression of variables of `main`, to its greatest value.

    The ranges of variables come from the attribute kiln.dims; a variable without one has any int64.
    """
    analyzer, main = sym.Analyzer(), mod["main"]
    described = json.loads(str((main.attrs or {}).get("kiln.dims", "{}")))
    for parameter in main.params:
        for variable in relax.analysis.tir_vars_in_type(parameter.ty):
            if variable.name in described:
                least, greatest = (described[variable.name][end] for end in ("min", "max"))
                ends = (tirx.IntImm("int64", end) for end in (least, greatest + 1))
                analyzer.bind(variable, tvm.ir.Range(*ends))

    def greatest_value(size: Any) -> int:
        return size if isinstance(size, int) else int(analyzer.const_int_bound(size).max_value)

    return greatest_value
