"""The benchmark of microcontrollers reads figures from the output of `test`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.device.bundle import GoldenVector
from kiln.errors import KilnError
from kiln.plan.schema import PlannedStep

from benchmarks import mcu_levels, microcontrollers, tflm, tflm_sources
from benchmarks.contenders import Folders
from benchmarks.microcontrollers import Measured, multiply_adds, peer_sources, read_vectors, run
from benchmarks.peers import PEERS

OUTPUT = """  vector random_1: max error 0 levels, allowed 1 levels: ok  (471,960 instructions)
  vector random_2: max error 1 levels, allowed 1 levels: ok  (471,980 instructions)
  205 of 205 checks of repeated runs, guards and wrong arguments ok
"""


def test_vectors_of_integers_and_of_floats() -> None:
    assert read_vectors(OUTPUT) == (471_980, "1 levels")
    line = "  vector a: max error 2.4e-07, allowed 1e-05: ok  (1,000 instructions)\n"
    assert read_vectors(line) == (1000, "2.4e-07")
    with pytest.raises(KilnError, match="no instructions were counted"):
        read_vectors("  vector a: max error 0 levels, allowed 1 levels: ok  (1.2 ms)\n")


def test_a_row() -> None:
    row = Measured("kws", "cortex_m4", 2_000_000, 2_500_000, 10, 20, 30, 40, None, "0 levels")
    assert row.cells() == [
        "kws", "cortex_m4", "2.000", "2.500", "–", "–", "10", "20", "–", "30", "40", "–", "0 levels", "–",
        "–",
    ]  # fmt: skip


def test_multiply_adds_of_a_loop() -> None:
    """The rows of 8 bytes that the inner of two loops writes are 80 bytes; the outer one writes none."""

    def step(label: str, macs: int | None = None, sizes: Sequence[int] = (), **more: Any) -> PlannedStep:
        args = [{"at": "arena", "offset": 0, "bytes": size} for size in sizes]
        return PlannedStep.model_validate({"kernel": "k", "label": label, "args": args, "macs": macs, **more})

    def mark(number: int, ends: bool) -> PlannedStep:
        return step("loop", 0, loop={"number": number, "ends": ends})

    inner = [mark(2, False), step("matmul", 5), step("loop_row", sizes=[8, 8, 80]), mark(2, True)]
    steps = [step("matmul", 7), mark(1, False), *inner, step("matmul", 3), mark(1, True)]
    assert multiply_adds(steps) == 7 + 5 * 10 + 3


def test_a_target_with_an_operating_system(tmp_path: Path) -> None:
    args = argparse.Namespace(target=["aarch64"], peer=list(PEERS))
    with pytest.raises(KilnError, match="--target 'aarch64': a freestanding target with an emulator"):
        run(args, ["micro_speech"], Folders(tmp_path, tmp_path), tmp_path)


def test_the_table_is_written_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(model: str, target: str, folders: Folders) -> Measured:
        if model == "stops":
            raise KeyboardInterrupt
        if model == "fails":
            raise KilnError("too large")
        return Measured(model, target, 2_000_000, instructions, 10, 20, 30, 40, None, "0 levels")

    monkeypatch.setattr(microcontrollers, "measured", measured)
    args = argparse.Namespace(target=["cortex_m4"], peer=list(PEERS), add=False)
    folders, instructions = Folders(tmp_path, tmp_path), 2_500_000
    with pytest.raises(KeyboardInterrupt):
        run(args, ["kws", "fails", "stops"], folders, tmp_path)
    table = (tmp_path / "microcontrollers.md").read_text()
    assert "| kws | cortex_m4 | 2.000 | 2.500 |" in table and "- fails on cortex_m4: too large\n" in table
    args.add, instructions = True, 1_500_000
    run(args, ["vww", "kws"], folders, tmp_path)
    lines = (tmp_path / "microcontrollers.md").read_text().splitlines()
    assert [line[:32] for line in lines if "cortex_m4 |" in line] == [
        "| kws | cortex_m4 | 2.000 | 1.50",
        "| vww | cortex_m4 | 2.000 | 1.50",
    ]
    with pytest.raises(KilnError, match="nothing could be measured"):
        run(args, ["fails"], folders, tmp_path)


def test_a_row_with_a_peer_and_patches() -> None:
    figures = (2_000_000, 2_500_000, 100, 200, 30, 40, 50, "0 levels", "3 levels", (20, 0.0751))
    own = Measured("kws", "cortex_m4", *figures)
    peer = tflm.Figures(5_000_000, 400, 250, 50, [])
    assert own.cells(peer, "1 levels") == [
        "kws", "cortex_m4", "2.000", "2.500", "5.000", "0.50", "100 / 400", "200 / 250", "50", "30", "40",
        "20 (+8 %)", "0 levels", "3 levels", "1 levels",
    ]  # fmt: skip
    # Patches that need no less are none.
    assert replace(own, patched=(30, 0.5)).cells(peer)[11] == "–"


def source_tree(folder: Path) -> Path:
    """Empty files where TFLM's sources would be, in the layout of separate clones."""
    for name in (
        "tflm/tensorflow/lite/micro/micro_interpreter.h", "flatbuffers/include/flatbuffers/flatbuffers.h",
        "gemmlowp/fixedpoint/fixedpoint.h", "ruy/ruy/profiler/instrumentation.h",
    ):  # fmt: skip
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    return folder


def test_where_the_peers_sources_lie(tmp_path: Path) -> None:
    with pytest.raises(KilnError, match=r"no such folder"):
        peer_sources([f"tflm={tmp_path / 'none'}"])
    with pytest.raises(KilnError, match=r"it contains no sources of tflite-micro \(a folder with tensorflow"):
        peer_sources([f"tflm={tmp_path}"])
    with pytest.raises(KilnError, match="microcontrollers have the peer tflm=DIR alone"):
        peer_sources(["litert"])
    assert peer_sources(PEERS) is None
    found = peer_sources([f"tflm={source_tree(tmp_path)}"])
    assert found is not None and found.root == tmp_path / "tflm"
    target = load_target("cortex_m4")
    assert not found.has_kernels(target) and "CMSIS-NN" not in found.description(target)
    (tmp_path / "cmsis/Include").mkdir(parents=True)
    (tmp_path / "cmsis/Include/arm_nnfunctions.h").touch()
    found = tflm_sources.find_sources(tmp_path)
    assert found.has_kernels(target) and not found.has_kernels(load_target("riscv32_imac"))


def test_kernels_of_the_operators_that_a_model_has(tmp_path: Path) -> None:
    kernels = {
        "add": "Register_ADD()", "add_common": "", "add_n": "Register_ADD_N()", "conv": "Register_CONV_2D()",
        "conv_common": "", "decode": "Register_DECODE()", "decode_state": "", "kernel_util": "",
        "conv_test": "", "conv_test_common": "",
    }  # fmt: skip
    for name, text in kernels.items():
        (tmp_path / f"{name}.cc").write_text(text)
    found = [path.stem for path in tflm_sources.kernels(tmp_path, ["ADD"])]
    assert found == ["add", "add_common", "kernel_util"]
    every = [path.stem for path in tflm_sources.kernels(tmp_path, None)]
    assert every == [name for name in sorted(kernels) if "test" not in name]


def test_the_resolver_methods_of_operators(tmp_path: Path) -> None:
    root = source_tree(tmp_path)
    (root / "tflm/tensorflow/lite/micro/micro_mutable_op_resolver.h").write_text(
        """  TfLiteStatus AddConv2D(
      const TFLMRegistration& registration = Register_CONV_2D()) {
    return AddBuiltin(BuiltinOperator_CONV_2D, registration, ParseConv2D);
  }
  TfLiteStatus AddCustom(const char* name) {
    return kTfLiteOk;
  }
  TfLiteStatus AddAbs() { return AddBuiltin(BuiltinOperator_ABS, Register_ABS(), ParseAbs); }
"""
    )
    assert tflm_sources.operator_methods(tflm_sources.find_sources(root)) == {
        "CONV_2D": "Conv2D",
        "ABS": "Abs",
    }


def test_differences_are_levels_or_numbers() -> None:
    def vector(value: np.ndarray) -> GoldenVector:
        return GoldenVector("a", [], [value], [])

    whole, real = np.array([1, -3], np.int8), np.array([0.5], np.float32)
    assert mcu_levels.difference([vector(whole)], [[whole + np.int8(2)]]) == "2 levels"
    assert mcu_levels.difference([vector(real)], [[real + np.float32(0.25)]]) == "0.25"
