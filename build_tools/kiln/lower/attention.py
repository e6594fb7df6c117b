"""Attention: its two matmuls and the softmax between them become one function, which stores no scores.

Runs after fusion, on the calls of fused functions. A chain of three calls, of which nothing else reads the
results in between, becomes one call of a function that kernels/cpu/attention.py computes. Chains that it
does not compute are left as they are.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.extents import extent
from kiln.graph.bindings import constant, count_uses
from kiln.kernels.cpu import attention
from kiln.kernels.cpu.attention_nests import GUARD, PRODUCTS, SOFTMAX, read_attention
from kiln.kernels.gpu import attention as gpu_attention
from kiln.kernels.gpu.attention_nests import MARK
from kiln.kernels.gpu.product_nests import is_product
from kiln.lower.dims import Dims
from kiln.lower.merged_calls import Chain, names_of, of_computed
from kiln.opinfo import attach
from kiln.params.store import Tensors
from kiln.tir.fused import Fused, NotSimple
from kiln.tir.symbols import NO_RANGES, is_dynamic

# Scores with such a number added have no weight next to others.
_HIDDEN = -1e4
# A width of heads so large that only the number of scores decides whether storing them costs too much.
_WIDE = 1 << 10


def chains(mod: tvm.IRModule, params: Tensors) -> list[Chain]:
    """The candidates in `main`, by their operators; `params`: values of parameters of `main` by name."""
    bound = {binding.var: binding.value for block in mod["main"].body.blocks for binding in block.bindings}
    uses, candidates = count_uses(mod), []
    for result, last in bound.items():
        names = names_of(mod, last)
        if not names or names[0] not in PRODUCTS:
            continue
        for softmax in last.args[1].fields:
            middle = bound.get(softmax)
            if (
                middle is None
                or names_of(mod, middle) not in ([SOFTMAX], [SOFTMAX, *GUARD])
                or uses.get(softmax) != 1
            ):
                continue
            scores, *others = middle.args[1].fields  # operands, and variables of sizes
            if not all(_is_zero(item, params) for item in others if isinstance(item.ty, relax.TensorType)):
                continue  # not what replaces NaN
            first = bound.get(scores)
            if sum(name in PRODUCTS for name in names_of(mod, first)) == 1 and uses.get(scores) == 1:
                candidates.append(Chain((scores, softmax, result), (first, middle, last)))
                break
    return candidates


def _is_zero(item: Any, params: Tensors) -> bool:
    """Whether the operand `item` is a constant made of zeros."""
    value = params.get(item.name) if isinstance(item, relax.Var) else constant(item)
    return value is not None and not value.any()


def merge(mod: tvm.IRModule, dims: Dims, params: Tensors, on_gpu: bool = False) -> tvm.IRModule:
    """One call for each chain of `mod` that one kernel computes.

    `params`: values of parameters of `main` by name.
    """
    if on_gpu:
        return _merged_on_gpu(mod, dims, params)
    result, _ = of_computed(
        mod, [chain for chain in chains(mod, params) if _large(chain, dims)], _computed, "attention"
    )
    return result


def _merged_on_gpu(mod: tvm.IRModule, dims: Dims, params: Tensors) -> tvm.IRModule:
    """One call for each chain of `mod` that kernels/gpu/attention.py computes; `params` as for `merge`.

    The functions have the attribute MARK, by which the kernel recognises them in any precision.
    """
    candidates = [
        chain for chain in chains(mod, params)
        if min(map(dims.greatest, list(chain.variables[0].ty.shape)[-2:])) >= gpu_attention.LEAST
    ]  # fmt: skip
    result, merged = of_computed(mod, candidates, lambda func: _marked(func, False) is not None, "attention")
    for name, equal in merged.items():
        marked = _marked(result[name], all(_is_causal(mod, chain, params) for chain in equal))
        assert marked is not None
        result.update_func(result.get_global_var(name), marked)
    return result


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
