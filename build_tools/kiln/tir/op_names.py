"""Names of the operators that calls in TIR call."""

from __future__ import annotations

from typing import Any

# TVM 0.27 has most of TIR's operators in "tirx", and some, such as if_then_else and ceil, in "prim".
_DIALECTS = ("tirx.", "prim.")


def op_name(call: Any) -> str:
    """The name of the operator that `call` calls, without its dialect; empty where it calls a function."""
    name = str(getattr(call.op, "name", ""))
    for dialect in _DIALECTS:
        name = name.removeprefix(dialect)
    return name
