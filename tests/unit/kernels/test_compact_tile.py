"""The order of products in a register tile whose weights are widened where they are multiplied."""

from __future__ import annotations

import re

import numpy as np
import pytest
from kiln.config import load_target
from kiln.lower.pipeline import Lowering, lower
from relaxed import const, module
from tvm import relax


@pytest.mark.parametrize("rows", [2, 6])
def test_the_longer_side_of_a_tile_is_outside(rows: int) -> None:
    # Tiles of 6 x 2 vectors have no register left: in the other order LLVM stores sums in each step of k.
    weights = np.random.default_rng(1).uniform(-1, 1, (20, 16)).astype("float16").astype("float32")
    mod = module([((rows, 20), "float32")], lambda x: relax.op.matmul(x, const(weights)))
    steps = lower(mod, Lowering("m", load_target("x86_64").for_variant("v3"), "none"))
    (func,) = steps.functions.values()
    products = re.findall(r"(\w+)\[(\d)\] = T\.call_llvm_pure_intrin\(.*fmuladd", func.script())
    names = [name for name, _ in products]
    assert names == [name for name in dict.fromkeys(names) for _ in range(2)]
    assert len(names) == 2 * rows
