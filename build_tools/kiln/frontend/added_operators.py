"""Operators that Relax lacks, as calls in a Relax graph between the import and `lower`.

Such an operator is a `call_dps_packed` of an external function whose name begins with PREFIX; the attributes
of the operator are JSON in the attributes of the call. For other passes it is an opaque
function of tensors with known types. `lower` replaces it by loops (kernels/operators/added.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax
from tvm.ir import Op, make_node

PREFIX = "kiln.operator."
_ATTRIBUTES = "kiln"


def call(name: str, inputs: Sequence[Any], attributes: Mapping[str, Any], types: Sequence[Any]) -> Any:
    """The call of operator `name`; its value is a tuple of tensors of `types` if these are several."""
    function = relax.ExternFunc(PREFIX + name)
    call_of_function = relax.op.call_dps_packed(function, relax.Tuple(list(inputs)), list(types))
    about = make_node("ir.DictAttrs", **{_ATTRIBUTES: json.dumps(attributes, sort_keys=True)})
    return relax.Call(call_of_function.op, call_of_function.args, about, call_of_function.ty_args)


def name_of(expr: Any) -> str | None:
    """The name of the operator that `expr` calls; None for other expressions."""
    if not isinstance(expr, relax.Call) or not isinstance(expr.op, Op):
        return None
    if str(expr.op.name) != "relax.call_dps_packed" or not isinstance(expr.args[0], relax.ExternFunc):
        return None
    symbol = str(expr.args[0].global_symbol)
    return symbol.removeprefix(PREFIX) if symbol.startswith(PREFIX) else None


def attributes_of(expr: Any) -> dict[str, Any]:
    """The attributes of a call of such an operator."""
    attributes: dict[str, Any] = json.loads(str(expr.attrs[_ATTRIBUTES]))
    return attributes
