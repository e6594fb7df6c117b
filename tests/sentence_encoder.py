"""A small sentence encoder as exporters write it, as an ONNX file, with both axes of its input dynamic.

Embeddings and positions, two layers of attention with a mask made by Equal, Expand and Where, layer norms
by their parts, GELU by Erf, and the mean of the tokens that the mask keeps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from symbolic import Array, write

WIDTH, HEADS, WORDS, LONGEST, LAYERS = 24, 2, 50, 48, 2

START = """
  ids_shape = Shape(ids)
  batch = Gather(ids_shape, at0)
  seq = Gather(ids_shape, at1)
  batch1 = Unsqueeze(batch, first)
  seq1 = Unsqueeze(seq, first)
  token = Gather(words, ids)
  numbers = Slice(position_ids, first, seq1, second)
  place = Gather(places, numbers)
  h = Add(token, place)
  masked = Equal(mask, at0)
  mask_shape = Concat<axis = 0>(batch1, second, second, seq1)
  masked4 = Reshape(masked, mask_shape)
  split = Concat<axis = 0>(batch1, rest, heads1, size1)
  joined = Concat<axis = 0>(batch1, rest, width1)
"""

LAYER = """
  L_q = MatMul(h, L_wq)
  L_k = MatMul(h, L_wk)
  L_v = MatMul(h, L_wv)
  L_q4 = Reshape(L_q, split)
  L_k4 = Reshape(L_k, split)
  L_v4 = Reshape(L_v, split)
  L_qt = Transpose<perm = [0, 2, 1, 3]>(L_q4)
  L_kt = Transpose<perm = [0, 2, 3, 1]>(L_k4)
  L_vt = Transpose<perm = [0, 2, 1, 3]>(L_v4)
  L_scaled = Div(L_qt, root)
  L_scores = MatMul(L_scaled, L_kt)
  L_shape = Shape(L_scores)
  L_wide = Expand(masked4, L_shape)
  L_kept = Where(L_wide, least, L_scores)
  L_p = Softmax<axis = -1>(L_kept)
  L_c = MatMul(L_p, L_vt)
  L_ct = Transpose<perm = [0, 2, 1, 3]>(L_c)
  L_c3 = Reshape(L_ct, joined)
  L_a = MatMul(L_c3, L_wo)
  L_x = Add(L_a, h)
  L_mean = ReduceMean<axes = [-1]>(L_x)
  L_less = Sub(L_x, L_mean)
  L_square = Pow(L_less, two)
  L_var = ReduceMean<axes = [-1]>(L_square)
  L_more = Add(L_var, tiny)
  L_sd = Sqrt(L_more)
  L_norm = Div(L_less, L_sd)
  L_n = Add(L_norm, L_bias)
  L_up = MatMul(L_n, L_w1)
  L_over = Div(L_up, root2)
  L_erf = Erf(L_over)
  L_one = Add(L_erf, one)
  L_both = Mul(L_up, L_one)
  L_gelu = Mul(L_both, half)
  L_down = MatMul(L_gelu, L_w2)
  L_out = Add(L_down, L_n)
"""

END = """
  kept = Cast<to = 1>(mask)
  kept3 = Unsqueeze(kept, last)
  h_shape = Shape(h)
  kept_wide = Expand(kept3, h_shape)
  weighed = Mul(h, kept_wide)
  total = ReduceSum(weighed, second)
  count = ReduceSum(kept_wide, second)
  positive = Clip(count, nearly)
  y = Div(total, positive)
"""


def encoder(path: Path) -> Path:
    rng = np.random.default_rng(7)
    weights: dict[str, Any] = {
        "at0": np.int64(0), "at1": np.int64(1), "first": np.array([0]), "second": np.array([1]),
        "rest": np.array([-1]), "last": np.array([-1]), "heads1": np.array([HEADS]),
        "size1": np.array([WIDTH // HEADS]), "width1": np.array([WIDTH]),
        "position_ids": np.arange(LONGEST)[None], "root": np.float32((WIDTH // HEADS) ** 0.5),
        "least": np.float32(np.finfo("f4").min), "two": np.float32(2), "tiny": np.float32(1e-12),
        "root2": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5),
        "nearly": np.float32(1e-9), "words": _normal(rng, WORDS, WIDTH),
        "places": _normal(rng, LONGEST, WIDTH),
    }  # fmt: skip
    text, before = START, "h"
    for layer in range(LAYERS):
        name, after = f"l{layer}", f"l{layer}_out"
        text += LAYER.replace("L_", f"{name}_").replace("(h,", f"({before},").replace(", h)", f", {before})")
        before = after
        for part in ("wq", "wk", "wv", "wo"):
            weights[f"{name}_{part}"] = _normal(rng, WIDTH, WIDTH)
        weights[f"{name}_w1"], weights[f"{name}_w2"] = _normal(rng, WIDTH, 40), _normal(rng, 40, WIDTH)
        weights[f"{name}_bias"] = _normal(rng, WIDTH)
    text += END.replace("(h)", f"({before})").replace("(h,", f"({before},")
    ports = "g (int64[batch,seq] ids, int64[batch,seq] mask) => (float[batch,24] y)"
    return write(path, ports + "{" + text + "}", **weights)


def _normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.normal(0, 0.3, shape).astype("float32")
