"""Special cases: for a condition, a function that was made for it, and a test that chooses.

IRModule → IRModule. The function keeps its name, signature and callers; it tests the conditions, and calls
private copies: one in which sizes are bound and contents folded, and the general one. A special case of a
function that has some already is made of each of its cases. What always or never holds is not tested.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from kiln.errors import KilnError
from kiln.graph.empties import without_empties
from kiln.specialize.conditions import (
    AllOf,
    Atom,
    Condition,
    Equals,
    InputIs,
    InRange,
    MultipleOf,
    atoms,
    input_is,
)
from kiln.specialize.dispatch import CASES, Choice, Leaf, Tree, read, write
from kiln.specialize.facts import Facts, facts_of
from kiln.specialize.fold import fold_uniform
from kiln.specialize.gain import gains
from kiln.specialize.symbols import (
    Renamer,
    Symbol,
    copied,
    describe,
    finished,
    int64,
    is_sizes,
    sizes_parameter,
    symbols_of,
)

__all__ = ["AllOf", "Condition", "Equals", "InRange", "InputIs", "MultipleOf", "input_is"]
__all__ += ["special_case", "special_cases"]


def special_case(module: tvm.IRModule, condition: Condition, function: str = "main") -> tvm.IRModule:
    """`module` with a function of its own for `condition`, asked before all that `function` chose from.

    `function` may be one of the private functions that another special case has made: then the choice is
    made where that one was called. The module is handed on where the condition can never hold. Raises
    KilnError for a function, input or symbol that there is not, and for a tensor of another shape or type.
    """
    owner = _owner(module, function)
    parts = _checked(module[owner], atoms(condition))
    old, facts = _cases(module, owner), facts_of(symbols_of(module[owner]))
    tree = read(module, owner)

    def at(node: Tree, known: Facts) -> Tree:
        if isinstance(node, Leaf):
            return _choice(node, parts, known) if node.name == function else node
        held, failed = known.with_held(node.when), known.with_failed(node.when)
        then = node.then if held is None else at(node.then, held)
        other = node.other if failed is None else at(node.other, failed)
        return node if then is node.then and other is node.other else Choice(node.when, then, other)

    made = _choice(tree, parts, facts) if owner == function else at(tree, facts)
    return module if made is tree else write(module, owner, made, old)


def special_cases(
    module: tvm.IRModule,
    conditions: Sequence[Condition],
    function: str = "main",
    dropped: Callable[[int], None] | None = None,
) -> tvm.IRModule:
    """A function for each condition, all made of `function` itself: the first that holds is taken.

    `dropped` is called with the number of each condition on contents alone that would save no operator and no
    operand: there is no function for that one. None: every condition gets its function.
    """
    for condition in conditions:  # all of them are checked before anything is made
        _checked(module[_owner(module, function)], atoms(condition))
    facts, tree = facts_of(symbols_of(module[function])), read(module, function)

    def chain(at: int, known: Facts) -> Tree:
        if at == len(conditions):
            return tree
        parts = _checked(module[function], atoms(conditions[at]))
        held, failed = known.with_held(parts), known.with_failed(parts)
        if held is None:
            return chain(at + 1, known)
        then = _restricted(tree, held)
        if dropped is not None and not _is_worthwhile(tree, then, _open(parts, known)):
            dropped(at)
            return chain(at + 1, known)
        return then if failed is None else Choice(_open(parts, known), then, chain(at + 1, failed))

    made = chain(0, facts)
    return module if made is tree else write(module, function, made, _cases(module, function))


def _is_worthwhile(tree: Tree, then: Tree, parts: tuple[Atom, ...]) -> bool:
    """Whether functions for `parts` are better than those of `tree`: known sizes always help a kernel."""
    if any(not isinstance(atom, InputIs) for atom in parts):
        return True
    if isinstance(tree, Leaf) and isinstance(then, Leaf):
        return gains(then.function, _simplified(copied(tree.function)))
    return True


def _cases(module: tvm.IRModule, function: str) -> set[str]:
    def names(node: Mapping[str, Any]) -> set[str]:
        return {node["leaf"]} if "leaf" in node else names(node["then"]) | names(node["else"])

    attributes = module[function].attrs or {}
    return names(json.loads(str(attributes[CASES]))) if CASES in attributes else set()


def _owner(module: tvm.IRModule, function: str) -> str:
    """The function itself, or the one that chooses it."""
    known = {v.name_hint: f for v, f in module.functions_items() if isinstance(f, relax.Function)}
    if function not in known:
        raise KilnError(f"special case: no function '{function}', known: {', '.join(sorted(known))}")
    return next((name for name in known if function in _cases(module, name)), function)


def _checked(function: Any, parts: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """`parts` themselves, where all that they mention is there."""
    symbols = symbols_of(function)
    inputs = {p.name: p for p in function.params if not is_sizes(p)}
    for atom in parts:
        if not isinstance(atom, InputIs):
            if atom.dim not in symbols:
                known = ", ".join(symbols) or "none"
                raise KilnError(f"special case: no symbolic dimension '{atom.dim}', known: {known}")
            if isinstance(atom, MultipleOf) and atom.factor < 1:
                raise KilnError(f"special case: {atom.dim}: multiple of {atom.factor}, at least 1 is allowed")
            continue
        if atom.input not in inputs:
            known = ", ".join(inputs) or "none"
            raise KilnError(f"special case: no input '{atom.input}', known: {known}")
        if atom.tensor is None:
            if atom.value not in ("zeros", "ones"):
                raise KilnError(
                    f"special case: input '{atom.input}': '{atom.value}', allowed: zeros, ones, a tensor"
                )
            continue
        ty = inputs[atom.input].ty
        shape = [int(size) if isinstance(size, tirx.IntImm) else str(size) for size in ty.shape]
        if str(atom.tensor.dtype) != str(ty.dtype) or list(atom.tensor.shape) != shape:
            raise KilnError(
                f"special case: input '{atom.input}': tensor of {atom.tensor.dtype} "
                f"{list(atom.tensor.shape)}, but the input is {ty.dtype} [{', '.join(map(str, shape))}]"
            )
    return parts


def _open(parts: tuple[Atom, ...], known: Facts) -> tuple[Atom, ...]:
    """Without what always holds."""
    return tuple(atom for atom in parts if known.state(atom) is not True)


def _choice(tree: Tree, parts: tuple[Atom, ...], known: Facts) -> Tree:
    """`tree` with a special case in front."""
    held, failed = known.with_held(parts), known.with_failed(parts)
    if held is None:
        return tree
    then = _restricted(tree, held)
    return then if failed is None else Choice(_open(parts, known), then, _pruned(tree, failed))


def _pruned(tree: Tree, known: Facts) -> Tree:
    """`tree` without the cases that cannot come any more."""
    if isinstance(tree, Leaf):
        return tree
    held, failed = known.with_held(tree.when), known.with_failed(tree.when)
    if held is None:
        return _pruned(tree.other, known)
    if failed is None:
        return _pruned(tree.then, held)
    return replace(tree, then=_pruned(tree.then, held), other=_pruned(tree.other, failed))


def _restricted(tree: Tree, known: Facts) -> Tree:
    """`tree` made for what is known: every function of it is made again."""
    if isinstance(tree, Leaf):
        return _bound(tree, known)
    held, failed = known.with_held(tree.when), known.with_failed(tree.when)
    if held is None:
        return _restricted(tree.other, known)
    if failed is None:
        return _restricted(tree.then, held)
    return Choice(_open(tree.when, known), _restricted(tree.then, held), _restricted(tree.other, failed))


def _bound(leaf: Leaf, known: Facts) -> Leaf:
    """The function of `leaf` with the sizes and contents that are known."""
    function = copied(leaf.function)
    sizes, divide = dict(leaf.sizes), dict(leaf.divide)
    left: list[Symbol] = []
    values: dict[Any, Any] = {}
    for dim, symbol in symbols_of(function).items():
        possible = known.sizes.get(dim)
        if possible is None or not len(possible):
            left.append(symbol)
        elif len(possible) == 1:
            sizes[dim] = int(possible[0])
            values[symbol.variable] = int64(sizes[dim] // symbol.divide)
        else:
            step = int(np.gcd.reduce(possible))
            step = step if step % symbol.divide == 0 else symbol.divide
            variable = symbol.variable
            if step != symbol.divide:
                variable = tirx.Var(f"{dim}_div{step}", "int64")
                values[symbol.variable] = variable * (step // symbol.divide)
                divide[dim] = step
            left.append(Symbol(variable, dim, step, int(possible[0]) // step, int(possible[-1]) // step))
    if values:
        # TVM wants every new variable to be defined: for now by one parameter more.
        sizes_of = sizes_parameter(left)
        function = relax.Function(
            [*function.params, *sizes_of], function.body, function.ret_ty, function.is_pure, function.attrs
        ).bind_symbolic_vars(values)
    tensors = [parameter for parameter in function.params if not is_sizes(parameter)]
    ty = function.ret_ty
    attributes = {**dict(function.attrs or {}), "kiln.dims": describe(left)}
    body = _with_contents(function.body, tensors, known.contents)
    parameters = [*tensors, *sizes_parameter(left)]
    function = relax.Function(parameters, body, ty, function.is_pure).with_attrs(attributes)
    return Leaf(_simplified(function), sizes, divide)


def _with_contents(body: Any, parameters: Sequence[Any], contents: Mapping[str, InputIs]) -> Any:
    """`body` with constants in the place of inputs whose content is known."""
    builder = relax.BlockBuilder()
    place: dict[Any, Any] = {}
    builder._begin_binding_block()
    for parameter in parameters:
        atom = contents.get(parameter.name)
        if atom is None:
            continue
        dtype, shape = str(parameter.ty.dtype), parameter.ty.shape
        if atom.tensor is None:
            fill = relax.const(int(atom.value == "ones"), dtype)
            place[parameter] = builder.emit(relax.op.full(shape, fill, dtype))
        else:
            place[parameter] = builder.emit(relax.const(atom.tensor, dtype))
    block = builder._end_block()
    if not place:
        return body
    renamed = Renamer(place).visit_expr(body)
    return relax.SeqExpr([block, *renamed.blocks], renamed.body)


def _simplified(function: Any) -> Any:
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    return finished(fold_uniform(finished(without_empties(module))))["main"]
