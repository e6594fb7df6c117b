"""Special cases: the right function runs for every size and content, and the signature stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from kiln.errors import KilnError
from kiln.params import store
from kiln.specialize.dispatch import leaves
from kiln.specialize.special_case import (
    AllOf,
    Equals,
    InputIs,
    InRange,
    MultipleOf,
    input_is,
    special_case,
    special_cases,
)
from relaxed import virtual_machine
from tvm import relax, tirx

WEIGHT = np.arange(12, dtype="float32").reshape(3, 4)


def small(dims: dict[str, tuple[int, int]] | None = None) -> tvm.IRModule:
    """main(x [n, m, 3], mask [n, m]) = (x @ WEIGHT) * mask + arange(4), and n."""
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    x = relax.Var("x", relax.TensorType([n, m, 3], "float32"))
    mask = relax.Var("mask", relax.TensorType([n, m], "float32"))
    builder = relax.BlockBuilder()
    ranges = {"n": (1, 16), "m": (1, 8)} if dims is None else dims
    known = {d: {"dim": d, "divide": 1, "min": a, "max": b} for d, (a, b) in ranges.items()}
    with builder.function("main", [x, mask], attrs={"kiln.dims": json.dumps(known), "num_input": 2}):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, relax.const(WEIGHT)))
            wide = builder.emit(relax.op.expand_dims(mask, [2]))
            masked = builder.emit(relax.op.multiply(product, wide))
            steps = builder.emit(relax.op.arange(0, 4, 1, "float32"))
            zeros = builder.emit(relax.op.zeros(relax.ShapeExpr([n, m, 4]), "float32"))
            result = builder.emit_output(relax.op.add(builder.emit(relax.op.add(masked, steps)), zeros))
        builder.emit_func_output(result)
    return builder.get()


def run(module: tvm.IRModule, x: Any, mask: Any) -> Any:
    machine = virtual_machine(module)
    return machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(mask)).numpy()


def check(module: tvm.IRModule, sizes: list[tuple[int, int]], masks: list[str]) -> None:
    machine = virtual_machine(module)
    rng = np.random.default_rng(0)
    for n, m in sizes:
        for kind in masks:
            x = rng.random((n, m, 3), "float32")
            mask = {"zeros": np.zeros, "ones": np.ones}.get(kind, lambda s: rng.random(s))((n, m))
            mask = mask.astype("float32")
            got = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(mask)).numpy()
            want = (x @ WEIGHT) * mask[..., None] + np.arange(4)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def names(module: tvm.IRModule) -> list[str]:
    return sorted(v.name_hint for v, f in module.functions_items() if "kiln.test" not in (f.attrs or {}))


@pytest.mark.parametrize(
    "condition",
    [
        Equals("n", 8),
        InRange("n", 3, 9),
        MultipleOf("n", 4),
        AllOf((Equals("n", 8), MultipleOf("m", 2))),
        InputIs("mask", "ones"),
        InputIs("mask", "zeros"),
        AllOf((InRange("m", 2, 3), InputIs("mask", "ones"))),
    ],
    ids=["equals", "range", "multiple", "dims", "ones", "zeros", "both"],
)
@pytest.mark.slow
def test_every_condition_keeps_the_signature_and_the_result(condition: Any) -> None:
    before = small()
    after = special_case(before, condition)
    assert tvm_ffi.structural_equal(after["main"].ret_ty, before["main"].ret_ty, map_free_vars=True)
    assert [p.name for p in after["main"].params] == ["x", "mask"]
    assert len(names(after)) == 3 and "main_general" in names(after)
    check(after, [(8, 2), (7, 3), (1, 1), (16, 8)], ["any", "ones", "zeros"])


def test_special_function_has_the_size_and_the_name() -> None:
    after = special_case(small(), Equals("n", 8))
    assert names(after) == ["main", "main_general", "main_n_8"]
    special = after["main_n_8"]
    assert [int(s) if isinstance(s, tirx.IntImm) else s.name for s in special.params[0].ty.shape] == [
        8,
        "m",
        3,
    ]
    assert "global_symbol" not in special.attrs
    assert "n" not in json.loads(str(special.attrs["kiln.dims"]))


def test_what_a_mask_of_ones_multiplies_is_not_computed() -> None:
    special, general = leaves(special_case(small(), InputIs("mask", "ones")))
    assert "multiply" in general.module.script() and "multiply" not in special.module.script()
    assert [p.name for p in special.module["main"].params] == ["x", "mask"]


def test_given_tensor_is_tested_and_folded() -> None:
    module = special_case(special_case(small(), Equals("n", 2)), Equals("m", 2))
    first = leaves(module)[0].module
    mask = np.array([[1, 2], [3, 4]], "float32")
    after = special_case(first, input_is("mask", mask))
    x = np.ones((2, 2, 3), "float32")
    for given in (mask, mask + 1):
        want = (x @ WEIGHT) * given[..., None] + np.arange(4)
        np.testing.assert_allclose(run(after, x, given), want, rtol=1e-5)
    again = leaves(after)
    assert again[0].when[0] == input_is("mask", mask)
    np.testing.assert_array_equal(again[0].when[0].tensor, mask)


def test_cases_compose_and_nest() -> None:
    twice = special_case(special_case(small(), Equals("n", 8)), InputIs("mask", "ones"))
    assert [s.name for s in leaves(twice)] == ["mask_ones_and_n_8", "mask_ones", "n_8", ""]
    check(twice, [(8, 2), (7, 3)], ["any", "ones"])
    nested = special_case(special_case(small(), Equals("n", 8)), Equals("m", 2), function="main_n_8")
    assert [s.name for s in leaves(nested)] == ["n_8_and_m_2", "n_8", ""]
    check(nested, [(8, 2), (8, 3), (7, 2)], ["any"])
    chain = special_cases(small(), [InputIs("mask", "ones"), InputIs("mask", "zeros")])
    assert [s.name for s in leaves(chain)] == ["mask_ones", "mask_zeros", ""]
    check(chain, [(3, 2)], ["any", "ones", "zeros"])


def test_leaves_run_alone_after_a_round_through_files(tmp_path: Path) -> None:
    module = special_case(special_case(small(), Equals("n", 8)), InputIs("mask", "ones"))
    store.save(module, tmp_path)
    loaded = leaves(store.load(tmp_path))
    assert [s.name for s in loaded] == ["mask_ones_and_n_8", "mask_ones", "n_8", ""]
    x, ones = np.ones((8, 2, 3), "float32"), np.ones((8, 2), "float32")
    for special in loaded:
        want = x @ WEIGHT + np.arange(4)
        np.testing.assert_allclose(run(special.module, x, ones), want, rtol=1e-5)


def test_parameters_are_stored_once_and_made_tensors_never(tmp_path: Path) -> None:
    module = special_case(special_case(small(), Equals("n", 8)), InputIs("mask", "ones"))
    _, tensors = store.split(module)
    assert [tensor.shape for tensor in tensors.values()] == [WEIGHT.shape]
    store.save(module, tmp_path)
    assert len((tmp_path / "params.safetensors").read_bytes()) < 2 * WEIGHT.nbytes + 128
    assert "arange" in module.script() and "zeros" in module.script()


@pytest.mark.parametrize("condition", [Equals("n", 17), InRange("n", 20, 30), MultipleOf("n", 17)])
def test_what_cannot_hold_changes_nothing(condition: Any) -> None:
    before = small()
    assert special_case(before, condition) is before


def test_what_is_known_is_not_tested_again() -> None:
    always = special_case(small(), InRange("n", 1, 16))
    assert "if " not in always.script() and len(leaves(always)) == 1
    check(always, [(3, 2)], ["any"])
    # n = 8 was taken before: in the multiples of 8 there is nothing but 16 left.
    module = special_case(special_case(small(), MultipleOf("n", 8)), Equals("n", 8))
    shapes = [s.module["main"].params[0].ty.shape[0] for s in leaves(module)]
    assert int(shapes[0]) == 8 and [s.name for s in leaves(module)] == ["n_8", "n_multiple_of_8", ""]
    within = special_case(special_case(small(), InRange("n", 1, 4)), Equals("n", 8))
    assert [s.name for s in leaves(within)] == ["n_8", "n_1_to_4", ""]


def test_multiple_gets_a_variable_for_its_part() -> None:
    special = leaves(special_case(small(), MultipleOf("n", 4)))[0].module["main"]
    assert json.loads(str(special.attrs["kiln.dims"]))["n_div4"] == {
        "dim": "n",
        "divide": 4,
        "min": 1,
        "max": 4,
    }
    assert isinstance(special.params[-1].ty, relax.ShapeType)


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        (Equals("k", 1), "no symbolic dimension 'k', known: n, m"),
        (InputIs("mas", "ones"), "no input 'mas', known: x, mask"),
        (InputIs("mask", "twos"), "'twos', allowed: zeros, ones, a tensor"),
        (MultipleOf("n", 0), "multiple of 0"),
        (
            input_is("mask", np.ones((2, 2), "float32")),
            "tensor of float32 [2, 2], but the input is float32 [n, m]",
        ),
        (input_is("mask", np.ones((2, 2), "int32")), "tensor of int32 [2, 2]"),
    ],
)
def test_bad_conditions_are_refused(condition: Any, says: str) -> None:
    with pytest.raises(KilnError) as caught:
        special_case(small(), condition)
    assert says in str(caught.value)
    with pytest.raises(KilnError, match="no function 'other'"):
        special_case(small(), Equals("n", 1), function="other")
