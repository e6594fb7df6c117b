"""Mixtures of experts of ONNX Runtime, caches of a window, packed weights: what is refused, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.frontend.onnx.node import part
from tvm import relax, tirx

from .one_node import refused

X, SCORES = ("x", [3, 4]), ("r", [3, 2])
NONE = ("", None)
FLOATS = [X, SCORES, ("w1", np.ones((2, 8, 4), "f4")), NONE, ("w2", np.ones((2, 4, 8), "f4"))]
PACKED = [
    X, SCORES, ("w1", np.ones((2, 8, 2), "u1")), ("s1", np.ones((2, 8), "f4")), NONE,
    ("w2", np.ones((2, 4, 4), "u1")), ("s2", np.ones((2, 4), "f4")),
]  # fmt: skip
QUERIES = [
    ("q", [1, 2, 64]),
    ("k", [1, 2, 32]),
    ("v", [1, 2, 32]),
    ("pk", [1, 2, 4, 16]),
    ("pv", [1, 2, 4, 16]),
]
BITS = ("w", np.zeros((3, 2, 8), "u1"))
WINDOWED = {"num_heads": 4, "kv_num_heads": 2, "sliding_window_cache": 1}
LENGTHS = [("l", np.array([5], "i4")), ("t", np.array(6, "i4"))]


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "told"),
    [
        ("MoE", FLOATS, {"k": 3}, "'k' is 3, allowed: 1..2, the number of experts"),
        ("MoE", FLOATS, {"activation_type": "tanh"}, "is tanh, allowed: relu, gelu, silu, swiglu, identity"),
        ("MoE", FLOATS, {"activation_type": "swiglu"}, "'swiglu_fusion' is 0, allowed: 1"),
        ("MoE", FLOATS, {"use_sparse_mixer": 1}, "'use_sparse_mixer' is 1, allowed: 0"),
        ("MoE", [*FLOATS, NONE, ("w3", np.ones((2, 8, 4), "f4"))], {}, "'fc3_experts_weights' ('w3') is not"),
        (
            "MatMulNBits",
            [("x", [2, 32]), BITS, ("s", np.ones((3, 2), "f4")), NONE, ("order", np.full(32, 2, "i4"))],
            {"N": 3, "K": 32, "block_size": 16},
            "its input 'g_idx' ('order') has the number 2, allowed: 32 of 0..1",
        ),
        (
            "MatMulNBits",
            [("x", [2, 32]), BITS, ("s", np.ones((3, 2), "f4")), ("z", np.zeros((3, 1), "u1")),
             ("order", np.zeros(32, "i4"))],
            {"N": 3, "K": 32, "block_size": 16},
            "its inputs 'zero_points' ('z') and 'g_idx' ('order') are both given",
        ),
        ("QMoE", PACKED, {"quant_type": "fp4"}, "'quant_type' is fp4, allowed: int"),
        ("QMoE", PACKED, {"block_size": 16}, "have 4 columns of 4 bits and 1 blocks, allowed: bytes, and"),
        ("GroupQueryAttention", [*QUERIES, *LENGTHS], WINDOWED, "'local_window_size' is -1 with a cache of"),
        (
            "GroupQueryAttention",
            [*QUERIES, *LENGTHS],
            WINDOWED | {"local_window_size": 5},
            "its cache 'pk' has 4 positions, allowed: at least 5, the window",
        ),
        (
            "GroupQueryAttention",
            [*QUERIES[:3], NONE, NONE, *LENGTHS],
            WINDOWED | {"local_window_size": 4},
            "it has no 'past_key' and 'past_value', whose size is the capacity",
        ),
    ],
)  # fmt: skip
def test_refusals(
    tmp_path: Path, operator: str, inputs: list[tuple[str, Any]], attributes: dict[str, Any], told: str
) -> None:
    assert told in refused(tmp_path / "m.onnx", operator, inputs, **attributes)


def test_a_part_whose_end_is_a_sum_of_dimensions_has_that_size() -> None:
    """As the keys of a decoder that a sink follows: TVM makes a choice of it, which is no size."""
    past, seq = (tirx.Var(name, "int64") for name in ("past", "seq"))
    builder = relax.BlockBuilder()
    tensor = relax.Var("x", relax.TensorType([2, past + seq + 1], "float32"))
    with builder.function("main", [tensor]):
        result = builder.emit(part(tensor, 1, 0, past + seq))
        builder.emit_func_output(result)
    assert str(result.ty.shape[1]) == "past + seq"
