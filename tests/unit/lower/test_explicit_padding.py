"""Which padding of convolutions becomes an operator of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.lower.pipeline import machine_of
from kiln.lower.prepare import explicit_padding
from relaxed import const, module, operators
from tvm import relax, tirx

WIDE = {"padding": 24, "dilation": 24}


def _weights(size: int = 3, **places: float) -> Any:
    weights = np.ones((size, size, 8, 16), np.float32)
    weights[0, 0, 0, 0] = places.get("first", 1.0)
    return weights


# Name → height, weights, attributes, and the operators.
CASES: dict[str, tuple[Any, Any, dict[str, Any], list[str]]] = {
    "wide": (33, _weights(), WIDE, ["nn.conv2d"]),
    "none": (33, _weights(), {}, ["nn.conv2d"]),
    "narrow": (33, _weights(5), {"padding": 2}, ["nn.pad", "nn.conv2d"]),
    "for_winograd": (2, _weights(), {"padding": 1}, ["nn.pad", "nn.conv2d"]),
    "groups": (33, _weights(), {**WIDE, "groups": 2}, ["nn.pad", "nn.conv2d"]),
    "not_finite": (33, _weights(first=np.inf), WIDE, ["nn.pad", "nn.conv2d"]),
    "dynamic": (tirx.Var("h", "int64"), _weights(), WIDE, ["nn.pad", "nn.conv2d"]),
}


@pytest.mark.parametrize("name", CASES)
def test_only_wide_padding_stays(name: str) -> None:
    height, weights, attrs, expected = CASES[name]
    shape = (1, height, 33, 8 * int(attrs.get("groups", 1)))

    def conv(x: Any) -> Any:
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        return relax.op.nn.conv2d(x, const(weights), **layouts, **attrs)

    machine = machine_of(load_target("x86_64"), "none")
    assert operators(explicit_padding(machine, module([(shape, "float32")], conv))) == expected
