"""Loops of few rounds: unrolled by LLVM where there are vectors, else only if they are very short."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.config import load_target
from kiln.emit import objects
from tvm.script import tirx


@tirx.prim_func(private=True, s_tir=True)
def columns(
    x: tirx.handle("float32", "global"),  # type: ignore[valid-type]
    weights: tirx.handle("float32", "global"),  # type: ignore[valid-type]
    y: tirx.handle("float32", "global"),  # type: ignore[valid-type]
) -> None:
    read = tirx.decl_buffer((12,), data=x)
    panel = tirx.decl_buffer((36,), data=weights)
    output = tirx.decl_buffer((3,), data=y)
    for k in range(12):
        output[0] = output[0] + read[k] * panel[k * 3]
        output[1] = output[1] + read[k] * panel[k * 3 + 1]
        output[2] = output[2] + read[k] * panel[k * 3 + 2]


@pytest.mark.parametrize(
    ("name", "is_loop"),
    [("cortex_m0plus", True), ("cortex_m4", True), ("riscv32_imac", True), ("cortex_m55", False)],
)
def test_a_loop_on_a_core_without_vectors_stays_a_loop(name: str, is_loop: bool, tmp_path: Path) -> None:
    function = columns.with_attr("global_symbol", "columns")
    ir = objects.compile_object({"columns": function}, load_target(name), tmp_path / "columns.o")
    body = ir.partition("@columns(")[2].partition("\n}\n")[0]
    assert ("br i1" in body) == is_loop
