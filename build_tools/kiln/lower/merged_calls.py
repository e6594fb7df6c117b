"""Several calls of fused functions become one call of one function, which stores nothing in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from kiln.graph.bindings import operator
from kiln.opinfo import attach
from kiln.tir.symbols import variables


@dataclass(frozen=True)
class Chain:
    """Variables of `main` and the calls that they are bound to, in order.

    Of all but the last variable, nothing outside of the chain reads the value.
    """

    variables: tuple[Any, ...]
    calls: tuple[Any, ...]


def names_of(mod: tvm.IRModule, call: Any) -> list[str]:
    """The operators of the function that `call` calls; empty for other expressions."""
    if operator(call) != "relax.call_tir" or isinstance(call.ty, relax.TupleType):
        return []
    return [op["name"] for op in attach.of(mod[call.args[0]])]


def _function(chain: Chain) -> tuple[relax.Function, list[Any]]:
    """A function of the calls, and the arguments with which it is called.

    Its parameters are the tensors that the calls read, and last, as one shape, the variables of sizes that no
    tensor declares: those that occur in expressions alone, which calls pass to their functions as numbers.
    """
    inner = chain.variables[:-1]
    inputs: list[Any] = []
    sizes: list[Any] = []
    for call in chain.calls:
        sizes += [*call.ty.shape, *(call.args[2].values if len(call.args) > 2 else [])]
        for item in call.args[1].fields:
            if not isinstance(item.ty, relax.TensorType):
                sizes.append(item)
            elif not any(item.same_as(other) for other in [*inputs, *inner]):
                inputs.append(item)
    params = [relax.Var(f"in{number}", item.ty) for number, item in enumerate(inputs)]
    shapes = [size for item in inputs for size in item.ty.shape]
    undeclared = _distinct([variable for size in [*sizes, *shapes] for variable in variables(size)], shapes)
    renamed = list(zip(inputs, params, strict=True))
    bindings = []
    for variable, call in zip(chain.variables, chain.calls, strict=True):
        fields = [
            next((new for old, new in renamed if old.same_as(item)), item) for item in call.args[1].fields
        ]
        value = relax.Call(
            call.op, [call.args[0], relax.Tuple(fields), *call.args[2:]], call.attrs, call.ty_args
        )
        renamed.append((variable, relax.DataflowVar(variable.name, variable.ty)))
        bindings.append(relax.VarBinding(renamed[-1][1], value))
    result = relax.Var("result", chain.variables[-1].ty)
    bindings.append(relax.VarBinding(result, renamed[-1][1]))
    if undeclared:
        params.append(relax.Var("sizes", relax.ShapeType(undeclared)))
        inputs.append(relax.ShapeExpr(undeclared))
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
    function = relax.Function(params, body, result.ty, True).with_attr("Primitive", True)
    return relax.utils.copy_with_new_vars(function), inputs


def _distinct(items: list[Any], others: list[Any]) -> list[Any]:
    """Each of `items` once, in order, without those that are among `others`."""
    found: list[Any] = []
    for item in items:
        if not any(item.same_as(other) for other in [*found, *others] if not isinstance(other, int)):
            found.append(item)
    return found


def _merged(mod: tvm.IRModule, merged_chains: Sequence[Chain], stem: str) -> tuple[tvm.IRModule, list[str]]:
    """`mod` with one call for each chain, and the names of the functions."""
    main, attrs = mod["main"], mod.attrs
    builder = relax.BlockBuilder(mod)
    values: dict[Any, Any] = {}
    gone: set[Any] = set()
    names = []
    for number, chain in enumerate(merged_chains):
        function, arguments = _function(chain)
        variable = builder.add_func(function, f"fused_{stem}{number}")
        names.append(variable.name_hint)
        values[chain.variables[-1]] = relax.Call(variable, arguments)
        gone |= set(chain.variables[:-1])
    blocks = []
    for block in main.body.blocks:
        bindings = [
            relax.VarBinding(binding.var, values[binding.var]) if binding.var in values else binding
            for binding in block.bindings
            if binding.var not in gone
        ]
        is_flow = isinstance(block, relax.DataflowBlock)
        blocks.append((relax.DataflowBlock if is_flow else relax.BindingBlock)(bindings))
    body = relax.SeqExpr(blocks, main.body.body)
    mod = builder.get()
    mod["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    mod = relax.transform.Normalize()(mod.with_attrs(dict(attrs)) if attrs else mod)
    return relax.transform.DeadCodeElimination()(attach.fuse_tir(mod)), names


def of_computed(
    mod: tvm.IRModule, candidates: list[Chain], is_computed: Callable[[tvm.tirx.PrimFunc], bool], stem: str
) -> tuple[tvm.IRModule, dict[str, list[Chain]]]:
    """`mod` with one call for each candidate whose merged function `is_computed`; `stem`: of their names.

    Returns these candidates, too, by the name of their function, which equal layers share. Candidates that
    are not computed are left out, and the others merged again.
    """
    while candidates:
        result, names = _merged(mod, candidates, stem)
        computed = [chain for name, chain in zip(names, candidates, strict=True) if is_computed(result[name])]
        if len(computed) == len(candidates):
            by_name: dict[str, list[Chain]] = {}
            for name, chain in zip(names, candidates, strict=True):
                by_name.setdefault(name, []).append(chain)
            return result, by_name
        candidates = computed
    return mod, {}
