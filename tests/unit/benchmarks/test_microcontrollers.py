"""What the benchmark of microcontrollers reads from the output of `test`."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from kiln.errors import KilnError

from benchmarks.contenders import Folders
from benchmarks.microcontrollers import Measured, read_vectors, run

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
        "kws", "cortex_m4", "2.000", "2.500", "1.25", "10", "20", "30", "40", "–", "0 levels",
    ]  # fmt: skip


def test_a_target_with_an_operating_system(tmp_path: Path) -> None:
    args = argparse.Namespace(target=["aarch64"])
    with pytest.raises(KilnError, match="--target 'aarch64': a freestanding target with an emulator"):
        run(args, ["micro_speech"], Folders(tmp_path, tmp_path), tmp_path)
