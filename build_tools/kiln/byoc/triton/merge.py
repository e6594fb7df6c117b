"""One matmul for q, k and v of attention: matmuls of one tensor with constant weights, merged at build time.

The merged matmul has the columns of all three; attention reads its slices in place
(byoc/triton/attention.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from kiln.byoc.match import Operand
from kiln.byoc.triton import attention
from kiln.callbacks import mutator
from kiln.graph.bindings import const, constant, count_uses, operator


class _Projection:
    """One of q, k and v: x · weights + bias, reshaped. `last`: the call whose result is reshaped."""

    def __init__(self, x: Any, weights: Any, bias: Any, last: Any) -> None:
        self.x, self.weights, self.bias, self.last = x, weights, bias, last


def merge_projections(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with one matmul for q, k and v of each attention where the three read one tensor."""
    main, uses = mod["main"], count_uses(mod)
    definitions = relax.analysis.get_var2val(main)
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    variables = {binding.value: binding.var for binding in bindings}
    groups: list[list[_Projection]] = []
    used: set[Any] = set()
    for binding in bindings:
        if not isinstance(binding.value, relax.Call):
            continue
        operands = _attention(binding.value, definitions, variables)
        projections = (
            [_projection(operands[name].expr, definitions, uses) for name in "qkv"] if operands else []
        )
        by_input: dict[Any, list[_Projection]] = {}
        for projection in projections:
            if projection is not None and projection.last not in used:
                by_input.setdefault(projection.x, []).append(projection)
                used.add(projection.last)
        groups += [group for group in by_input.values() if len(group) > 1]
    if not groups:
        return mod
    rewriter = _Merger(mod, groups)
    variable = mod.get_global_var("main")
    rewriter.builder_.update_func(variable, rewriter.visit_expr(main))
    return relax.transform.DeadCodeElimination()(rewriter.builder_.get())


def _attention(call: Any, definitions: Any, variables: Any) -> Mapping[str, Operand] | None:
    """The operands of the attention that ends in `call`; None if there is none."""
    if operator(call) not in ("relax.einsum", "relax.matmul"):
        return None
    for pattern in attention.patterns():
        result = pattern.match(call, definitions, variables)
        if result is not None:
            return result[0].operands
    return None


def _projection(expr: relax.Expr, definitions: Any, uses: Mapping[Any, int]) -> _Projection | None:
    """The projection whose only reader is the definition of `expr`; None for another expression."""

    def defined(variable: relax.Var, name: str) -> Any:
        value = definitions.get(variable, None)
        return value if operator(value) == name and uses.get(variable) == 1 else None

    reshaped: Any = defined(expr, "relax.reshape")
    last = None if reshaped is None else reshaped.args[0]
    added: Any = None if last is None else defined(last, "relax.add")
    bias: Any = None
    product: Any = None if last is None else defined(last, "relax.matmul")
    if added is not None:
        sides = list(added.args)
        biases = [constant(side) for side in sides]
        side = next((i for i, value in enumerate(biases) if value is not None), None)
        if side is None:
            return None
        bias, product = biases[side], defined(sides[1 - side], "relax.matmul")
    weights = None if product is None else constant(product.args[1])
    if weights is None or weights.ndim != 2 or str(weights.dtype) != "float32":
        return None
    if bias is not None and (bias.size != weights.shape[1] or str(bias.dtype) != "float32"):
        return None
    return _Projection(product.args[0], weights, bias, added if added is not None else product)


@mutator
class _Merger(relax.PyExprMutator):  # type: ignore[misc]  # tvm is untyped
    """Replaces the last call of each projection by a slice of the merged product."""

    def __init__(self, mod: tvm.IRModule, groups: list[list[_Projection]]) -> None:
        super().__init__(mod)
        self.places = {
            projection.last: (number, index)
            for number, group in enumerate(groups)
            for index, projection in enumerate(group)
        }
        self.groups = groups
        self.merged: dict[int, Any] = {}

    def visit_call_(self, call: relax.Call) -> Any:
        if call not in self.places:
            return self.visit_expr_post_order(call)
        number, index = self.places[call]
        group = self.groups[number]
        if number not in self.merged:
            weights = np.concatenate([projection.weights for projection in group], axis=1)
            result = self.builder_.emit(
                relax.op.matmul(self.visit_expr(group[0].x), const(weights, "float32"))
            )
            if any(projection.bias is not None for projection in group):
                bias = [
                    np.zeros(projection.weights.shape[1], np.float32)
                    if projection.bias is None
                    else projection.bias.reshape(-1)
                    for projection in group
                ]
                result = self.builder_.emit(relax.op.add(result, const(np.concatenate(bias), "float32")))
            self.merged[number] = result
        widths = [projection.weights.shape[1] for projection in group]
        begin, last = sum(widths[:index]), len(call.ty.shape) - 1
        return relax.op.strided_slice(self.merged[number], [last], [begin], [begin + widths[index]])
