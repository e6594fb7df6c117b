"""Products of two quantised activations: exact sums, on every kind of instruction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.device.check import host_cpu
from tvm import relax

from .lowered import Array, Compiled, const, module, runnable

op = relax.op
# rows, columns, depth: single ones, odd ones, whole tiles and vectors and one more
SIZES = [(1, 33, 5), (3, 1, 7), (17, 19, 17), (13, 64, 16), (29, 69, 33), (5, 2, 3)]
ORDERS = ("abk,akc->abc", "abk,ack->abc", "bak,cak->abc", "abk,cak->bac", "akc,abk->abc", "akb,akc->bac")


def _real(x: Any, zero: int, dtype: str) -> Any:
    return op.dequantize(x, const(1.0), const(zero, dtype), out_dtype="float32")


def _products(subscripts: str, dtypes: tuple[str, str], zeros: tuple[int, int]) -> tuple[Any, list[Array]]:
    """A module with a product for each of SIZES, and its inputs, the extreme levels among them."""
    rng = np.random.default_rng(5)
    operands = subscripts.split("->")[0].split(",")
    inputs = []
    for rows, columns, depth in SIZES:
        sizes = {"a": 3, "b": rows, "c": columns, "k": depth}
        for letters, dtype in zip(operands, dtypes, strict=True):
            limits = np.iinfo(dtype)
            x = rng.integers(limits.min, limits.max + 1, [sizes[letter] for letter in letters])
            x[0] = rng.choice([limits.min, limits.max])
            inputs.append(x.astype(dtype))

    def body(*variables: Any) -> list[Any]:
        reals = [_real(x, zeros[n % 2], dtypes[n % 2]) for n, x in enumerate(variables)]
        return [op.einsum(relax.Tuple(reals[n : n + 2]), subscripts) for n in range(0, len(reals), 2)]

    return module([(x.shape, str(x.dtype)) for x in inputs], body), inputs


SIGNED, MIXED = ("int8", "int8"), ("uint8", "uint8")
CASES = [
    ("host", None, ORDERS[1], SIGNED, (3, -128)),
    ("x86_64", None, ORDERS[0], SIGNED, (3, -128)),
    ("x86_64_v2", None, ORDERS[1], MIXED, (131, 0)),
]
HEAVY = [
    (target, variant, order, dtypes, zeros)
    for target, variant in (("x86_64", None), ("x86_64", "v4"), ("x86_64", "v4_vnni"), ("x86_64", "v4_amx"))
    for order in ORDERS
    for dtypes, zeros in ((SIGNED, (0, 5)), (MIXED, (3, 255)), (("uint8", "int8"), (7, 0)))
]


@pytest.mark.parametrize(
    ("target", "variant", "subscripts", "dtypes", "zeros"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.heavy) for case in HEAVY)],
)
def test_products(
    target: str, variant: str | None, subscripts: str, dtypes: tuple[str, str], zeros: tuple[int, int],
    tmp_path: Path,
) -> None:  # fmt: skip
    """Compare the products with numpy's: scales of 1 keep the float32 results exact."""
    mod, inputs = _products(subscripts, dtypes, zeros)
    compiled = Compiled(mod, runnable(target, variant), tmp_path, variant=variant).load()
    assert compiled.families.count("contraction") >= len(SIZES) - 2
    for got, left, right in zip(compiled.run(inputs), inputs[::2], inputs[1::2], strict=True):
        wide = left.astype("int64") - zeros[0], right.astype("int64") - zeros[1]
        np.testing.assert_array_equal(got, np.einsum(subscripts, *wide).astype("float32"))


def test_code_beyond_this_machines_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A variant that this machine lacks skips the test, and is never loaded: it would end the process."""
    mod = module([((2, 2), "float32")], op.nn.relu)
    compiled = Compiled(mod, runnable("x86_64").for_variant("v4_amx"), tmp_path)
    monkeypatch.setattr(host_cpu, "read_flags", frozenset)
    with pytest.raises(pytest.skip.Exception, match="x86_64, variant v4_amx: this CPU lacks abm, amx_int8, "):
        runnable("x86_64", "v4_amx")
    with pytest.raises(AssertionError, match="x86_64: this CPU lacks abm, amx_int8, "):
        compiled.load()
