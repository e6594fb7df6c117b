"""Op info: a PrimFunc records the operators that it was made from, with their kinds and attributes.

The attribute `kiln.ops` of a PrimFunc is a JSON list with one entry for each operator, in order of execution;
a fused function has the entries of the functions that were fused. The keys of an entry:

    name       name of the operator, without `relax.`; `tir.<function>` where no operator made the function
    kind       elementwise, broadcast, injective, reduction, out_elementwise_fusable, opaque
    attrs      attributes and non-tensor arguments of the operator (opinfo/attributes.py)
    out_dtype  data type of the operator's result; "" for a tuple
    args       origin of each tensor operand: {"param": position among the function's tensors},
               {"op": position in this list}, with {"out": position} if that operator returns a tuple,
               {"value": number} for a scalar that is part of the code, {} if the origin is not known
    nests      number of the function's loop nests that compute this operator; 0 if it has no loop nests
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar, Op
from tvm.tirx import PrimFunc

from kiln.callbacks import LegalizeOps, structural_walk
from kiln.errors import KilnError
from kiln.graph.bindings import constant, operator
from kiln.operators.convert import NAME_ATTRIBUTE
from kiln.opinfo.attributes import OpInfo, describe, leaves
from kiln.opinfo.kinds import KINDS, OPAQUE, PATTERN, kind_of, nests_of

__all__ = [
    "KINDS", "OpInfo", "annotate", "describe", "fuse_tir", "legalize_with_info", "of", "of_functions",
    "refusal", "tensors", "with_ops",
]  # fmt: skip

Legalize = Callable[[Any, Any], Any]

ATTRIBUTE = "kiln.ops"
_INJECTIVE = 2  # the greatest op_pattern of operators whose elements depend on one element (OpPatternKind)
FOREIGN = "tir."


def of(func: PrimFunc) -> list[OpInfo]:
    """The op info of a PrimFunc; empty before `annotate` for a function not made from an operator."""
    text = func.attrs.get(ATTRIBUTE) if func.attrs else None
    ops: list[OpInfo] = json.loads(str(text)) if text else []
    return ops


def with_ops(func: PrimFunc, ops: list[OpInfo]) -> PrimFunc:
    """`func` with `ops` as its op info."""
    return func.with_attr(ATTRIBUTE, json.dumps(ops, sort_keys=True))


def of_functions(mod: tvm.IRModule) -> dict[str, list[OpInfo]]:
    """Op info of every PrimFunc of a module, by function name."""
    return {
        variable.name_hint: of(func) for variable, func in mod.functions_items() if isinstance(func, PrimFunc)
    }


def tensors(func: PrimFunc) -> list[Any]:
    """The tensor parameters of a function, inputs first; {"param": position} is a position in this list."""
    return [param for param in func.params if tirx.is_buffer_var(param)]


# ---- legalisation: one operator, one function ----


def _operands(call: relax.Call, legalized: Any) -> list[dict[str, Any]]:
    """Entry `args` for a Relax call: the origin of each tensor operand in the call_tir `legalized`."""
    arguments = [item for item in legalized.args[1].fields if isinstance(item.ty, relax.TensorType)]
    used: set[int] = set()
    origins: list[dict[str, Any]] = []
    for leaf in leaves(list(call.args)):
        positions = [index for index, item in enumerate(arguments) if leaf is not None and item.same_as(leaf)]
        position = next(
            (index for index in positions if index not in used), positions[0] if positions else None
        )
        value = constant(leaf)
        if position is not None:
            used.add(position)
            origins.append({"param": position})
        elif value is not None and value.size == 1:
            origins.append({"value": value.reshape(-1)[0].item()})
        else:
            origins.append({})
    return origins


def _with_info(legalize: Legalize) -> Legalize:
    """The legalisation rule `legalize`, extended to attach op info to the function that it creates."""

    def legalize_and_describe(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        try:
            result = legalize(builder, call)
        except Exception as error:  # TVM's rules raise many kinds
            raise KilnError(refusal([describe(call)], error)) from error
        if operator(result) == "relax.call_tir":
            reason = misfit(call.ty, result.ty_args[0])  # its own type is not inferred yet
            if reason:
                raise KilnError(refusal([describe(call)], ValueError(reason)))
            variable = result.args[0]
            func = builder.get()[variable]
            info = {**describe(call), "args": _operands(call, result)}
            builder.update_func(variable, with_ops(func, [info]))
        return result

    return legalize_and_describe


def misfit(declared: Any, made: Any) -> str:
    """The difference of the type of a function's result from that of its operator; empty if there is none.

    Consumers are lowered for the operator's type, and would read other elements than the function writes.
    Sizes that are not numbers are not compared.
    """
    if isinstance(declared, relax.TupleType) and isinstance(made, relax.TupleType):
        pairs = list(zip(declared.fields, made.fields, strict=False))
        reasons = [misfit(*pair) for pair in pairs]
        if len(declared.fields) != len(made.fields):
            reasons.append(f"its function makes {len(made.fields)} results, not {len(declared.fields)}")
        return next(filter(None, reasons), "")
    if not isinstance(declared, relax.TensorType) or not isinstance(made, relax.TensorType):
        return ""
    sizes = [list(ty.shape or ()) for ty in (declared, made)]
    known = [
        (int(a), int(b))
        for a, b in zip(*sizes, strict=False)
        if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm)
    ]
    is_same_type = str(declared.dtype) == str(made.dtype) and declared.ndim in (made.ndim, -1)
    return (
        "" if is_same_type and all(a == b for a, b in known) else f"its function makes {made}, not {declared}"
    )


def legalize_with_info(
    own: Mapping[str, Legalize], skip: list[str]
) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """LegalizeOps that attaches op info to the functions it creates.

    `own`: rules that replace TVM's, by operator name; `skip`: names of operators to leave as they are.
    """
    rules: dict[str, Legalize] = {}
    for name in Op.list_op_names():
        legalize = own.get(str(name)) or Op.get(name).get_attr("FLegalize")
        if legalize is not None and str(name).startswith("relax."):
            rules[str(name)] = _with_info(legalize)
    return LegalizeOps(rules, skip_ops=skip)  # type: ignore[no-any-return]


def annotate(mod: tvm.IRModule) -> tvm.IRModule:
    """Add `kind` and `nests` to all entries, from the code; AnnotateTIROpPattern must run before.

    A function not made from an operator gets an entry too, with the facts that its code shows.
    """
    for variable, func in list(mod.functions_items()):
        if not isinstance(func, PrimFunc):
            continue
        nests = nests_of(func)
        # TVM takes loops without blocks, which find few places by indices, for elementwise, and then fails.
        if nests is None and (not of(func) or int(func.attrs[PATTERN]) <= _INJECTIVE):
            func = func.with_attr(PATTERN, OPAQUE)
        analysis = {"kind": kind_of(func), "nests": len(nests or [])}
        ops = [{**op, **analysis} for op in of(func)]
        mod.update_func(variable, with_ops(func, ops or [{**_foreign(variable, func), **analysis}]))
    return mod


def _foreign(variable: GlobalVar, func: PrimFunc) -> OpInfo:
    """The entry for a function that was not made from an operator."""
    params = tensors(func)
    written: set[Any] = set()
    structural_walk(func.body, ((tirx.BufferStore, lambda store: written.add(store.buffer)),))
    args = [{"param": index} for index, param in enumerate(params) if param not in written]
    outputs = [param for param in params if param in written]
    dtype = str(outputs[0].dtype) if len(outputs) == 1 else ""
    name = str(func.attrs.get(NAME_ATTRIBUTE, variable.name_hint)) if func.attrs else variable.name_hint
    return {"name": FOREIGN + name, "attrs": {}, "out_dtype": dtype, "args": args}


# ---- fusion: concatenate the entries of the fused functions ----


def fuse_tir(mod: tvm.IRModule) -> tvm.IRModule:
    """FuseTIR that keeps op info: a fused function has the entries of its group, in order of execution."""
    infos = {
        variable.name_hint: _group_info(mod, func)
        for variable, func in mod.functions_items()
        if isinstance(func, relax.Function) and func.attrs and func.attrs.get("Primitive", 0)
    }
    mod = relax.transform.FuseTIR()(mod)
    for variable, func in list(mod.functions_items()):
        if isinstance(func, PrimFunc) and variable.name_hint in infos:
            mod.update_func(variable, with_ops(func, infos[variable.name_hint]))
    return mod


def _group_info(mod: tvm.IRModule, group: relax.Function) -> list[OpInfo]:
    """The entries of the functions that a group calls, with operands renumbered for the fused function."""
    params = [param for param in group.params if not isinstance(param.ty, relax.ShapeType)]
    # FuseTIR splits tuple parameters into tensors; the positions of these tensors are not known here.
    simple = not any(isinstance(param.ty, relax.TupleType) for param in params)
    sources: dict[Any, dict[str, Any]] = {}
    if simple:
        inputs = [param for param in params if isinstance(param.ty, relax.TensorType)]
        sources = {param: {"param": index} for index, param in enumerate(inputs)}
    ops: list[OpInfo] = []
    for block in group.body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.TupleGetItem):
                source = sources.get(call.tuple_value, {})
                sources[binding.var] = {**source, "out": int(call.index)} if source else {}
            elif operator(call) == "relax.call_tir":
                items = [i for i in call.args[1].fields if isinstance(i.ty, relax.TensorType)]
                origins = [sources.get(item, {}) for item in items]
                ops += [_renumbered(op, origins, len(ops)) for op in of(mod[call.args[0]])]
                sources[binding.var] = {"op": len(ops) - 1}
            elif isinstance(call, relax.Var):
                sources[binding.var] = sources.get(call, {})
    return ops


def _renumbered(op: OpInfo, origins: list[dict[str, Any]], first: int) -> OpInfo:
    """An entry of a function inside a group, rewritten for the fused function.

    `origins`: origins in the fused function of the inner function's tensors; `first`: position in the fused
    function's op info of the inner function's first entry.
    """
    args = []
    for arg in op.get("args", []):
        if "param" in arg:
            args.append(origins[arg["param"]])
        else:
            args.append({**arg, "op": arg["op"] + first} if "op" in arg else arg)
    return {**op, "args": args}


def refusal(ops: list[OpInfo], error: Exception) -> str:
    """One-line error message: the operators that cannot be compiled, and why."""
    names = (
        " + ".join(dict.fromkeys(op["name"].removeprefix(FOREIGN) for op in ops))
        or "a group without operators"
    )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if not line.startswith("File ")), type(error).__name__)
    unknown = re.search(r'[Uu]nknown intrinsic .*name="tirx\.(\w+)"', reason)
    if unknown:  # the text of TVM's code generator
        reason = f"the function {unknown[1]} has no code for this type; cast its operands to float32"
    elif not isinstance(error, (KilnError, ValueError, MemoryError)) and "bad_alloc" not in reason:
        # Nobody has foreseen it: what a library says is for a report, and no answer for who built the model.
        reason += (
            "; that is a fault of Kiln: the command reduce cuts out the part that fails, for a report; an "
            "operator of your own can compute it (docs/own-operator.md)"
        )
    return f"operator '{names}' cannot be compiled: {reason}"
