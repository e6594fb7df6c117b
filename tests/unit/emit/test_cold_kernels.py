"""Kernels that are compiled for size: which they are, and what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kiln.config import load_target
from kiln.emit import cold_kernels, joint, objects
from kiln.emit.object_symbols import symbols
from kiln.plan.schema import Plan
from plans import plan_of
from tvm.script import tirx


@tirx.prim_func(private=True, s_tir=True)
def brief(
    x: tirx.handle("float32", "global"),  # type: ignore[valid-type]
    y: tirx.handle("float32", "global"),  # type: ignore[valid-type]
) -> None:
    read, output = tirx.decl_buffer((10,), data=x), tirx.decl_buffer((10,), data=y)
    for i in range(10):
        output[i] = tirx.max(read[i] * read[i] + tirx.float32(3), tirx.float32(0))


@tirx.prim_func(private=True, s_tir=True)
def lasting(
    x: tirx.handle("int32", "global"),  # type: ignore[valid-type]
    y: tirx.handle("int32", "global"),  # type: ignore[valid-type]
) -> None:
    read = tirx.decl_buffer((64,), "int32", data=x)
    output = tirx.decl_buffer((64,), "int32", data=y)
    for i, j in tirx.grid(64, 64):
        output[i] = output[i] + read[j] * read[i]


FUNCTIONS = {"brief": brief, "lasting": lasting}


def plan(*kernels: str) -> Plan:
    """A plan that calls `kernels` in turn; `begin` and `end` are the control steps of a loop."""
    steps: list[dict[str, Any]] = [
        {"kernel": name, "label": "", "extent": 1, "args": [], "attrs": {}} for name in kernels
    ]
    for step in steps:
        if step["kernel"] in ("begin", "end"):
            step["loop"] = {"number": 1, "ends": step["kernel"] == "end"}
    bucket = {"name": "static", "dims": {}, "arena_bytes": 0, "lower_bound_bytes": 0, "tensors": []}
    return plan_of(
        name="net",
        kernels=[{"symbol": name, "ops": [], "flops": 0} for name in sorted(set(kernels))],
        buckets=[{**bucket, "steps": steps}],
    )


def test_operations_are_those_of_a_statement_times_its_rounds() -> None:
    assert 10 * 4 <= cold_kernels.operations(brief.body) <= 10 * 10
    assert 64 * 64 * 4 <= cold_kernels.operations(lasting.body) <= 64 * 64 * 10
    # On a core without instructions for floats, each of the three operations on floats is many.
    assert cold_kernels.operations(brief.body, 40) > 10 * 3 * 40
    assert cold_kernels.operations(lasting.body, 40) == cold_kernels.operations(lasting.body)


@pytest.mark.parametrize(("calls", "cold"), [(1, {"brief"}), (40, set())])
def test_kernels_with_few_operations_are_cold(calls: int, cold: set[str]) -> None:
    """All calls of a kernel count: 40 of the brief one are a tenth of the operations."""
    target = load_target("cortex_m4")
    assert cold_kernels.cold_kernels(FUNCTIONS, plan("lasting", *["brief"] * calls), target) == cold


def test_calls_in_a_loop_count_for_each_round() -> None:
    target = load_target("cortex_m4")
    calls = plan("lasting", "begin", *["brief"] * 3, "end", "brief")
    assert cold_kernels.cold_kernels(FUNCTIONS, calls, target) == set()


def test_only_microcontrollers_compile_for_size() -> None:
    found = {name: cold_kernels.compiles_for_size(load_target(name)) for name in ("cortex_m4", "aarch64")}
    assert found == {"cortex_m4": True, "aarch64": False}


def test_the_instructions_are_those_of_the_target(tmp_path: Path) -> None:
    """The processor that zig knows by the name of the Cortex-M33 has no DSP instructions."""

    @tirx.prim_func(private=True, s_tir=True)
    def paired(
        x: tirx.handle("int32", "global"),  # type: ignore[valid-type]
        y: tirx.handle("int32", "global"),  # type: ignore[valid-type]
    ) -> None:
        read, output = tirx.decl_buffer((8,), "int32", data=x), tirx.decl_buffer((8,), "int32", data=y)
        for i in range(8):
            output[i] = tirx.call_llvm_intrin("int32", "llvm.arm.smlad", read[i], read[i], output[i])

    target, path = load_target("cortex_m33"), tmp_path / "paired.o"
    functions = {"paired": paired.with_attr("global_symbol", "paired")}
    objects.compile_object(functions, target, path)
    before = cold_kernels.code_bytes(path, "paired")
    cold_kernels.compile_for_size("paired", objects.llvm_ir(functions, target), target, path)
    assert cold_kernels.code_bytes(path, "paired") < before


def test_a_border_for_size_is_filled_by_memset(tmp_path: Path) -> None:
    @tirx.prim_func(private=True, s_tir=True)
    def border(y: tirx.handle("int8", "global")) -> None:  # type: ignore[valid-type]
        output = tirx.decl_buffer((40,), "int8", data=y)
        for i in range(40):
            output[i] = tirx.int8(3)

    target, path = load_target("cortex_m4"), tmp_path / "border.o"
    functions = {"border": border.with_attr("global_symbol", "border")}
    objects.compile_object(functions, target, path)
    cold_kernels.compile_for_size("border", objects.llvm_ir(functions, target), target, path)
    names = {symbol.name for symbol in symbols(path.read_bytes()) if not symbol.defined}
    assert names - {""} == {"__aeabi_memset"} and cold_kernels.code_bytes(path, "border") <= 12


def test_an_object_for_size_is_smaller_and_one_for_speed_goes_into_a_joint_library(tmp_path: Path) -> None:
    target = load_target("cortex_m4")
    functions = {"brief": brief.with_attr("global_symbol", "brief")}
    folders = [tmp_path / "fast", tmp_path / "small"]
    for folder in folders:
        folder.mkdir()
        objects.compile_object(functions, target, folder / "brief.o")
    ir = objects.llvm_ir(functions, target)
    cold_kernels.compile_for_size("brief", ir, target, folders[1] / "brief.o")
    fast, small = (cold_kernels.code_bytes(folder / "brief.o", "brief") for folder in folders)
    assert small < fast / 2
    assert [path.name for path in folders[1].iterdir()] == ["brief.o"]
    for order in (folders, folders[::-1]):
        assert joint._kernels(tuple(order)) == [folders[0] / "brief.o"]
    # A larger object is not used.
    content = (folders[1] / "brief.o").read_bytes()
    cold_kernels.compile_for_size("brief", ir, target, folders[1] / "brief.o")
    assert (folders[1] / "brief.o").read_bytes() == content
