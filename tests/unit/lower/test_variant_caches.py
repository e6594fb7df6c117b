"""Variants that differ in caches and in instructions for 8-bit integers have the same kernels for floats."""

from __future__ import annotations

from typing import Any

import numpy as np
from kiln.config import load_target
from kiln.lower.pipeline import Lowering, lower
from relaxed import const, module
from tvm import relax

op = relax.op


def test_float_kernels_are_the_same_for_all_caches() -> None:
    weights = const(np.ones((1, 1, 192, 64), "float32"))

    def body(x: Any) -> Any:
        return op.nn.conv2d(x, weights, data_layout="NHWC", kernel_layout="HWIO")

    mod = module([((1, 28, 28, 192), "float32")], body)
    mod["main"] = mod["main"].with_attr("num_input", 1)
    assert not any(
        step.variants for step in lower(mod, Lowering("m", load_target("aarch64"), "pthread")).steps
    )
