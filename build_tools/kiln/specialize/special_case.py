"""Special cases: functions specialised to a condition, and a dispatcher that selects one at run time.

IRModule → IRModule. The original function keeps its name, signature and callers and becomes the dispatcher.
It tests the conditions and calls private copies: a specialised copy, with sizes bound and contents folded, or
the general copy. Where the function is already a dispatcher, each of its existing cases is specialised too.
Conditions that always or never hold are not tested.
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
from kiln.frontend.symbols import int64
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
from kiln.specialize.dispatch import CASES, Branch, Leaf, Tree, read, write
from kiln.specialize.facts import ShapeFacts, facts_of
from kiln.specialize.fold import fold_uniform
from kiln.specialize.gain import gains
from kiln.specialize.symbols import (
    Renamer,
    Symbol,
    copied,
    describe,
    finished,
    is_sizes,
    sizes_parameter,
    symbols_of,
)

__all__ = ["AllOf", "Condition", "Equals", "InRange", "InputIs", "MultipleOf", "input_is"]
__all__ += ["special_case", "special_cases"]


def special_case(module: tvm.IRModule, condition: Condition, function: str = "main") -> tvm.IRModule:
    """Add a specialised function for `condition`, tested before all existing cases of `function`.

    `function` may be a private function of an earlier special case: the new test is then inserted where that
    function was called. Returns `module` itself if the condition can never hold. Raises KilnError for an
    unknown function, input or symbol, and for a tensor whose shape or type differs from the input's.
    """
    owner = _owner(module, function)
    case_atoms = _checked(module[owner], atoms(condition))
    old, facts = _cases(module, owner), facts_of(symbols_of(module[owner]))
    tree = read(module, owner)

    def inserted(node: Tree, known: ShapeFacts) -> Tree:
        if isinstance(node, Leaf):
            return _choice(node, case_atoms, known) if node.name == function else node
        held, failed = known.with_held(node.when), known.with_failed(node.when)
        then = node.then if held is None else inserted(node.then, held)
        other = node.other if failed is None else inserted(node.other, failed)
        return node if then is node.then and other is node.other else Branch(node.when, then, other)

    new_tree = _choice(tree, case_atoms, facts) if owner == function else inserted(tree, facts)
    return module if new_tree is tree else write(module, owner, new_tree, old)


def special_cases(
    module: tvm.IRModule,
    conditions: Sequence[Condition],
    function: str = "main",
    dropped: Callable[[int], None] | None = None,
) -> tvm.IRModule:
    """Add a specialised function for each condition; at run time the first condition that holds decides.

    `dropped`: if given, conditions on contents alone that would save neither an operator nor an operand get
    no function, and `dropped` is called with the index of each. Errors are those of `special_case`.
    """
    kernels = sorted(v.name_hint for v, f in module.functions_items() if isinstance(f, tirx.PrimFunc))
    if kernels:
        raise KilnError(
            f"special_cases: operator '{kernels[0]}' is imported as code, which is not specialised; leave "
            "the key out"
        )
    for condition in conditions:  # every condition is checked before a function is made
        _checked(module[_owner(module, function)], atoms(condition))
    facts, tree = facts_of(symbols_of(module[function])), read(module, function)

    def chain(index: int, known: ShapeFacts) -> Tree:
        if index == len(conditions):
            return tree
        case_atoms = _checked(module[function], atoms(conditions[index]))
        held, failed = known.with_held(case_atoms), known.with_failed(case_atoms)
        if held is None:
            return chain(index + 1, known)
        then = _restricted(tree, held)
        if dropped is not None and not _is_worthwhile(tree, then, _undecided(case_atoms, known)):
            dropped(index)
            return chain(index + 1, known)
        return (
            then if failed is None else Branch(_undecided(case_atoms, known), then, chain(index + 1, failed))
        )

    new_tree = chain(0, facts)
    return module if new_tree is tree else write(module, function, new_tree, _cases(module, function))


def _is_worthwhile(tree: Tree, then: Tree, case_atoms: tuple[Atom, ...]) -> bool:
    """Whether `then`, specialised to `case_atoms`, is better than `tree`: always with known sizes."""
    if any(not isinstance(atom, InputIs) for atom in case_atoms):
        return True
    if isinstance(tree, Leaf) and isinstance(then, Leaf):
        return gains(then.function, _simplified(copied(tree.function)))
    return True


def _cases(module: tvm.IRModule, function: str) -> set[str]:
    """The names of the private functions that dispatcher `function` calls; empty for other functions."""

    def names(node: Mapping[str, Any]) -> set[str]:
        return {node["leaf"]} if "leaf" in node else names(node["then"]) | names(node["else"])

    attributes = module[function].attrs or {}
    return names(json.loads(str(attributes[CASES]))) if CASES in attributes else set()


def _owner(module: tvm.IRModule, function: str) -> str:
    """The dispatcher that calls `function`, or `function` itself. Raises KilnError if it does not exist."""
    functions = {v.name_hint: f for v, f in module.functions_items() if isinstance(f, relax.Function)}
    if function not in functions:
        raise KilnError(f"special case: no function '{function}', known: {', '.join(sorted(functions))}")
    return next((name for name in functions if function in _cases(module, name)), function)


def _checked(function: Any, case_atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """Return `case_atoms`. Raises KilnError where a condition does not fit the function's parameters."""
    symbols = symbols_of(function)
    inputs = {p.name: p for p in function.params if not is_sizes(p)}
    for atom in case_atoms:
        if not isinstance(atom, InputIs):
            if atom.dim not in symbols:
                allowed = ", ".join(symbols) or "none"
                raise KilnError(f"special case: no symbolic dimension '{atom.dim}', known: {allowed}")
            if isinstance(atom, MultipleOf) and atom.factor < 1:
                raise KilnError(f"special case: {atom.dim}: multiple of {atom.factor}, at least 1 is allowed")
            continue
        if atom.input not in inputs:
            allowed = ", ".join(inputs) or "none"
            raise KilnError(f"special case: no input '{atom.input}', known: {allowed}")
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
    return case_atoms


def _undecided(case_atoms: tuple[Atom, ...], facts: ShapeFacts) -> tuple[Atom, ...]:
    """The conditions of `case_atoms` that are not known to hold."""
    return tuple(atom for atom in case_atoms if facts.state(atom) is not True)


def _choice(tree: Tree, case_atoms: tuple[Atom, ...], facts: ShapeFacts) -> Tree:
    """`tree` with a special case for `case_atoms` tested first; `tree` itself where they cannot hold."""
    held, failed = facts.with_held(case_atoms), facts.with_failed(case_atoms)
    if held is None:
        return tree
    then = _restricted(tree, held)
    return then if failed is None else Branch(_undecided(case_atoms, facts), then, _pruned(tree, failed))


def _pruned(tree: Tree, facts: ShapeFacts) -> Tree:
    """`tree` without the branches that the facts exclude."""
    if isinstance(tree, Leaf):
        return tree
    held, failed = facts.with_held(tree.when), facts.with_failed(tree.when)
    if held is None:
        return _pruned(tree.other, facts)
    if failed is None:
        return _pruned(tree.then, held)
    return replace(tree, then=_pruned(tree.then, held), other=_pruned(tree.other, failed))


def _restricted(tree: Tree, facts: ShapeFacts) -> Tree:
    """`tree` with every function specialised to the facts, without the branches that they exclude."""
    if isinstance(tree, Leaf):
        return _bound(tree, facts)
    held, failed = facts.with_held(tree.when), facts.with_failed(tree.when)
    if held is None:
        return _restricted(tree.other, facts)
    if failed is None:
        return _restricted(tree.then, held)
    return Branch(_undecided(tree.when, facts), _restricted(tree.then, held), _restricted(tree.other, failed))


def _bound(leaf: Leaf, facts: ShapeFacts) -> Leaf:
    """`leaf` with its function specialised to the known sizes and contents.

    Where several sizes remain possible, their greatest common divisor becomes the divisor of the dimension.
    """
    function = copied(leaf.function)
    sizes, divide = dict(leaf.sizes), dict(leaf.divide)
    left: list[Symbol] = []
    values: dict[Any, Any] = {}
    for dim, symbol in symbols_of(function).items():
        possible = facts.sizes.get(dim)
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
        # TVM requires a definition of every new variable: a temporary additional parameter provides it.
        sizes_of = sizes_parameter(left)
        function = relax.Function(
            [*function.params, *sizes_of], function.body, function.ret_ty, function.is_pure, function.attrs
        ).bind_symbolic_vars(values)
    tensors = [parameter for parameter in function.params if not is_sizes(parameter)]
    ty = function.ret_ty
    attributes = {**dict(function.attrs or {}), "kiln.dims": describe(left)}
    body = _with_contents(function.body, tensors, facts.contents)
    parameters = [*tensors, *sizes_parameter(left)]
    function = relax.Function(parameters, body, ty, function.is_pure).with_attrs(attributes)
    return Leaf(_simplified(function), sizes, divide)


def _with_contents(body: Any, parameters: Sequence[Any], contents: Mapping[str, InputIs]) -> Any:
    """`body` with each input of known content replaced by a constant or by `full`."""
    builder = relax.BlockBuilder()
    replacements: dict[Any, Any] = {}
    builder._begin_binding_block()
    for parameter in parameters:
        atom = contents.get(parameter.name)
        if atom is None:
            continue
        dtype, shape = str(parameter.ty.dtype), parameter.ty.shape
        if atom.tensor is None:
            fill = relax.const(int(atom.value == "ones"), dtype)
            replacements[parameter] = builder.emit(relax.op.full(shape, fill, dtype))
        else:
            replacements[parameter] = builder.emit(relax.const(atom.tensor, dtype))
    block = builder._end_block()
    if not replacements:
        return body
    renamed = Renamer(replacements).visit_expr(body)
    return relax.SeqExpr([block, *renamed.blocks], renamed.body)


def _simplified(function: Any) -> Any:
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    return finished(fold_uniform(finished(without_empties(module))))["main"]
