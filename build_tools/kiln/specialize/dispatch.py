"""Dispatchers: Relax functions that test conditions and call one of several private functions.

A dispatcher keeps the name, parameters and result of the function that it replaces. Each private function is
named after its conditions and receives its constants as parameters, so that equal constants of several
functions become one constant of the dispatcher, and one tensor in the file (kiln.params.store).

Attribute kiln.cases of a dispatcher: JSON, {"when": […], "then": node, "else": node} or
{"leaf": name of the function, "sizes": {dimension: size}, "divide": {dimension: divisor}}.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, sym, tirx

from kiln.callbacks import post_order_visit, structural_map
from kiln.frontend.symbols import int64
from kiln.graph.bindings import Array, const, constant
from kiln.params import store
from kiln.specialize.conditions import (
    Atom,
    Equals,
    InputIs,
    MultipleOf,
    OnSize,
    from_json,
    input_is,
    label,
    to_json,
)
from kiln.specialize.symbols import copied, is_sizes, symbols_of

CASES = "kiln.cases"
CASE = "kiln.case"  # attribute of a private function: its own name, so that no two functions are equal
TEST = "kiln.test"  # attribute of a function that tests an input's content: the name of its dispatcher


@dataclass(frozen=True)
class Leaf:
    """A leaf of a decision tree: one function, with its constants in its body.

    sizes: by dimension, the size that the function is specialised to. divide: by dimension, the divisor d
    where the function's variable stands for size / d. name: of the private function; empty before `write`.
    """

    function: Any
    sizes: Mapping[str, int] = field(default_factory=dict)
    divide: Mapping[str, int] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True)
class Branch:
    """An inner node of a decision tree: `then` if all conditions of `when` hold, else `other`."""

    when: tuple[Atom, ...]
    then: Tree
    other: Tree


Tree = Leaf | Branch


@dataclass(frozen=True)
class Special:
    """One private function of a dispatcher, as a separate module whose only public function is `main`.

    The function serves the calls that meet all conditions of `when` and that no earlier function serves.
    """

    name: str
    when: tuple[Atom, ...]
    module: tvm.IRModule


def leaves(module: tvm.IRModule, function: str = "main") -> list[Special]:
    """The functions that dispatcher `function` calls, in the order of their tests, general functions last.

    If `function` is not a dispatcher, the list has one entry: `function`. Every entry has the parameters of
    `function` in the same order, including parameters that were folded into constants.
    """
    if CASES not in (module[function].attrs or {}) and function == "main":
        return [Special("", (), module)]
    other_functions = {
        variable: other
        for variable, other in module.functions_items()
        if variable.name_hint != function and not _is_case(module, function, variable.name_hint)
    }
    specials = []
    for when, leaf in _paths(read(module, function), ()):
        main = copied(leaf.function)
        main = main.with_attrs({"global_symbol": "main", "num_input": len(main.params)})
        separate = tvm.IRModule(other_functions)
        separate["main"] = main
        specials.append(Special(label(when), when, relax.transform.DeadCodeElimination(["main"])(separate)))
    return specials


def _is_case(module: tvm.IRModule, function: str, name: str) -> bool:
    attributes = module[function].attrs or {}
    return CASES in attributes and name in _names(json.loads(str(attributes[CASES])))


def _names(node: Mapping[str, Any]) -> set[str]:
    return {node["leaf"]} if "leaf" in node else _names(node["then"]) | _names(node["else"])


def _paths(tree: Tree, conditions: tuple[Atom, ...]) -> Iterator[tuple[tuple[Atom, ...], Leaf]]:
    if isinstance(tree, Leaf):
        yield tuple(dict.fromkeys(conditions)), tree
        return
    yield from _paths(tree.then, conditions + tree.when)
    yield from _paths(tree.other, conditions)


def read(module: tvm.IRModule, function: str) -> Tree:
    """The decision tree of `function`: inverse of `write`. A function that is not a dispatcher is a leaf."""
    chooser = module[function]
    attributes = chooser.attrs or {}
    if CASES not in attributes:
        return Leaf(chooser, divide={s.dim: s.divide for s in symbols_of(chooser).values()})
    calls: dict[str, Any] = {}
    tensors: dict[str, Array] = {}
    values = relax.analysis.get_var2val(chooser)

    def visit(expr: relax.Expr) -> None:
        if not isinstance(expr, relax.Call):
            return
        if not isinstance(expr.op, tvm.ir.GlobalVar):
            return
        calls[expr.op.name_hint] = expr
        if TEST in (module[expr.op].attrs or {}) and len(expr.args) > 1:
            operand = expr.args[1]
            value = constant(values.get(operand, operand) if isinstance(operand, relax.Var) else operand)
            if value is not None:
                tensors[input_is("", value).value] = value

    post_order_visit(chooser, visit)

    def node(entry: Mapping[str, Any]) -> Tree:
        if "leaf" not in entry:
            return Branch(from_json(entry["when"], tensors), node(entry["then"]), node(entry["else"]))
        name = entry["leaf"]
        case = module[name]
        count = int(case.attrs["kiln.own"])
        bound = {
            parameter: values.get(argument, argument) if isinstance(argument, relax.Var) else argument
            for parameter, argument in zip(case.params[count:], calls[name].args[count:], strict=True)
        }
        function = case.bind_params(bound).without_attr("kiln.own").without_attr(CASE)
        return Leaf(function, entry["sizes"], entry["divide"], name)

    return node(json.loads(str(attributes[CASES])))


def write(module: tvm.IRModule, function: str, tree: Tree, removed: set[str]) -> tvm.IRModule:
    """Make `function` a dispatcher over `tree`, and return the new module.

    `removed`: names of the private functions of an earlier dispatcher, which are removed.
    """
    original = module[function]
    other_functions = {
        v: f
        for v, f in module.functions_items()
        if v.name_hint not in removed | {function} and str((f.attrs or {}).get(TEST)) != function
    }
    writer = _DispatchWriter(tvm.IRModule(other_functions), function, original)
    dispatcher = writer.chooser(tree)
    result = writer.builder.get()
    attributes = {key: value for key, value in dict(original.attrs or {}).items() if key != CASES}
    dispatcher = dispatcher.with_attrs({**attributes, CASES: json.dumps(writer.description)})
    variable = next(v for v, _ in module.functions_items() if v.name_hint == function)
    result = tvm.IRModule({**dict(result.functions), variable: dispatcher}, attrs=module.attrs)
    result = relax.transform.Normalize()(result)
    relax.analysis.well_formed(result)
    return result


class _DispatchWriter:
    """Adds the private functions to a module, and builds the body of their dispatcher."""

    def __init__(self, module: tvm.IRModule, name: str, original: Any) -> None:
        self.builder = relax.BlockBuilder(module)
        self.name = name
        self.original = copied(original)
        self.symbols = symbols_of(self.original)
        self.description: dict[str, Any] = {}
        self._used_names = {variable.name_hint for variable in module.get_global_vars()}

    def chooser(self, tree: Tree) -> Any:
        """The dispatcher over `tree`; sets `description` to the JSON description of the tree."""
        original = self.original
        body, self.description = self._branch(tree, ())
        return relax.Function(original.params, body, original.ret_ty, original.is_pure)

    def _branch(self, tree: Tree, conditions: tuple[Atom, ...]) -> tuple[Any, dict[str, Any]]:
        """The Relax expression for one node of the tree, and the node's JSON description."""
        builder = self.builder
        builder._begin_binding_block()
        if isinstance(tree, Leaf):
            result, description = self._call(tree, conditions)
        else:
            condition = self._condition(tree.when)
            then, then_description = self._branch(tree.then, conditions + tree.when)
            other, other_description = self._branch(tree.other, conditions)
            result = builder.emit(relax.If(condition, then, other))
            description = {"when": to_json(tree.when), "then": then_description, "else": other_description}
        block = builder._end_block()
        return builder.normalize(relax.SeqExpr([block], result)), description

    def _condition(self, parts: tuple[Atom, ...]) -> Any:
        """A boolean: all of `parts` hold. Contents are tested only if the conditions on sizes hold."""
        test: Any = None
        for atom in parts:
            if not isinstance(atom, InputIs):
                size_test = self._size_test(atom)
                test = size_test if test is None else tirx.all(test, size_test)
        contents = [atom for atom in parts if isinstance(atom, InputIs)]
        if not contents:
            return relax.prim_value(test)
        if test is None:
            return self._content_tests(contents)
        builder = self.builder
        builder._begin_binding_block()
        content_test = self._content_tests(contents)
        then = builder.normalize(relax.SeqExpr([builder._end_block()], content_test))
        builder._begin_binding_block()
        false = builder.emit(relax.const(False, "bool"))
        other = builder.normalize(relax.SeqExpr([builder._end_block()], false))
        return builder.emit(relax.If(relax.prim_value(test), then, other))

    def _size_test(self, atom: OnSize) -> Any:
        size = self.symbols[atom.dim].extent
        if isinstance(atom, Equals):
            return size == int64(atom.value)
        if isinstance(atom, MultipleOf):
            return tirx.floormod(size, int64(atom.factor)) == int64(0)
        return tirx.all(size >= int64(atom.least), size <= int64(atom.greatest))

    def _content_tests(self, atoms: list[InputIs]) -> Any:
        test = self._content_test(atoms[0])
        for atom in atoms[1:]:
            test = self.builder.emit(relax.op.logical_and(test, self._content_test(atom)))
        return test

    def _content_test(self, atom: InputIs) -> Any:
        """Emit a test of an input's content; its result is a boolean tensor without axes.

        The test is a private function, as TVM's VM crashes on tensors allocated in a nested branch.
        """
        tested = next(p for p in self.original.params if p.name == atom.input)
        dtype = str(tested.ty.dtype)
        axes = enumerate(tested.ty.shape)
        shape = [n if isinstance(n, tirx.IntImm) else tirx.Var(f"n{axis}", "int64") for axis, n in axes]
        parameters = [relax.Var(atom.input, relax.TensorType(shape, dtype))]
        expected = [] if atom.tensor is None else [relax.const(atom.tensor, dtype)]
        parameters += [relax.Var("value", value.ty) for value in expected]
        test_builder = relax.BlockBuilder()
        with test_builder.function("test", parameters, attrs={TEST: self.name}):
            value = parameters[1] if expected else relax.const(1 if atom.value == "ones" else 0, dtype)
            equal = test_builder.emit(relax.op.equal(parameters[0], value))
            least = test_builder.emit(relax.op.min(test_builder.emit(relax.op.astype(equal, "int32"))))
            test_builder.emit_func_output(test_builder.emit(relax.op.equal(least, relax.const(1, "int32"))))
        name = self._unused_name(f"{self.name}_is_{atom.label}")
        test = self.builder.add_func(test_builder.get()["test"].without_attr("global_symbol"), name)
        return self.builder.emit(relax.Call(test, [tested, *expected]))

    def _call(self, leaf: Leaf, conditions: tuple[Atom, ...]) -> tuple[Any, dict[str, Any]]:
        """Emit the call of a leaf's function, and return its result and the leaf's JSON description.

        Arguments are cast to the leaf's shapes, and the result to the shape that the dispatcher returns.
        """
        emit = self.builder.emit
        name = self._unused_name(leaf.name or f"{self.name}_{label(conditions) or 'general'}")
        function, values = _with_constant_parameters(copied(leaf.function))
        count = len(function.params) - len(values)
        function = function.without_attr("global_symbol") if "global_symbol" in function.attrs else function
        # For a function equal to an existing one, BlockBuilder returns the existing variable. Two cases may
        # have equal code with different constants, and `read` finds each call by its function's name.
        variable = self.builder.add_func(function.with_attrs({"kiln.own": count, CASE: name}), name)
        replacements = {}  # the dispatcher's variables → expressions in terms of the leaf's sizes
        divided = []
        for dim, symbol in self.symbols.items():
            if dim in leaf.sizes:
                replacements[symbol.variable] = int64(leaf.sizes[dim] // symbol.divide)
                continue
            divide = leaf.divide.get(dim, symbol.divide)
            if divide != symbol.divide:
                quotient = symbol.variable // (divide // symbol.divide)
                replacements[symbol.variable] = quotient * (divide // symbol.divide)
                divided.append(quotient)
            elif divide != 1 or symbol.counted:
                divided.append(symbol.variable)
        arguments = []
        for parameter in self.original.params:
            if is_sizes(parameter):
                continue
            ty = _substituted(parameter.ty, replacements)
            if tvm_ffi.structural_equal(ty, parameter.ty):
                arguments.append(parameter)
            else:
                arguments.append(self.builder.match_cast(parameter, ty))
        if divided:
            arguments.append(relax.ShapeExpr(divided))
        result = emit(relax.Call(variable, [*arguments, *values]))
        if not tvm_ffi.structural_equal(result.ty, self.original.ret_ty):
            result = self.builder.match_cast(result, self.original.ret_ty)
        return result, {"leaf": name, "sizes": dict(leaf.sizes), "divide": dict(leaf.divide)}

    def _unused_name(self, name: str) -> str:
        candidate, number = name, 1
        while candidate in self._used_names:
            number += 1
            candidate = f"{name}_{number}"
        self._used_names.add(candidate)
        return candidate


def _substituted(ty: Any, replacements: Mapping[Any, Any]) -> Any:
    """The tensor type `ty` with its shape's variables replaced as `replacements` maps them."""
    rules = [(tvm.ir.Var, lambda variable: replacements.get(variable, variable))]
    analyzer = sym.Analyzer()  # folds products of constants, which the VM does not compute
    shape = [analyzer.simplify(structural_map(size, rules)) for size in ty.shape]
    return relax.TensorType(shape, str(ty.dtype))


def _with_constant_parameters(function: Any) -> tuple[Any, list[Any]]:
    """The function with its constants turned into trailing parameters, and the constants in order.

    Every constant keeps its type: relax.const alone converts int64 to int32 and float64 to float32.
    """
    module, tensors = store.split(tvm.IRModule({"main": function}))
    values = [const(value, str(value.dtype)) for value in tensors.values()]
    return module["main"].without_attr("num_input"), values
