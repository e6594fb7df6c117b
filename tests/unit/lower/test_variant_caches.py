"""Which kernels variants share: those for floats on equal vectors, unless one fuses multiply-adds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
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


@pytest.mark.parametrize(
    ("dtype", "operator", "has_own"),
    [
        ("float32", lambda x: op.multiply(x, x), True),
        ("float32", lambda x: op.matmul(x, const(np.ones((24, 24), "float32"))), True),
        ("float32", op.nn.relu, False),
        ("int32", lambda x: op.multiply(x, x), False),
        ("int8", lambda x: op.multiply(op.astype(x, "float32"), const(0.5)), False),
    ],
)
def test_kernels_of_a_variant_with_fused_multiply_add(dtype: str, operator: Any, has_own: bool) -> None:
    mod = module([((12, 24), dtype)], operator)
    mod["main"] = mod["main"].with_attr("num_input", 1)
    lowered = lower(mod, Lowering("m", load_target("armv7"), "pthread"))
    assert [set(step.variants) for step in lowered.steps] == [{"vfpv4"} if has_own else set()]


def test_kernels_of_integers_that_read_a_constant_in_few_bits() -> None:
    """Each variant has a kernel with its own instructions, though all read the bias as int8."""
    random = np.random.default_rng(0)
    weights = const(random.integers(-127, 128, (64, 1536)), "int8")
    bias = const(random.integers(-127, 128, 1536) / 4)

    def body(x: Any) -> Any:
        return op.add(op.astype(op.matmul(x, weights, out_dtype="int32"), "float32"), bias)

    mod = module([((12, 64), "int8")], body)
    mod["main"] = mod["main"].with_attr("num_input", 1)
    (step,) = lower(mod, Lowering("m", load_target("x86_64"), "pthread")).steps
    assert any(name.startswith("p1.int8.") for name in step.args)
    assert set(step.variants) == {"v3_vnni", "v4", "v4_vnni", "v4_amx"}
