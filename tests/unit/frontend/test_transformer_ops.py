"""Operators of exported transformers against ONNX Runtime: norms, activations, embeddings, attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kiln.config.library import load_variant
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower

from .many_nodes import MICROSOFT, ManyNodes


def test_activations_norms_and_products(tmp_path: Path) -> None:
    m = ManyNodes()
    x, skip = m.normal(2, 5, 8), m.normal(2, 5, 8)
    bias, gamma, beta = (m.const(m.rng.normal(size=8).astype("f4")) for _ in range(3))
    for name in ("Gelu", "FastGelu", "QuickGelu"):
        m.add(name, name, x, domain=MICROSOFT)
    m.add("quick_slope", "QuickGelu", x, domain=MICROSOFT, alpha=0.9)
    m.add("fast_bias", "FastGelu", x, bias, domain=MICROSOFT)
    m.add("bias_gelu", "BiasGelu", x, bias, domain=MICROSOFT)
    m.add("skip", "SkipLayerNormalization", x, skip, gamma, beta, bias, domain=MICROSOFT)
    m.add("skip_short", "SkipLayerNormalization", x, m.normal(1, 5, 8), gamma, domain=MICROSOFT, epsilon=1e-5)
    m.nodes[-1].output.extend(["", "", "skip_sum"])
    m.cases["skip_sum"] = ["skip_sum"]
    m.add("rms", "SimplifiedLayerNormalization", x, gamma, axis=-1, epsilon=1e-6)
    m.add("skip_rms", "SkipSimplifiedLayerNormalization", x, skip, gamma, bias, domain=MICROSOFT)
    a, b = m.normal(2, 3, 4, 5), m.normal(2, 3, 4, 6)
    m.add("matmul", "FusedMatMul", a, b, domain=MICROSOFT, transA=1, alpha=0.25)
    m.add("matmul_b", "FusedMatMul", m.normal(2, 3, 4, 5), m.normal(6, 5), domain=MICROSOFT, transB=1)
    m.add("matmul_batch", "FusedMatMul", m.normal(4, 3, 2, 5), m.normal(3, 2, 5, 6), domain=MICROSOFT,
          transBatchA=1)  # fmt: skip
    ids = m.input(m.rng.integers(0, 11, (2, 5)).astype("i4"))
    kinds = m.input(m.rng.integers(0, 2, (2, 5)).astype("i4"))
    tables = [m.const(m.rng.normal(size=(rows, 8)).astype("f4")) for rows in (11, 7, 2)]
    mask = m.input(np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "i4"))
    m.add(
        "embed",
        "EmbedLayerNormalization",
        ids,
        kinds,
        *tables,
        gamma,
        beta,
        mask,
        domain=MICROSOFT,
        outputs=3,
    )
    m.add("embed_less", "EmbedLayerNormalization", ids, "", *tables[:2], "", gamma, beta, domain=MICROSOFT,
          outputs=2)  # fmt: skip
    m.check(tmp_path / "m.onnx")


def test_rotary_positions(tmp_path: Path) -> None:
    m = ManyNodes(opset=23)
    tables = [m.const(m.rng.normal(size=(9, 4)).astype("f4")) for _ in range(2)]
    places = m.input(m.rng.integers(0, 9, (2, 3)).astype("i8"))
    for mixed in (0, 1):
        m.add(f"four{mixed}", "RotaryEmbedding", m.normal(2, 5, 3, 8), *tables, places, interleaved=mixed)
        m.add(f"part{mixed}", "RotaryEmbedding", m.normal(2, 5, 3, 12), *tables, places, interleaved=mixed,
              rotary_embedding_dim=8)  # fmt: skip
        m.add(
            f"three{mixed}",
            "RotaryEmbedding",
            m.normal(2, 3, 40),
            *tables,
            places,
            interleaved=mixed,
            num_heads=5,
        )
        m.add(f"ms{mixed}", "RotaryEmbedding", m.normal(2, 3, 40), places, *tables, interleaved=mixed,
              domain=MICROSOFT)  # fmt: skip
        offset = m.input(np.array([4], "i8"))
        m.add(f"ms_four{mixed}", "RotaryEmbedding", m.normal(2, 5, 3, 8), offset, *tables,
              interleaved=mixed, domain=MICROSOFT)  # fmt: skip
    whole = [m.const(m.rng.normal(size=(2, 3, 4)).astype("f4")) for _ in range(2)]
    m.add("given", "RotaryEmbedding", m.normal(2, 5, 3, 8), *whole)
    m.check(tmp_path / "m.onnx")


def test_packed_weights(tmp_path: Path) -> None:
    m = ManyNodes()
    for bits in (2, 4, 8):
        blob, packs = 16 * bits // 8, -(-3 * bits // 8)
        packed, scales = (
            m.const(m.some("uint8", 6, 3, blob)),
            m.const(m.rng.uniform(0.1, 1, (6, 3)).astype("f4")),
        )
        form = {"K": 40, "N": 6, "bits": bits, "block_size": 16, "domain": MICROSOFT}
        m.add(f"plain{bits}", "MatMulNBits", m.normal(2, 3, 40), packed, scales, **form)
        if bits == 4:  # zero points of floats, and columns of blocks in another order
            points = m.const(m.rng.uniform(-2, 17, (6, 3)).astype("f4"))
            m.add("points", "MatMulNBits", m.normal(2, 3, 40), packed, scales, points, **form)
            order = m.const(m.rng.permutation(np.arange(48) // 16)[:40].astype("i4"))
            m.add("order", "MatMulNBits", m.normal(2, 3, 40), packed, scales, "", order, **form)
            full = m.const(m.rng.permutation(np.arange(40) // 16).astype("i4"))  # no column of a block lacks
            m.add("full", "MatMulNBits", m.normal(2, 3, 40), packed, scales, "", full, **form)
        zeros = m.const(m.some("uint8", 6, packs))
        m.add(f"zeros{bits}", "MatMulNBits", m.normal(2, 3, 40), packed, scales, zeros, "",
              m.const(np.ones(6, "f4")), **form)  # fmt: skip
    m.check(tmp_path / "m.onnx")


@pytest.mark.parametrize("form", ["columns in another order", "zero points of floats"])
def test_packed_weights_are_stored_in_few_bits(tmp_path: Path, form: str) -> None:
    m, depth, columns = ManyNodes(), 512, 16
    packed = m.const(m.some("uint8", columns, depth // 32, 16))
    scales = m.const(m.rng.uniform(0.1, 1, (columns, depth // 32)).astype("f4"))
    points = m.const(m.rng.uniform(6, 9, (columns, depth // 32)).astype("f4"))
    order = m.const(m.rng.permutation(np.arange(depth) // 32).astype("i4"))
    more = [points] if form == "zero points of floats" else ["", order]
    attributes = {"K": depth, "N": columns, "bits": 4, "block_size": 32, "domain": MICROSOFT}
    m.add("y", "MatMulNBits", m.normal(1, depth), packed, scales, *more, **attributes)
    module, _ = import_model(m.save(tmp_path / "m.onnx"), ImportOptions("m"))
    steps = lower(simplify(module), Lowering("m", load_variant("x86_64"), "none"))
    weights = [value for value in steps.params.values() if value.ndim > 1 or value.size > depth]
    assert sum(value.nbytes for value in weights) <= depth * columns * (4 + 2) // 8


@pytest.mark.slow
def test_attention_of_onnx(tmp_path: Path) -> None:
    m = ManyNodes(opset=24)
    q, k, v = m.normal(2, 4, 3, 8), m.normal(2, 2, 5, 8), m.normal(2, 2, 5, 6)
    past = (m.normal(2, 2, 4, 8), m.normal(2, 2, 4, 6))
    bias, allowed = m.normal(3, 5), m.input(m.rng.random((2, 1, 3, 5)) > 0.3)
    m.add("plain", "Attention", q, k, v)
    m.add("causal", "Attention", q, k, v, is_causal=1, scale=0.3)
    m.add("bias", "Attention", q, k, v, bias, softcap=2.0)
    m.add("allowed", "Attention", q, k, v, allowed)
    m.add("past", "Attention", q, k, v, m.normal(2, 4, 3, 9), *past, is_causal=1, outputs=3)
    flat = (m.normal(2, 3, 32), m.normal(2, 5, 16), m.normal(2, 5, 12))
    m.add("flat", "Attention", *flat, q_num_heads=4, kv_num_heads=2)
    m.add("flat_past", "Attention", *flat, "", *past, q_num_heads=4, kv_num_heads=2, outputs=3)
    m.check(tmp_path / "m.onnx", absolute=1e-4)


@pytest.mark.slow
def test_attention_of_onnx_runtime(tmp_path: Path) -> None:
    m = ManyNodes()
    x, weights, bias = m.normal(2, 5, 12), m.normal(12, 48), m.const(m.rng.normal(size=48).astype("f4"))
    form = {"num_heads": 4, "domain": MICROSOFT}
    raw = m.input((m.rng.random((2, 5)) > 0.3).astype("i4"))
    m.add("plain", "Attention", x, weights, bias, **form)
    m.add("raw", "Attention", x, weights, bias, raw, **form)
    m.add(
        "by_query",
        "Attention",
        x,
        weights,
        bias,
        m.input((m.rng.random((2, 5, 5)) > 0.3).astype("i4")),
        **form,
    )
    m.add("ends", "Attention", x, weights, bias, m.input(np.array([3, 5], "i4")), **form)
    m.add("spans", "Attention", x, weights, bias, m.input(np.array([4, 5, 1, 0], "i4")), **form)
    m.add("left", "Attention", x, weights, bias, raw, unidirectional=1, scale=0.2, **form)
    m.add("extra", "Attention", x, weights, bias, "", "", m.normal(1, 4, 5, 5), **form)
    m.add(
        "past",
        "Attention",
        x,
        weights,
        bias,
        "",
        m.normal(2, 2, 4, 3, 4),
        unidirectional=1,
        outputs=2,
        **form,
    )
    m.add("widths", "Attention", x, m.normal(12, 40), m.normal(40), qkv_hidden_sizes=[16, 16, 8], **form)
    levels, scale, zero = m.levels("uint8", 2, 5, 12), m.const(np.float32(0.02)), m.const(np.uint8(120))
    quantised = (m.const(m.some("int8", 12, 48)), bias, scale, m.const(np.float32(0.01)))
    m.add("levels", "QAttention", levels, *quantised, raw, zero, m.const(np.int8(0)), **form)
    q, k, v = m.normal(2, 5, 16), m.normal(2, 6, 16), m.normal(2, 6, 16)
    m.add("three", "MultiHeadAttention", q, k, v, bias, **form)
    m.add(
        "padded",
        "MultiHeadAttention",
        q,
        k,
        v,
        "",
        m.input((m.rng.random((2, 6)) > 0.3).astype("i4")),
        **form,
    )
    m.add("lengths", "MultiHeadAttention", q, k, v, "", m.input(np.array([3, 6], "i4")), **form)
    m.add("extra3", "MultiHeadAttention", q, k, v, "", "", m.normal(2, 4, 5, 6), **form)
    past = (m.normal(2, 4, 3, 4), m.normal(2, 4, 3, 4))
    m.add("past3", "MultiHeadAttention", q, k, v, "", "", "", *past, outputs=3, **form)
    m.add("crossed", "MultiHeadAttention", q, m.normal(2, 4, 6, 4), m.normal(2, 4, 6, 4), **form)
    m.check(tmp_path / "m.onnx", absolute=1e-4)


@pytest.mark.slow
def test_grouped_queries(tmp_path: Path) -> None:
    m = ManyNodes()
    form = {"num_heads": 4, "kv_num_heads": 2, "domain": MICROSOFT}
    tables = [m.const(m.rng.normal(size=(32, 8)).astype("f4")) for _ in range(2)]

    def new(batch: int, length: int) -> tuple[str, str, str]:
        return m.normal(batch, length, 64), m.normal(batch, length, 32), m.normal(batch, length, 32)

    def lengths(total: int, *each: int) -> tuple[str, str]:
        return m.const(np.array(each, "i4")), m.const(np.array(total, "i4"))

    first = lengths(6, 5, 5)
    m.add("prompt", "GroupQueryAttention", *new(2, 6), "", "", *first, outputs=3, **form)
    m.add(
        "rotary", "GroupQueryAttention", *new(2, 6), "", "", *first, *tables, do_rotary=1, outputs=3, **form
    )
    m.add("mixed", "GroupQueryAttention", *new(1, 6), "", "", *lengths(6, 5), *tables, do_rotary=1,
          rotary_interleaved=1, softcap=3.0, **form)  # fmt: skip
    m.add("window", "GroupQueryAttention", *new(2, 6), "", "", *first, local_window_size=3, scale=0.2, **form)
    past = (m.normal(1, 2, 7, 16), m.normal(1, 2, 7, 16))
    m.add("token", "GroupQueryAttention", *new(1, 1), *past, *lengths(8, 7), *tables, do_rotary=1,
          outputs=3, **form)  # fmt: skip
    runtime = m.input(np.array([6, 9], "i4"))
    pasts = (m.normal(2, 2, 12, 16), m.normal(2, 2, 12, 16))
    m.add("ragged", "GroupQueryAttention", *new(2, 1), *pasts, runtime, lengths(10)[1], *tables, do_rotary=1,
          outputs=3, **form)  # fmt: skip
    m.cases["ragged"] = ["ragged_0"]  # the present beyond the sentences is not specified
    m.add("packed", "GroupQueryAttention", m.normal(1, 6, 128), "", "", "", "", *lengths(6, 5), **form)
    windowed = {"local_window_size": 4, "sliding_window_cache": 1, "outputs": 3, **form}
    small = (m.normal(1, 2, 4, 16), m.normal(1, 2, 4, 16))
    m.add(
        "cache", "GroupQueryAttention", *new(1, 3), *small, *lengths(9, 8), *tables, do_rotary=1, **windowed
    )
    small = (m.normal(2, 2, 6, 16), m.normal(2, 2, 6, 16))  # 11 tokens: rows 0 to 4 hold the last 5
    m.add("slack", "GroupQueryAttention", *new(2, 1), *small, *lengths(11, 10, 2), "", "", "",
          m.normal(1, 1, 1, 11), **windowed)  # fmt: skip
    m.cases["slack"] = ["slack_0"]  # the present beyond the tokens is not specified
    m.add("smooth", "GroupQueryAttention", *new(1, 6), "", "", *lengths(6, 5), smooth_softmax=1, **form)
    m.add("bias", "GroupQueryAttention", *new(1, 6), "", "", *lengths(6, 5), "", "", "",
          m.normal(1, 1, 6, 6), **form)  # fmt: skip
    m.check(tmp_path / "m.onnx", absolute=1e-4)
