"""Attention in one kernel: its values in all forms, types and sizes, and its machine code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from kiln.config.target import Cuda
from kiln.graph.bindings import constant, operator
from kiln.kernels.gpu import dlight, tf32
from kiln.kernels.gpu.attention import WIDEST, applies
from kiln.kernels.gpu.attention_tile import tile_of
from kiln.kernels.gpu.block_tile import SHARED_BYTES
from kiln.kernels.gpu.half import stored_as
from kiln.lower.pipeline import fused
from kiln.opinfo import attach
from tvm import relax, tirx

from .launched import Kernels, evaluate

Array = npt.NDArray[Any]
MOST = 150  # of a dynamic size
SCALE = np.float32(0.3)
F = "float32"
# Precision → the type of tensors in memory, architectures, and the unit of rounding of the operands.
PRECISIONS = {
    "fp16": ("float16", ["sm_75", "sm_80", "sm_90"], 2.0**-11),
    "bf16": ("bfloat16", ["sm_80", "sm_90"], 2.0**-8),
    "tf32": (F, ["sm_80", "sm_90"], 2.0**-11),
    "fp32": (F, ["sm_75", "sm_80", "sm_90"], 2.0**-24),
}


@dataclass(frozen=True)
class Case:
    """Attention of q, k and v with these sizes; one that is a text is dynamic, `sizes` are its values.

    `forms`: axes of both products; b and h stand for `lead`, q and k for rows, d and e for depth and columns.
    `mask`: axes of an added mask, 1 for an axis of one element; `causal`: it is a constant that hides keys.
    `guarded`: rows that are NaN become zeros. `narrow`: q, k and v are stored in the type of the products.
    """

    lead: Sequence[int]
    queries: int | str
    keys: int | str
    depth: int
    columns: int
    forms: tuple[str, str] = ("bhqd,bhkd->bhqk", "bhqk,bhke->bhqe")
    mask: str = ""
    causal: bool = False
    guarded: bool = False
    narrow: bool = True
    sizes: Sequence[dict[str, int]] = field(default_factory=lambda: [{}])

    def shape(self, axes: str) -> list[int | str]:
        """The shape of a tensor with these axes."""
        heads = dict(zip("bh"[-len(self.lead) :], self.lead, strict=True))
        rows = {"q": self.queries, "k": self.keys, "d": self.depth, "e": self.columns, "1": 1}
        return [{**heads, **rows}[axis] for axis in axes]

    @property
    def operands(self) -> list[str]:
        """The axes of q, k and v."""
        return [*self.forms[0].split("->")[0].split(","), self.forms[1].split("->")[0].split(",")[1]]


_FLAT = ("hqd,hkd->hqk", "hqk,hke->hqe")
_HEADS_INSIDE = ("bqhd,bkhd->bhqk", "bhqk,bkhe->bqhe")
CASES = {
    "odd": Case([2, 3], 37, 50, 20, 24, mask="qk"),
    "several_steps": Case([3], 70, 150, 64, 32, _FLAT),
    "causal": Case([1, 2], 100, 130, 32, 16, mask="11qk", causal=True),
    "heads_inside": Case([2, 3], 33, 33, 16, 16, _HEADS_INSIDE),
    "keys_along_rows": Case([2, 2], 16, 24, 16, 48, ("bhqd,bhdk->bhqk", "bhqk,bhke->bhqe")),
    "other_types": Case([2], 16, 24, 8, 48, _FLAT, narrow=False),
    "guarded": Case([1, 2], 20, 40, 16, 16, mask="11qk", guarded=True),
    "dynamic": Case(
        [2, 2], "q", "k", 40, 40, mask="b11k", sizes=[{"q": 9, "k": 8}, {"q": 20, "k": 149}]
    ),
    "dynamic_heads_inside": Case([1, 3], "q", "q", 24, 24, _HEADS_INSIDE, sizes=[{"q": 8}, {"q": 77}]),
    "wide": Case([1], 18, 33, WIDEST, WIDEST, _FLAT),
}  # fmt: skip


def _hidden(case: Case) -> Array:
    assert isinstance(case.queries, int) and isinstance(case.keys, int)
    seen = np.tri(case.queries, case.keys, case.keys - case.queries, dtype=bool)
    shape = [int(size) for size in case.shape(case.mask)]
    return np.where(seen, 0, -np.inf).astype(np.float32).reshape(shape)


def _module(case: Case) -> tvm.IRModule:
    variables = {name: tirx.Var(name, "int64") for name in case.sizes[0]}

    def input_of(name: str, axes: str) -> Any:
        shape = [variables[n] if isinstance(n, str) else n for n in case.shape(axes)]
        return relax.Var(name, relax.TensorType(shape, F))

    inputs = [input_of(name, axes) for name, axes in zip(("q_", "k_", "v_"), case.operands, strict=True)]
    if case.mask and not case.causal:
        inputs.append(input_of("mask", case.mask))
    dims = {name: {"dim": name, "divide": 1, "min": 1, "max": MOST} for name in variables}
    builder = relax.BlockBuilder()
    with builder.function("main", inputs, attrs={"num_input": len(inputs), "kiln.dims": json.dumps(dims)}):
        with builder.dataflow():
            scores = builder.emit(relax.op.einsum(inputs[:2], case.forms[0]))
            scores = builder.emit(relax.op.multiply(scores, relax.const(SCALE)))
            for mask in [relax.const(_hidden(case))] if case.causal else inputs[3:]:
                scores = builder.emit(relax.op.add(scores, mask))
            shares = builder.emit(relax.op.nn.softmax(scores, -1))
            if case.guarded:
                nothing = builder.emit(relax.op.isnan(shares))
                shares = builder.emit(relax.op.where(nothing, relax.const(np.float32(0)), shares))
            result = builder.emit_output(relax.op.einsum([shares, inputs[2]], case.forms[1]))
        builder.emit_func_output(result)
    return builder.get()


def _function(case: Case, precision: str) -> tuple[tirx.PrimFunc, list[Any]]:
    """The function that attention became, with tensors in a precision, and its arguments.

    An argument is the name of an input, or the value of a constant.
    """
    mod, params = fused(_module(case))
    calls = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    (call,) = (value for value in calls if operator(value) == "relax.call_tir")
    func, dtype = mod[call.args[0]], PRECISIONS[precision][0]
    if precision == "tf32":
        func = tf32.rounded(func)
    elif dtype != F:
        narrow = ("q_", "k_", "v_") if case.narrow else ()
        dtypes = [dtype if getattr(item, "name", "") in narrow else F for item in call.args[1].fields]
        func = stored_as(func, [*dtypes, dtype], dtype)
    tensors = [param for param in func.params if tirx.is_buffer_var(param)]
    bare = tirx.PrimFunc(tensors, func.body, None, attrs=func.attrs).without_attr(attach.ATTRIBUTE)
    assert applies(bare) is not None
    arguments = [
        params.get(item.name, item.name) if isinstance(item, relax.Var) else constant(item)
        for item in call.args[1].fields
    ]
    return bare, arguments


# The gate has these cases in one precision: compiling the stand-ins takes most of the time.
GATE = ("odd", "causal", "guarded", "dynamic")
HEAVY = [("fp16", tuple(name for name in CASES if name not in GATE))]
HEAVY += [(precision, tuple(CASES)) for precision in ("fp32", "bf16", "tf32")]


@pytest.fixture(
    scope="module",
    params=[("fp16", GATE), *(pytest.param(one, marks=pytest.mark.heavy) for one in HEAVY)],
    ids=lambda one: f"{one[0]}-{len(one[1])}",
)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A precision, the kernels of some cases in it, and the arguments of each."""
    precision, names = request.param
    target = Cuda(archs=PRECISIONS[precision][1], ptx=False)
    lowered, arguments = {}, {}
    for name in names:
        func, arguments[name] = _function(CASES[name], precision)
        lowered[name] = dlight.lower(
            func, dlight.tvm_target(target), lambda size: evaluate(size, {"q": MOST, "k": MOST})
        )
    return precision, Kernels(lowered, target, tmp_path_factory.mktemp("attention")), arguments


def _wanted(case: Case, q: Array, k: Array, v: Array, masks: list[Array]) -> Array:
    scores = np.einsum(case.forms[0], q.astype(F), k.astype(F)) * SCALE
    for mask in masks:
        scores = scores + mask.astype(F)
    with np.errstate(invalid="ignore"):
        power = np.exp(scores - scores.max(-1, keepdims=True))
        shares = power / power.sum(-1, keepdims=True)
    if case.guarded:
        shares = np.nan_to_num(shares)
    result: Array = np.einsum(case.forms[1], shares, v.astype(F))
    return result


def test_values(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, built, arguments = kernels
    for name in arguments:
        assert (len(built.launches[name].launches), built.launches[name].scratch) == (1, [])
        for order, sizes in enumerate(CASES[name].sizes):
            monkeypatch.setenv("KILN_CUDA_REVERSED", str(order % 2))
            _check(kernels, name, sizes)


def _check(kernels: Any, name: str, sizes: dict[str, int]) -> None:
    """Compare one run of a case with NumPy."""
    precision, built, arguments = kernels
    case, (dtype, _, unit), random = CASES[name], PRECISIONS[precision], np.random.default_rng(3)

    def drawn(axes: str, kind: str) -> Array:
        shape = [sizes[n] if isinstance(n, str) else n for n in case.shape(axes)]
        return np.asarray(random.standard_normal(shape, np.float32)).astype(np.dtype(kind))

    q, k, v = (drawn(axes, dtype if case.narrow else F) for axes in case.operands)
    mask = _hidden(case) if case.causal else drawn(case.mask, F)
    if case.guarded:
        mask[..., 3, :] = -np.inf
    want = _wanted(case, q, k, v, [mask] if case.mask else [])
    inputs = {"q_": q, "k_": k, "v_": v, "mask": mask}
    given = [inputs[item] if isinstance(item, str) else item for item in arguments[name]]
    got = built.run(name, given, want.shape, **sizes).astype(F)
    bound = max((8 if case.narrow and precision != "tf32" else 40) * unit, 1e-5)
    np.testing.assert_allclose(got, want, rtol=bound, atol=bound, err_msg=name)


def test_rows_are_copied_16_bytes_at_once(kernels: Any) -> None:
    precision, built, arguments = kernels
    for name in arguments:
        copies = built.text(f"{name}_0").count("kiln_copy_if<16>(")
        one_by_one = {"other_types": 3, "keys_along_rows": 1, "odd": 2}.get(name, 0)
        if precision in ("fp32", "tf32") and name != "keys_along_rows":
            one_by_one = 0
        assert copies >= 3 - one_by_one, name


def test_a_causal_mask_ends_the_loop(kernels: Any) -> None:
    """At the last key of a block's last query."""
    _, built, arguments = kernels
    for name in {"causal", "odd"} & set(arguments):
        begin, _ = built.text(f"{name}_0").split("kiln_scores<")
        loop = next(line for line in reversed(begin.splitlines()) if line.startswith("  for ("))
        assert ("blockIdx" in loop) == (name == "causal"), loop


@pytest.mark.parametrize(
    ("hidden", "seen", "another", "causal"),
    [
        (-np.inf, 0.0, True, True),
        (-1e9, 0.0, False, True),
        (-1e9, 0.0, True, False),  # the other mask may hide all keys that a query sees
        (-1e9, -5.0, False, False),
        (-1.0, 0.0, False, False),
    ],
)
def test_what_counts_as_causal(hidden: float, seen: float, another: bool, causal: bool) -> None:
    q, k, v, other = (relax.Var(name, relax.TensorType((2, 16, 16), F)) for name in ("q_", "k_", "v_", "o"))
    inputs, builder = [q, k, v, *([other] if another else [])], relax.BlockBuilder()
    mask = np.where(np.tri(16, dtype=bool), np.float32(seen), np.float32(hidden))
    with builder.function("main", inputs, attrs={"num_input": len(inputs), "kiln.dims": "{}"}):
        with builder.dataflow():
            scores = builder.emit(relax.op.einsum([q, k], "hqd,hkd->hqk"))
            scores = builder.emit(relax.op.add(scores, other)) if another else scores
            shares = builder.emit(
                relax.op.nn.softmax(builder.emit(relax.op.add(scores, relax.const(mask))), -1)
            )
            result = builder.emit_output(relax.op.einsum([shares, v], "hqk,hke->hqe"))
        builder.emit_func_output(result)
    mod, _ = fused(builder.get())
    (found,) = (applies(func) for func in mod.functions.values() if isinstance(func, tirx.PrimFunc))
    assert found is not None and found.causal == causal


@pytest.mark.heavy
def test_ptxas_compiles_all_kernels(kernels: Any, tmp_path: Path) -> None:
    """In the shared memory of any GPU; registers are spilled for the widest heads in float32 alone."""
    precision, built, _ = kernels
    for usage in built.check_machine_code(PRECISIONS[precision][1], tmp_path):
        assert usage["stack_bytes"] <= (16 if precision == "fp32" else 0)


@pytest.mark.parametrize("factor", ["float32", "tf32", "float16", "bfloat16"])
def test_tiles_fit_into_shared_memory(factor: str) -> None:
    for depth, columns in [(1, 1), (17, WIDEST), (64, 64), (96, 128), (WIDEST, WIDEST)]:
        for queries, heads in [(8, 1), (197, 3), (4096, 32)]:
            tile = tile_of(factor, queries, 1000, heads, (depth, columns), 132)
            assert tile.shared_bytes <= SHARED_BYTES and tile.depth >= depth and tile.columns >= columns
            assert tile.rows <= max(16, 2 * queries)
