"""Loops over k on 32-bit ARM, whose few registers hold the sums: LLVM unrolls none of many products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from kiln.config import load_target
from kiln.emit.objects import compile_object
from kiln.lower.pipeline import Lowering, lower
from relaxed import const, module
from tvm import relax


def test_sums_of_few_tiles_of_rows_stay_in_registers(tmp_path: Path) -> None:
    target = load_target("armv7").for_variant("vfpv4")
    weights = const(np.random.default_rng(0).normal(size=(384, 64)).astype("f4"))
    mod = module(
        [((rows, 384), "float32") for rows in (12, 20, 28)],
        lambda *x: [relax.op.matmul(one, weights) for one in x],
    )
    functions = lower(mod, Lowering("m", target, "none")).functions
    assert len(functions) == 3
    for name, function in functions.items():
        # Those of a step of k, in each loop of the kernel; LLVM would make one of two or four steps.
        ir = compile_object({name: function}, target, tmp_path / "m.o")
        assert 0 < ir.count("fmuladd") <= 32, name
