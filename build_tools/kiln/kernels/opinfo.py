"""Op info: every PrimFunc made from an operator says which one, of what kind, with which attributes.

The attribute `kiln.ops` of a PrimFunc is a JSON list of {"name", "kind", "attrs", "out_dtype"}; a fused
function has the entries of its parts, in order of execution.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Op
from tvm.tirx import PrimFunc

from kiln.errors import KilnError

OpInfo = dict[str, Any]
Legalize = Callable[[Any, Any], Any]

ATTRIBUTE = "kiln.ops"

# Numbers of OpPatternKind in TVM 0.27, attribute op_pattern.
KINDS = {
    0: "elementwise",
    1: "broadcast",
    2: "injective",
    3: "reduction",
    4: "out_elementwise_fusable",
    7: "tuple",
    8: "opaque",
}


def _plain(value: Any) -> Any:
    """An attribute's value as JSON can hold it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tvm.tirx.IntImm | tvm.tirx.FloatImm):
        return value.value
    if isinstance(value, tvm.DataType):
        return str(value)
    try:
        return [_plain(entry) for entry in value]
    except TypeError:
        return str(value)


def _fields(attrs: Any) -> dict[str, Any]:
    """The fields of an attribute object, by tvm-ffi's own reflection of its type."""
    fields = type(attrs).__tvm_ffi_type_info__.fields
    return {str(field.name): _plain(getattr(attrs, field.name)) for field in fields}


def describe(call: Any) -> OpInfo:
    """The op info of a Relax call, but for its kind, which only its PrimFunc shows."""
    attrs = {} if call.attrs is None else _fields(call.attrs)
    result = call.ty
    dtype = str(result.dtype) if isinstance(result, relax.TensorType) else ""
    return {"name": call.op.name.removeprefix("relax."), "attrs": attrs, "out_dtype": dtype}


def read(func: PrimFunc) -> list[OpInfo]:
    """The op info of a PrimFunc; empty when it was not made from an operator."""
    found = func.attrs.get(ATTRIBUTE) if func.attrs else None
    ops: list[OpInfo] = json.loads(str(found)) if found else []
    return ops


def _with_info(legalize: Legalize) -> Legalize:
    def legalize_and_describe(builder: Any, call: Any) -> Any:
        try:
            result = legalize(builder, call)
        except Exception as error:  # TVM's rules raise many kinds
            raise KilnError(refusal([describe(call)], error)) from error
        if (
            isinstance(result, relax.Call)
            and isinstance(result.op, Op)
            and result.op.name == "relax.call_tir"
        ):
            variable = result.args[0]
            func = builder.get()[variable]
            builder.update_func(
                variable, func.with_attr(ATTRIBUTE, json.dumps([describe(call)], sort_keys=True))
            )
        return result

    return legalize_and_describe


def legalize_with_info(
    own: Mapping[str, Legalize], skip: list[str]
) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """LegalizeOps that leaves op info on what it makes; `own` replaces TVM's rules by operator name."""
    rules: dict[str, Legalize] = {}
    for name in Op.list_op_names():
        legalize = own.get(str(name)) or Op.get(name).get_attr("FLegalize")
        if legalize is not None and str(name).startswith("relax."):
            rules[str(name)] = _with_info(legalize)
    return relax.transform.LegalizeOps(rules, skip_ops=skip)  # type: ignore[no-any-return]


def refusal(ops: list[OpInfo], error: Exception) -> str:
    """One line that says which operators cannot be compiled, and why."""
    names = " + ".join(dict.fromkeys(op["name"] for op in ops)) or "a group without operators"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if not line.startswith("File ")), type(error).__name__)
    return f"operator '{names}' cannot be compiled: {reason}"


def of_groups(mod: tvm.IRModule) -> dict[str, list[OpInfo]]:
    """Op info of every PrimFunc and every fused group of a module after FuseOps, by function name."""
    found: dict[str, list[OpInfo]] = {}
    for variable, func in mod.functions_items():
        if isinstance(func, PrimFunc):
            pattern = int(func.attrs.get("op_pattern", 8)) if func.attrs else 8
            kind = KINDS.get(pattern, "opaque")
            found[variable.name_hint] = [{**op, "kind": kind} for op in read(func)] or [
                {"name": variable.name_hint, "kind": kind, "attrs": {}, "out_dtype": ""}
            ]
    for variable, func in mod.functions_items():
        if isinstance(func, relax.Function) and func.attrs and func.attrs.get("Primitive", 0):
            calls = [binding.value for block in func.body.blocks for binding in block.bindings]
            found[variable.name_hint] = [
                op
                for call in calls
                if isinstance(call, relax.Call) and call.op == Op.get("relax.call_tir")
                for op in found[call.args[0].name_hint]
            ]
    return found
