"""Attention over long sequences as one kernel, in the forms in which exporters write it, against numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.config import load_target
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower
from onnx import TensorProto, helper
from tvm import relax

from . import arithmetic
from .lowered import Array, Compiled, close, const, module, runnable
from .programs import Program

op = relax.op
# Queries and keys with rests after whole blocks, tiles and vectors: more scores than are computed in memory.
QUERIES, KEYS = 261, 259
FAMILY = "attention"
HEAVY = pytest.mark.heavy


OTHERS = ("aarch64", "riscv64", "wasm32")


def _uniform(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype("f4")


def _want(q: Array, k: Array, v: Array, mask: Array | float = 0.0) -> Array:
    """Attention of [batch, head, position, element] in float64; a row without a key is NaN."""
    scores = q.astype("f8") @ k.astype("f8").swapaxes(-1, -2) / math.sqrt(q.shape[-1]) + mask
    with np.errstate(invalid="ignore"):
        return arithmetic.softmax(scores, -1) @ v.astype("f8")  # type: ignore[no-any-return]


def _scaled(scores: Any, q: Array) -> Any:
    return op.multiply(scores, const(1 / math.sqrt(q.shape[-1])))


def plain(target: str, folder: Path) -> Compiled:
    """Transposes before and after, a head of 20 elements and values of 37, another layer after it."""
    q, k, v = _uniform(2, QUERIES, 3, 20), _uniform(2, KEYS, 3, 20), _uniform(2, KEYS, 3, 37)

    def body(q_: Any, k_: Any, v_: Any) -> Any:
        q_, k_, v_ = (op.permute_dims(x, [0, 2, 1, 3]) for x in (q_, k_, v_))
        scores = _scaled(op.matmul(q_, op.permute_dims(k_, [0, 1, 3, 2])), q)
        mixed = op.matmul(op.nn.softmax(scores, -1), v_)
        return op.nn.relu(op.permute_dims(mixed, [0, 2, 1, 3]))

    mod = simplify(module([(x.shape, "float32") for x in (q, k, v)], body))
    compiled = Compiled(mod, runnable(target), folder).load()
    got = compiled.run([q, k, v])[0]
    want = _want(*(x.transpose(0, 2, 1, 3) for x in (q, k, v))).transpose(0, 2, 1, 3)
    close(got, np.maximum(want, 0), 2e-6)
    return compiled


@pytest.mark.parametrize("target", [*(pytest.param(n, marks=HEAVY) for n in ("host", "x86_64")), "x86_64_v2"])
def test_plain(target: str, tmp_path: Path) -> None:
    assert FAMILY in plain(target, tmp_path).families


@pytest.mark.heavy
@pytest.mark.parametrize("variant", ["v3", pytest.param("v4", marks=HEAVY)])
def test_variants(variant: str, tmp_path: Path) -> None:
    """Variants divide the work alike, and share the scratch memory of the larger one."""
    target, q = runnable("x86_64", variant), _uniform(1, 2, QUERIES, 32)
    mod = module(
        [(q.shape, "float32")],
        lambda x: op.matmul(
            op.nn.softmax(_scaled(op.einsum(relax.Tuple([x, x]), "abce,abde->abcd"), q), -1), x
        ),
    )
    compiled = Compiled(mod, target, tmp_path, variant=variant).load()
    assert FAMILY in compiled.families
    close(compiled.run([q])[0], _want(q, q, q), 2e-6)


def _masked(instead: float | None) -> Callable[..., Any]:
    """Attention with masks; `instead`: what stands for NaN after the softmax."""

    def body(q: Any, k: Any, v: Any, mask: Any, keep: Any) -> Any:
        scores = op.einsum(relax.Tuple([q, k]), "abce,abde->abcd")
        scores = op.add(op.multiply(scores, const(0.25)), mask)
        scores = op.where(keep, scores, const(-math.inf))
        chances = op.nn.softmax(scores, -1)
        if instead is not None:
            chances = op.where(op.isnan(chances), const(instead), chances)
        return op.matmul(chances, v)

    return body


@pytest.mark.parametrize("instead", [*(pytest.param(n, marks=HEAVY) for n in (None, 0.5)), 0.0])
def test_masks(instead: float | None, tmp_path: Path) -> None:
    """A bias of its own for each score, causal -inf, and a row whose keys are all masked."""
    q, k, v = _uniform(1, 2, QUERIES, 16), _uniform(1, 2, KEYS, 16), _uniform(1, 2, KEYS, 16)
    mask = _uniform(1, 1, QUERIES, KEYS)
    mask[..., 100:, 7] = -math.inf
    keep = np.tri(QUERIES, KEYS, dtype="bool")[None, None].copy()
    keep[..., 5, :] = False
    keep[..., 200, 1:] = False
    types = ["float32"] * 4 + ["bool"]
    arrays = [q, k, v, mask, keep]
    mod = module([(x.shape, t) for x, t in zip(arrays, types, strict=True)], _masked(instead))
    compiled = Compiled(mod, runnable("host"), tmp_path).load()
    assert (compiled.families == [FAMILY]) == (instead != 0.5)
    got = compiled.run(arrays)[0]
    want = _want(q, k, v, np.where(keep, mask, -math.inf))
    assert np.isnan(want[:, :, 5]).all()
    if instead is not None:
        want[:, :, 5] = instead * v.sum(axis=2)
    assert (np.isnan(got) == np.isnan(want)).all()
    close(np.nan_to_num(got), np.nan_to_num(want), 2e-6)


@pytest.mark.heavy
def test_one_key_for_all_heads_and_transposed_values(tmp_path: Path) -> None:
    """Keys that all heads share, stored as columns; values whose columns are apart, and are packed."""
    q, k, v = _uniform(1, 3, QUERIES, 24), _uniform(1, 24, KEYS), _uniform(1, 33, KEYS)

    def body(q_: Any, k_: Any, v_: Any) -> Any:
        scores = op.einsum(relax.Tuple([q_, k_]), "abce,aed->abcd")
        return op.einsum(relax.Tuple([op.nn.softmax(_scaled(scores, q), 3), v_]), "abce,ade->adcb")

    mod = module([(x.shape, "float32") for x in (q, k, v)], body)
    compiled = Compiled(mod, runnable("host"), tmp_path).load()
    assert compiled.families == [FAMILY]
    want = _want(q, k.transpose(0, 2, 1)[:, None], v.transpose(0, 2, 1)[:, None])
    close(compiled.run([q, k, v])[0], want.transpose(0, 3, 2, 1), 2e-6)


def test_groups_of_heads_that_share_keys(tmp_path: Path) -> None:
    """Keys and values without the axis of the heads of a group, a mask, and a result by positions."""
    q, k, v = _uniform(1, 2, 3, QUERIES, 16), _uniform(1, 2, KEYS, 16), _uniform(1, 2, KEYS, 16)
    mask = np.where(np.tri(QUERIES, KEYS, dtype="bool"), 0, -math.inf).astype("f4")[None, None, None]

    def body(q_: Any, k_: Any, v_: Any, mask_: Any) -> Any:
        scores = op.add(op.einsum(relax.Tuple([q_, k_]), "abcde,abfe->abcdf"), mask_)
        return op.einsum(relax.Tuple([op.nn.softmax(scores, -1), v_]), "abcdf,abfe->adbce")

    mod = module([(x.shape, "float32") for x in (q, k, v, mask)], body)
    compiled = Compiled(mod, runnable("host"), tmp_path).load()
    assert compiled.families == [FAMILY]
    want = _want(4 * q, k[:, :, None], v[:, :, None], mask).transpose(0, 3, 1, 2, 4)
    close(compiled.run([q, k, v, mask])[0], want, 2e-6)


def test_great_scores(tmp_path: Path) -> None:
    """Scores far from zero, which grow along the keys: each block of keys scales the result before it."""
    q, k, v = 30 * _uniform(1, 1, QUERIES, 16), 30 * _uniform(1, 1, KEYS, 16), _uniform(1, 1, KEYS, 16)
    q, k = np.abs(q), np.sort(k, axis=2)
    mod = module(
        [(x.shape, "float32") for x in (q, k, v)],
        lambda *x: op.matmul(
            op.nn.softmax(_scaled(op.einsum(relax.Tuple(list(x[:2])), "abce,abde->abcd"), q), -1), x[2]
        ),
    )
    compiled = Compiled(mod, runnable("host"), tmp_path).load()
    assert compiled.families == [FAMILY]
    scores = (q @ k.swapaxes(-1, -2)) / np.float32(math.sqrt(16))  # rounded alike: exp magnifies the error
    close(compiled.run([q, k, v])[0], arithmetic.softmax(scores.astype("f8"), -1) @ v, 2e-3)


def test_dynamic_lengths(tmp_path: Path) -> None:
    """A decoder's batch, queries and earlier keys are dynamic, down to one query and no earlier key."""
    nodes = [
        helper.make_node("Concat", ["past_k", "k"], ["keys"], axis=2),
        helper.make_node("Concat", ["past_v", "v"], ["values"], axis=2),
        helper.make_node("Transpose", ["keys"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["qk"]),
        helper.make_node("Add", ["qk", "mask"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "values"], ["pv"]),
        helper.make_node("Transpose", ["pv"], ["out"], perm=[0, 2, 1, 3]),
    ]
    shapes = {
        "q": ["b", 2, "m", 20], "past_k": ["b", 2, "past", 20], "k": ["b", 2, "m", 20],
        "past_v": ["b", 2, "past", 37], "v": ["b", 2, "m", 37], "mask": ["b", 1, 1, "past + m"],
    }  # fmt: skip
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["b", "m", 2, 37])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    program = Program(path, {"b": (1, 2), "m": (1, 300), "past": (0, 300)}, optimise=True)
    assert FAMILY in [kernel.family for kernel in program.steps.kernels]
    for b, m, past in [(1, 1, 0), (2, 1, 299), (1, 2, 31), (2, 65, 63), (1, 97, 200), (2, 300, 300)]:
        count = past + m
        q, k, v = 2 * _uniform(b, 2, m, 20), 2 * _uniform(b, 2, count, 20), _uniform(b, 2, count, 37)
        mask = np.where(np.arange(count) % 7 == 3, -math.inf, 0).astype("f4")[None, None, None].repeat(b, 0)
        split = [x for whole in (k, v) for x in np.split(whole, [past], axis=2)]
        got = program.run([q, *split, mask], {"b": b, "m": m, "past": past})[0]
        close(got, _want(math.sqrt(20) * q, k, v, mask).transpose(0, 2, 1, 3), 3e-6)


@pytest.mark.parametrize("name", ["armv7", *(pytest.param(n, marks=HEAVY) for n in ("host", *OTHERS))])
def test_scores_need_no_memory(name: str) -> None:
    """Scratch memory is as large as a few blocks, on targets of every kind; short sequences store scores."""
    target = load_target(name)

    def scratch(length: int) -> tuple[int, list[str]]:
        x = (1, 4, length, 32)

        def body(q: Any, k: Any, v: Any) -> Any:
            scores = op.einsum(relax.Tuple([q, k]), "abce,abde->abcd")
            return op.matmul(op.nn.softmax(scores, -1), v)

        steps = lower(module([(x, "float32")] * 3, body), Lowering("m", target, "pthread"))
        sizes = [t.record({}).bytes for t in steps.tensors.values() if t.kind not in ("input", "param")]
        return sum(sizes) - 4 * math.prod(x), [kernel.family for kernel in steps.kernels]

    long, families = scratch(3000)
    assert families[-1] == FAMILY
    assert long < 4 << 20  # 144 MB of scores
    assert FAMILY not in scratch(49)[1]
