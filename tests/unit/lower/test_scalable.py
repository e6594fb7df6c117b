"""Vectors keep the width that schedules chose on processors whose own have an unknown length (SVE, RVV)."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.config import Target, load_target
from kiln.emit.objects import compile_object
from kiln.lower.llvm_target import tvm_target
from kiln.tir import abi
from kiln.tir.builder import Argument, Kernel, define, load, store, vector

SVE = load_target("aarch64").model_copy(update={"variants": [], "features": ["+sve2"]})
CPU_WITH_SVE = load_target("aarch64").model_copy(
    update={"variants": [], "cpu": "neoverse-v1", "features": []}
)


RISCV = [load_target("riscv64").for_variant(name) for name in ("rvv128", "rvv256")]


@pytest.mark.parametrize("target", [*RISCV, SVE, CPU_WITH_SVE])
def test_vectors_have_their_width(target: Target, tmp_path: Path) -> None:
    def body(buffers: list[object], _begin: object, _end: object) -> None:
        with vector(16) as lane:
            store(buffers[1], [lane], load(buffers[0], [lane]) * load(buffers[0], [lane]))

    arguments = [Argument("x", [16], "float32"), Argument("y", [16], "float32")]
    kernel = Kernel(define(arguments, None, body, aliases=False))
    lowered = abi.lower(kernel, tvm_target(target, lowering=True)).func.with_attr("global_symbol", "k")
    ir = compile_object({"k": lowered}, target, tmp_path / "k.o")
    assert "vscale" not in str(lowered) and "vscale" not in ir
    assert "fmul <16 x float>" in ir
