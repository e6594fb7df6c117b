"""Attention: its two matmuls and the softmax between them become one function, which stores no scores.

Runs after fusion, on the calls of fused functions. A chain of three calls, of which nothing else reads the
results in between, becomes one call of a function that kernels/cpu/attention.py computes. Chains that it
does not compute are left as they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.extents import extent
from kiln.graph.bindings import constant, count_uses, operator
from kiln.kernels.cpu import attention
from kiln.kernels.cpu.attention_nests import GUARD, PRODUCTS, SOFTMAX, read_attention
from kiln.kernels.gpu import attention as gpu_attention
from kiln.kernels.gpu.attention_nests import MARK
from kiln.kernels.gpu.product_nests import is_product
from kiln.lower.dims import Dims
from kiln.opinfo import attach
from kiln.params.store import Tensors
from kiln.tir.fused import Fused, NotSimple
from kiln.tir.symbols import NO_RANGES, is_dynamic, variables

# Scores with such a number added have no weight beside others.
_HIDDEN = -1e4
# A width of heads so large that only the number of scores decides whether storing them costs too much.
_WIDE = 1 << 10


@dataclass(frozen=True)
class Chain:
    """The variables bound to the scores, their softmax and the result, with the three calls."""

    variables: tuple[Any, Any, Any]
    calls: tuple[Any, Any, Any]


def _names(mod: tvm.IRModule, call: Any) -> list[str]:
    """The operators of the function that `call` calls; empty for other expressions."""
    if operator(call) != "relax.call_tir" or isinstance(call.ty, relax.TupleType):
        return []
    return [op["name"] for op in attach.of(mod[call.args[0]])]


def chains(mod: tvm.IRModule, params: Tensors) -> list[Chain]:
    """The candidates in `main`, by their operators; `params`: values of parameters of `main` by name."""
    bound = {binding.var: binding.value for block in mod["main"].body.blocks for binding in block.bindings}
    uses, candidates = count_uses(mod), []
    for result, last in bound.items():
        names = _names(mod, last)
        if not names or names[0] not in PRODUCTS:
            continue
        for softmax in last.args[1].fields:
            middle = bound.get(softmax)
            if (
                middle is None
                or _names(mod, middle) not in ([SOFTMAX], [SOFTMAX, *GUARD])
                or uses.get(softmax) != 1
            ):
                continue
            scores, *other_operands = middle.args[1].fields
            if not all(_is_zero(item, params) for item in other_operands):
                continue  # not what replaces NaN
            first = bound.get(scores)
            if sum(name in PRODUCTS for name in _names(mod, first)) == 1 and uses.get(scores) == 1:
                candidates.append(Chain((scores, softmax, result), (first, middle, last)))
                break
    return candidates


def _is_zero(item: Any, params: Tensors) -> bool:
    """Whether the operand `item` is a constant made of zeros."""
    value = params.get(item.name) if isinstance(item, relax.Var) else constant(item)
    return value is not None and not value.any()


def _function(chain: Chain) -> tuple[relax.Function, list[Any]]:
    """A function of the three calls, and the arguments with which it is called."""
    inner = chain.variables[:2]
    inputs: list[Any] = []
    for call in chain.calls:
        for item in call.args[1].fields:
            if not any(item.same_as(other) for other in [*inputs, *inner]):
                inputs.append(item)
    params = [relax.Var(f"in{number}", item.ty) for number, item in enumerate(inputs)]
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
    shapes = [size for param in params if isinstance(param.ty, relax.TensorType) for size in param.ty.shape]
    size_variables = [size for size in shapes if isinstance(size, tvm.tirx.Var)]
    used: list[Any] = []
    for call in chain.calls:
        sizes = [*call.ty.shape, *(call.args[2].values if len(call.args) > 2 else [])]
        for variable in [v for size in [*sizes, *shapes] for v in variables(size)]:
            if not any(variable.same_as(other) for other in [*size_variables, *used]):
                used.append(variable)
    if used:
        params.append(relax.Var("sizes", relax.ShapeType(used)))
        inputs.append(relax.ShapeExpr(used))
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
    function = relax.Function(params, body, result.ty, True).with_attr("Primitive", True)
    return relax.utils.copy_with_new_vars(function), inputs


def _merged(mod: tvm.IRModule, merged_chains: Sequence[Chain]) -> tuple[tvm.IRModule, list[str]]:
    """`mod` with one call for each chain, and the names of the functions."""
    main, attrs = mod["main"], mod.attrs
    builder = relax.BlockBuilder(mod)
    values: dict[Any, Any] = {}
    gone: set[Any] = set()
    names = []
    for number, chain in enumerate(merged_chains):
        function, arguments = _function(chain)
        variable = builder.add_func(function, f"fused_attention{number}")
        names.append(variable.name_hint)
        values[chain.variables[-1]] = relax.Call(variable, arguments)
        gone |= set(chain.variables[:2])
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


def merge(mod: tvm.IRModule, dims: Dims, params: Tensors, on_gpu: bool = False) -> tvm.IRModule:
    """One call for each chain of `mod` that one kernel computes.

    `params`: values of parameters of `main` by name.
    """
    if on_gpu:
        return _merged_on_gpu(mod, dims, params)
    result, _ = _of_computed(mod, [chain for chain in chains(mod, params) if _large(chain, dims)], _computed)
    return result


def _merged_on_gpu(mod: tvm.IRModule, dims: Dims, params: Tensors) -> tvm.IRModule:
    """One call for each chain of `mod` that kernels/gpu/attention.py computes; `params` as for `merge`.

    The functions have the attribute MARK, by which the kernel recognises them in any precision.
    """
    candidates = [
        chain for chain in chains(mod, params)
        if min(map(dims.greatest, list(chain.variables[0].ty.shape)[-2:])) >= gpu_attention.LEAST
    ]  # fmt: skip
    result, merged = _of_computed(mod, candidates, lambda func: _marked(func, False) is not None)
    for name, chain in merged.items():
        marked = _marked(result[name], _is_causal(mod, chain, params))
        assert marked is not None
        result.update_func(result.get_global_var(name), marked)
    return result


def _of_computed(
    mod: tvm.IRModule, candidates: list[Chain], is_computed: Callable[[tvm.tirx.PrimFunc], bool]
) -> tuple[tvm.IRModule, dict[str, Chain]]:
    """`mod` with one call for each candidate whose merged function `is_computed`.

    Returns these candidates, too, by the name of their function. Candidates that are not computed are left
    out, and the others merged again.
    """
    while candidates:
        result, names = _merged(mod, candidates)
        by_name = dict(zip(names, candidates, strict=True))
        computed = [chain for name, chain in by_name.items() if is_computed(result[name])]
        if len(computed) == len(candidates):
            return result, by_name
        candidates = computed
    return mod, {}


def _marked(func: tvm.tirx.PrimFunc, causal: bool) -> tvm.tirx.PrimFunc | None:
    """`func` as attention that a GPU's kernel computes; None if it does not."""
    try:
        attention = read_attention(Fused(func), attach.of(func))
    except NotSimple:
        return None
    if attention is None or any(map(is_dynamic, attention.widths)):
        return None
    if not (is_product(attention.product) and is_product(attention.weighted)):
        return None  # precision would not round its operands
    marks = {"causal": causal, "guarded": attention.guarded}
    marked = func.with_attr(MARK, json.dumps(marks, sort_keys=True))
    return marked if gpu_attention.applies(marked) is not None else None


def _is_causal(mod: tvm.IRModule, chain: Chain, params: Tensors) -> bool:
    """Whether a constant is added to the scores of `chain` that hides all keys after a query's own.

    -inf hides them whatever else is added; a large negative number does if the constant is all that is added,
    and is 0 for the other keys.
    """
    call, last = chain.calls[0], attach.of(mod[chain.calls[0].args[0]])[-1]
    if last["name"] != "add":
        return False
    items = call.args[1].fields
    for argument in last["args"]:
        item = items[argument["param"]] if "param" in argument else None
        value = params.get(item.name) if isinstance(item, relax.Var) else constant(item)
        if value is None or value.ndim < 2 or value.dtype.kind != "f":
            continue
        queries, keys = value.shape[-2:]
        if [queries, keys] != list(map(extent, list(chain.variables[0].ty.shape)[-2:])) or queries > keys:
            continue
        seen = np.tri(queries, keys, keys - queries, dtype=bool)
        hidden = value[..., ~seen]
        alone = len(items) == 3 and not value[..., seen].any()
        if hidden.size and (np.isneginf(hidden).all() or (alone and (hidden <= _HIDDEN).all())):
            return True
    return False


def _large(chain: Chain, dims: Dims) -> bool:
    """Whether there are enough scores, at the greatest sizes; the kernel family checks the width of heads."""
    *lead, queries, keys = (dims.greatest(size) for size in chain.variables[0].ty.shape)
    return attention.pays(math.prod(lead), queries, keys, _WIDE)


def _computed(func: tvm.tirx.PrimFunc) -> bool:
    """Whether the kernel family computes `func`."""
    try:
        return attention.applies(Fused(func, NO_RANGES), attach.of(func)) is not None
    except NotSimple:
        return False
