"""Proof that padding is neutral: abstract interpretation of a dynamic-shape graph on padded inputs.

Invariant for every tensor: in the run on padded inputs, the tensor's kept part
(kiln.specialize.padding.tensors) equals, up to rounding, the tensor of the run on exact inputs, for every
size of the bucket. The invariant holds for the inputs. Each operator has a rule that either establishes the
invariant for its result or raises NotNeutralError. An operator without a rule is refused if an operand or
the result is padded.

Assumptions: inputs are finite; finite sums and products stay finite; an input declared as a mask holds 0 or
1, with at least one 1 in each row; the offset of a mask (MASKED or less) outweighs the scores that it is
added to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from kiln.errors import KilnError
from kiln.frontend import added_operators, branches, recurrent
from kiln.graph.bindings import operator
from kiln.specialize.padding import (
    rules_linear,
    rules_moving,
    rules_picking,
    rules_pointwise,
    rules_reductions,
    rules_windows,
    values,
)
from kiln.specialize.padding.context import Context, Rule, State, axis_text
from kiln.specialize.padding.sizes import Sizes, shape_of
from kiln.specialize.padding.tensors import NotNeutralError, Padded, tensor_state
from kiln.specialize.padding.values import ANYTHING, Number
from kiln.specialize.symbols import is_sizes, symbols_of

RULES: dict[str, Rule] = {
    **rules_pointwise.RULES,
    **rules_moving.RULES,
    **rules_picking.RULES,
    **rules_reductions.RULES,
    **rules_linear.RULES,
    **rules_windows.RULES,
}


@dataclass(frozen=True)
class Fill:
    """The value of an input's padded elements, and whether the input is a mask of zeros and ones."""

    value: Number
    mask: bool = False


class NotProvenError(KilnError):
    """Padding is not proven neutral; the message names the first input, operator or output at fault."""


def prove(module: tvm.IRModule, padded: Sequence[str], fills: Sequence[Fill], outputs: Sequence[str]) -> None:
    """Raise NotProvenError unless padding the dimensions `padded` changes no output's kept part.

    `module`: imported with these dimensions dynamic; attribute kiln.dims has their ranges. `fills`: one per
    input, in order. `outputs`: names of the outputs, for errors.
    """
    main = module["main"]
    context = Context(Sizes(symbols_of(main), padded))
    tensors = [parameter for parameter in main.params if not is_sizes(parameter)]
    for parameter, fill in zip(tensors, fills, strict=True):
        try:
            context.states[parameter] = _input(context, parameter.ty, fill)
        except NotNeutralError as error:
            raise NotProvenError(f"input '{parameter.name}': {error}") from None
    nodes = json.loads(str((main.attrs or {}).get("kiln.nodes", "{}")))
    for block in main.body.blocks:
        for binding in block.bindings:
            try:
                context.states[binding.var] = _binding_state(context, binding)
            except NotNeutralError as error:
                if not _reads_only_sizes(context, binding.value):
                    raise NotProvenError(f"{_node_name(context, main, binding, nodes)}: {error}") from None
                context.leaks[binding.var] = str(error)  # reported where the size is combined with data
            context.bound[binding.var] = binding.value
    try:
        result = context.state(main.body.body)
    except NotNeutralError as error:
        raise NotProvenError(f"output '{outputs[0]}': {error}") from None
    for name, state in zip(outputs, result if isinstance(result, list) else [result], strict=True):
        _check_output(name, state)


def _input(context: Context, ty: Any, fill: Fill) -> Padded:
    """The state of an input: any value of its type (0 or 1 for a mask) in the kept part, `fill` elsewhere."""
    dtype = str(ty.dtype)
    kept_value = values.within(0, 1) if fill.mask else values.of_dtype(dtype)
    padding_value = values.constant(fill.value)
    return context.new(ty, lambda region: padding_value if region else kept_value)


def _binding_state(context: Context, binding: Any) -> State:
    """The state of a bound variable, by the rule of its operator. Raises NotNeutralError."""
    value = binding.value
    if isinstance(binding, relax.MatchCast):
        state = context.state(value)
        if isinstance(state, list) or state.keys:
            raise NotNeutralError("the shape of its result is known only at run time")
        return context.fixed(binding.ty, state.kept)
    if not isinstance(value, relax.Call):
        return context.state(value)
    is_choice = branches.is_choice(value)
    rule = rules_pointwise.choose if is_choice else RULES.get(context.name(value))
    if not _depends_on_padding(context, value):
        return _unpadded_result(context, value, rule)
    if rule is None:
        raise NotNeutralError("Kiln has no rule for its effect on padding")
    return rule(context, value)


def _depends_on_padding(context: Context, call: relax.Call) -> bool:
    """Whether an operand or the result of a call depends on a padded dimension."""
    touched: list[bool] = []

    def visit(expr: relax.Expr) -> None:
        if expr in context.leaks:
            touched.append(True)
        elif expr in context.states:
            states = context.states[expr]
            for state in states if isinstance(states, list) else [states]:
                touched.append(bool(state.keys))
        elif isinstance(getattr(expr, "ty", None), tvm.ir.PrimType):
            touched.append(context.sizes.depends(expr))

    for argument in call.args:
        parts = argument.fields if isinstance(argument, relax.Tuple) else [argument]
        for part in parts:
            if isinstance(part, relax.ShapeExpr):
                touched.extend(context.sizes.depends(size) for size in part.values)
            elif isinstance(part, relax.TupleGetItem):
                visit(part.tuple_value)
            else:
                visit(part)
    fields = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
    for field in fields:
        if isinstance(field, relax.TensorType) and field.shape is not None:
            touched.extend(context.sizes.depends(size) for size in shape_of(field))
    return any(touched)


def _unpadded_result(context: Context, call: relax.Call, rule: Rule | None) -> State:
    """The state of a call without padded operands; the rule, if any, only bounds the values of the result."""
    if rule is not None:
        try:
            return rule(context, call)
        except NotNeutralError:
            pass
    many = isinstance(call.ty, relax.TupleType)
    fields = [
        tensor_state([context.sizes.axis(s) for s in shape_of(ty)], lambda region: ANYTHING)
        for ty in (call.ty.fields if many else [call.ty])
    ]
    return list(fields) if many else fields[0]


def _check_output(name: str, state: Any) -> None:
    """Raise NotProvenError unless the padded part of every axis of an output is at its end."""
    if not isinstance(state, Padded):
        raise NotProvenError(f"output '{name}': it is not a tensor")
    for index, axis in enumerate(state.axes):
        inner = [atom for atom in axis[1:] if atom.padded]
        if inner:
            raise NotProvenError(
                f"output '{name}': the padding is between the elements of axis {index}, {axis_text(axis)}: "
                "it cannot be cut off"
            )


def _node_name(context: Context, main: Any, failed: Any, nodes: Mapping[str, Sequence[str]]) -> str:
    """The name, for errors, of the node of the model's file that a binding comes from.

    `nodes`: by Relax operator, the nodes of the file in order. They identify the node only if as many calls
    of the operator are left as there are nodes; otherwise the operator and candidate nodes are named.
    """
    name = _operator(failed.value)
    origins = list(nodes.get(name, []))
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    candidates = [b for b in bindings if _operator(b.value) == name and b.var not in context.leaks]
    if len(candidates) == len(origins):
        return next(
            o for o, binding in zip(origins, candidates, strict=True) if binding.var.same_as(failed.var)
        )
    if len(origins) == 1:
        return origins[0]
    return f"operator {name}" + (f" (one of: {', '.join(origins[:3])}, …)" if origins else "")


def _reads_only_sizes(context: Context, value: Any) -> bool:
    """Whether all operands of a call are sizes or constants, and none is computed from an input."""
    if not isinstance(value, relax.Call):
        return False
    parts = [part for a in value.args for part in (a.fields if isinstance(a, relax.Tuple) else [a])]
    return not any(part in context.states for part in parts)


def _operator(value: Any) -> str:
    added = added_operators.name_of(value)
    if added is not None:
        return recurrent.attributes(value).kind if added == recurrent.NAME else added
    name = operator(value)
    if name == "relax.call_tir":  # code that the importer has written for an operator
        return str(value.args[0].name_hint)
    return (name or type(value).__name__).removeprefix("relax.")
