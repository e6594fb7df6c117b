"""Operators of ONNX Runtime for state space models and linear attention: what is refused, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .one_node import refused

X = ("x", [1, 4, 6])
HEADS = {"q_num_heads": 2, "kv_num_heads": 2}
TABLES = [("c", np.ones((8, 3), "f4")), ("s", np.ones((8, 3), "f4"))]
QKV = [X, ("k", [1, 4, 6]), ("v", [1, 4, 6])]
KERNEL = ("w", np.ones((4, 1, 3), "f4"))
POSITIONS = ("p", np.zeros((3, 1, 4), "i8"))


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "told"),
    [
        ("CausalConvWithState", [X, KERNEL], {"state_window": 2}, "'state_window' is 2, allowed: 0"),
        ("CausalConvWithState", [X, KERNEL], {"activation": "relu"}, "is relu, allowed: none, silu, swish"),
        (
            "CausalConvWithState",
            [X, KERNEL, ("", None), ("past", [1, 4, 3])],
            {},
            "its state 'past' has 3 positions, allowed: 2, (kernel size - 1) * dilation",
        ),
        ("GatedRMSNorm", [X, ("s", np.ones(4, "f4")), ("g", [1, 4, 6])], {}, "allowed: a divisor of 6"),
        ("BranchwiseRMSNorm", [X], {"num_branches": 4}, "'num_branches' is 4, allowed: a divisor of 6"),
        ("LinearAttention", QKV, HEADS | {"update_rule": "gated"}, "its input 4, 'decay', is needed"),
        ("LinearAttention", QKV, HEADS | {"q_num_heads": 4, "update_rule": "linear"}, "are 4 and 2, allowed"),
        (
            "LinearAttention",
            [X, ("k", [1, 4, 8]), ("v", [1, 4, 6])],
            HEADS | {"update_rule": "linear"},
            "its keys 'k' are of shape [1, 4, 8], allowed: [1, 4, 6], of 2 query heads",
        ),
        (
            "LinearAttention",
            [*QKV, ("", None), ("", None), ("beta", [1, 4, 3])],
            HEADS | {"update_rule": "delta"},
            "allowed: [1, 4, 2] or [1, 4, 1], of 2 query heads and 2 heads",
        ),
        ("MRotaryEmbedding", [X, POSITIONS, *TABLES], {"mrope_section": [1, 1, 2]}, "[1, 1, 2], allowed"),
        (
            "MRotaryEmbedding",
            [X, ("p", np.zeros((1, 4), "i8")), *TABLES],
            {"mrope_section": [1, 1, 1]},
            "its positions 'p' are [1, 4], allowed: [3, batch, length]",
        ),
    ],
)  # fmt: skip
def test_refusals(
    tmp_path: Path, operator: str, inputs: list[tuple[str, Any]], attributes: dict[str, Any], told: str
) -> None:
    assert told in refused(tmp_path / "m.onnx", operator, inputs, **attributes)
