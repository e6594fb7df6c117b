"""Conjunctions of conditions: whatever is combined, a call runs the function that was made for it."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tvm
from kiln.arrays import Array
from kiln.lower.cases import cases_of
from kiln.specialize.conditions import atoms
from kiln.specialize.dispatch import Leaf, Tree, leaves, read
from kiln.specialize.special_case import (
    AllOf,
    Condition,
    Equals,
    InputIs,
    InRange,
    MultipleOf,
    input_is,
    special_case,
    special_cases,
)
from kiln.specialize.symbols import SIZES
from relaxed import virtual_machine
from tvm import relax, tirx

N, M = range(25), range(1, 5)


def product(divide: int = 1) -> tvm.IRModule:
    """main(x [n, m], mask [n, m]) = x * mask; n is a variable times `divide`."""
    n, m = tirx.Var("part", "int64"), tirx.Var("m", "int64")
    shape = [n * divide, m]
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    mask = relax.Var("mask", relax.TensorType(shape, "float32"))
    sizes = [relax.Var(SIZES, relax.ShapeType([n]))] if divide > 1 else []
    known = {
        "part": {"dim": "n", "divide": divide, "min": 0, "max": N[-1] // divide},
        "m": {"dim": "m", "divide": 1, "min": M[0], "max": M[-1]},
    }
    builder = relax.BlockBuilder()
    attributes = {"kiln.dims": json.dumps(known), "num_input": 2}
    with builder.function("main", [x, mask, *sizes], attrs=attributes):
        with builder.dataflow():
            result = builder.emit_output(relax.op.multiply(x, mask))
        builder.emit_func_output(result)
    return builder.get()


def holds(condition: Condition, sizes: Mapping[str, int], mask: str) -> bool:
    """Whether a call with these sizes and this content of the mask meets the condition."""
    return all(
        atom.value == mask if isinstance(atom, InputIs) else bool(atom.holds(np.array([sizes[atom.dim]]))[0])
        for atom in atoms(condition)
    )


def chosen(tree: Tree, sizes: Mapping[str, int], mask: str) -> Leaf:
    """The function that runs for a call."""
    while not isinstance(tree, Leaf):
        tree = tree.then if holds(AllOf(tree.when), sizes, mask) else tree.other
    return tree


def check_bound(leaf: Leaf, sizes: Mapping[str, int]) -> None:
    """A function that runs for `sizes` was made for them."""
    for dim, size in leaf.sizes.items():
        assert size == sizes[dim], leaf.name
    for entry in json.loads(str(leaf.function.attrs["kiln.dims"])).values():
        assert sizes[entry["dim"]] % entry["divide"] == 0, leaf.name
        assert entry["min"] <= sizes[entry["dim"]] // entry["divide"] <= entry["max"], leaf.name


def some_atom(rng: random.Random) -> Any:
    dim = rng.choice(["n", "n", "m"])
    first = rng.randrange(0, 14)
    return rng.choice(
        [
            Equals(dim, rng.choice([0, 2, 4, 8, 12, 40])),
            InRange(dim, first, first + rng.randrange(0, 12)),
            MultipleOf(dim, rng.choice([2, 3, 4, 8])),
            InputIs("mask", rng.choice(["zeros", "ones"])),
        ]
    )


@pytest.mark.parametrize("divide", [1, 4])
def test_any_conjunction_against_brute_force(divide: int) -> None:
    rng = random.Random(divide)
    calls = list(itertools.product(N[::divide], M, ["zeros", "ones", "any"]))
    for _ in range(25):
        conditions = [AllOf(tuple(some_atom(rng) for _ in range(rng.randrange(1, 5)))) for _ in range(2)]
        module = special_cases(product(divide), conditions)
        twice = special_case(module, conditions[-1])
        leaves(twice)
        for built in (module, twice):
            tree = read(built, "main")
            for n, m, mask in calls:
                sizes = {"n": n, "m": m}
                leaf = chosen(tree, sizes, mask)
                check_bound(leaf, sizes)
                expected = any(holds(condition, sizes, mask) for condition in conditions)
                general = isinstance(tree, Leaf) or leaf.name == "main_general"
                assert expected != general or isinstance(tree, Leaf), (conditions, sizes, mask)


def test_sizes_of_three_kinds_in_one_conjunction() -> None:
    three = AllOf((Equals("n", 8), InRange("n", 3, 9), MultipleOf("n", 4)))
    module = special_case(special_case(product(), three), Equals("n", 8))
    assert [special.name for special in leaves(module)] == ["n_8", ""]


def test_functions_with_equal_code_keep_their_own_constants() -> None:
    fixed = leaves(special_case(special_case(product(), Equals("n", 2)), Equals("m", 2), "main_n_2"))[0]
    masks = [np.full((2, 2), value, "float32") for value in (3, 5)]
    masks = [mask + np.arange(4, dtype="float32").reshape(2, 2) for mask in masks]
    module = special_cases(fixed.module, [input_is("mask", mask) for mask in masks])
    cases = cases_of(module)
    assert len(cases) == 3 and len({case.name for case in cases}) == 3
    machine = virtual_machine(module)
    x = np.array([[1, 2], [3, 4]], "float32")
    for mask in [*masks, masks[0] + 1]:
        given: list[Array] = [x, mask]
        got = machine["main"](*(tvm.runtime.tensor(item) for item in given)).numpy()
        np.testing.assert_array_equal(got, x * mask)
    for case, mask in zip(cases[1:], masks, strict=True):
        alone = virtual_machine(case.module)
        got = alone["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(mask)).numpy()
        np.testing.assert_array_equal(got, x * mask)
