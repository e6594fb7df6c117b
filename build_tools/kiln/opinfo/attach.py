"""Op info: every PrimFunc made from an operator says which one, of what kind, with which attributes.

The attribute `kiln.ops` of a PrimFunc is a JSON list with one entry for each operator, in order of execution;
a fused function has the entries of its parts. An entry:

    name       the operator's, without `relax.`; `tir.<function>` for a function that no operator made
    kind       elementwise, broadcast, injective, reduction, out_elementwise_fusable, opaque
    attrs      its attributes and what else it was called with but tensors (opinfo/attributes.py)
    out_dtype  of its result; "" for a tuple
    args       where its tensors come from: {"param": position among the function's tensors},
               {"op": position in this list} with {"out": position in its tuple} where it makes one,
               {"value": number} for a scalar that is part of the code, {} where that is not known
    nests      how many of the function's loop nests are its own; 0 where it is none
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar, Op
from tvm.tirx import PrimFunc

from kiln.callbacks import LegalizeOps
from kiln.errors import KilnError
from kiln.graph.bindings import constant, operator
from kiln.opinfo.attributes import OpInfo, describe, leaves
from kiln.opinfo.kinds import KINDS, kind_of, nests_of

__all__ = [
    "KINDS", "OpInfo", "annotate", "describe", "fuse_tir", "legalize_with_info", "of", "of_functions",
    "refusal", "tensors", "with_ops",
]  # fmt: skip

Legalize = Callable[[Any, Any], Any]

ATTRIBUTE = "kiln.ops"
FOREIGN = "tir."


def of(func: PrimFunc) -> list[OpInfo]:
    """The op info of a PrimFunc; empty when it has none (before `annotate`, if no operator made it)."""
    found = func.attrs.get(ATTRIBUTE) if func.attrs else None
    ops: list[OpInfo] = json.loads(str(found)) if found else []
    return ops


def with_ops(func: PrimFunc, ops: list[OpInfo]) -> PrimFunc:
    """`func` with that op info."""
    return func.with_attr(ATTRIBUTE, json.dumps(ops, sort_keys=True))


def of_functions(mod: tvm.IRModule) -> dict[str, list[OpInfo]]:
    """Op info of every PrimFunc of a module, by function name."""
    return {
        variable.name_hint: of(func) for variable, func in mod.functions_items() if isinstance(func, PrimFunc)
    }


def tensors(func: PrimFunc) -> list[Any]:
    """The tensors among a function's parameters, inputs first: what {"param": position} counts."""
    return [param for param in func.params if tirx.is_buffer_var(param)]


# ---- legalisation: one operator, one function ----


def _operands(call: Any, made: Any) -> list[dict[str, Any]]:
    """Where the tensors of a Relax call have gone in the call_tir that it became."""
    given = [item for item in made.args[1].fields if isinstance(item.ty, relax.TensorType)]
    used: set[int] = set()
    found: list[dict[str, Any]] = []
    for leaf in leaves(list(call.args)):
        same = [index for index, item in enumerate(given) if leaf is not None and item.same_as(leaf)]
        position = next((index for index in same if index not in used), same[0] if same else None)
        value = constant(leaf)
        if position is not None:
            used.add(position)
            found.append({"param": position})
        elif value is not None and value.size == 1:
            found.append({"value": value.reshape(-1)[0].item()})
        else:
            found.append({})
    return found


def _with_info(legalize: Legalize) -> Legalize:
    def legalize_and_describe(builder: Any, call: Any) -> Any:
        try:
            result = legalize(builder, call)
        except Exception as error:  # TVM's rules raise many kinds
            raise KilnError(refusal([describe(call)], error)) from error
        if operator(result) == "relax.call_tir":
            variable = result.args[0]
            func = builder.get()[variable]
            info = {**describe(call), "args": _operands(call, result)}
            builder.update_func(variable, with_ops(func, [info]))
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
    return LegalizeOps(rules, skip_ops=skip)  # type: ignore[no-any-return]


def annotate(mod: tvm.IRModule) -> tvm.IRModule:
    """Kinds and numbers of nests, by analysis. Needs AnnotateTIROpPattern.

    A function that no operator made gets an entry too, with what its code shows.
    """
    for variable, func in list(mod.functions_items()):
        if not isinstance(func, PrimFunc):
            continue
        found = {"kind": kind_of(func), "nests": len(nests_of(func) or [])}
        ops = [{**op, **found} for op in of(func)]
        mod.update_func(variable, with_ops(func, ops or [{**_foreign(variable, func), **found}]))
    return mod


def _foreign(variable: GlobalVar, func: PrimFunc) -> OpInfo:
    params = tensors(func)
    written = {nest.buffer for nest in nests_of(func) or []}
    args = [{"param": index} for index, param in enumerate(params) if param not in written]
    outputs = [param for param in params if param in written]
    dtype = str(outputs[0].dtype) if len(outputs) == 1 else ""
    return {"name": FOREIGN + variable.name_hint, "attrs": {}, "out_dtype": dtype, "args": args}


# ---- fusion: the lists of the parts, in order ----


def fuse_tir(mod: tvm.IRModule) -> tvm.IRModule:
    """FuseTIR that keeps op info: a group's function has the entries of its parts, in order of execution."""
    joined = {
        variable.name_hint: _joined(mod, func)
        for variable, func in mod.functions_items()
        if isinstance(func, relax.Function) and func.attrs and func.attrs.get("Primitive", 0)
    }
    mod = relax.transform.FuseTIR()(mod)
    for variable, func in list(mod.functions_items()):
        if isinstance(func, PrimFunc) and variable.name_hint in joined:
            mod.update_func(variable, with_ops(func, joined[variable.name_hint]))
    return mod


def _joined(mod: tvm.IRModule, group: relax.Function) -> list[OpInfo]:
    """The entries of a group's functions, with operands that are the group's own."""
    given = [param for param in group.params if not isinstance(param.ty, relax.ShapeType)]
    # Tuples are taken apart when the group becomes one function: how, is not known here.
    simple = not any(isinstance(param.ty, relax.TupleType) for param in given)
    sources: dict[Any, dict[str, Any]] = {}
    if simple:
        only = [param for param in given if isinstance(param.ty, relax.TensorType)]
        sources = {param: {"param": index} for index, param in enumerate(only)}
    ops: list[OpInfo] = []
    for block in group.body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.TupleGetItem):
                whole = sources.get(call.tuple_value, {})
                sources[binding.var] = {**whole, "out": int(call.index)} if whole else {}
            elif operator(call) == "relax.call_tir":
                items = [i for i in call.args[1].fields if isinstance(i.ty, relax.TensorType)]
                placed = [sources.get(item, {}) for item in items]
                ops += [_moved(op, placed, len(ops)) for op in of(mod[call.args[0]])]
                sources[binding.var] = {"op": len(ops) - 1}
            elif isinstance(call, relax.Var):
                sources[binding.var] = sources.get(call, {})
    return ops


def _moved(op: OpInfo, placed: list[dict[str, Any]], first: int) -> OpInfo:
    """An entry of a part, of which the tensors are `placed` and the entries begin at `first`."""
    args = []
    for arg in op.get("args", []):
        if "param" in arg:
            args.append(placed[arg["param"]])
        else:
            args.append({**arg, "op": arg["op"] + first} if "op" in arg else arg)
    return {**op, "args": args}


def refusal(ops: list[OpInfo], error: Exception) -> str:
    """One line that says which operators cannot be compiled, and why."""
    names = " + ".join(dict.fromkeys(op["name"] for op in ops)) or "a group without operators"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if not line.startswith("File ")), type(error).__name__)
    return f"operator '{names}' cannot be compiled: {reason}"
