"""The simulation of builds on many workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kiln.errors import KilnError

from benchmarks.farm import Work, processor_seconds, read_stages, repeated, simulate


def test_builds_are_as_long_as_their_bound() -> None:
    chain = [Work(2, 0, (), True), Work(2, 1, (0,), True)]
    assert simulate(chain, 1, 0.0).seconds == simulate(chain, 9, 0.0).seconds == 5
    many = repeated(chain, 8)
    assert simulate(many, 1, 0.0).seconds == 40
    assert simulate(many, 4, 0.0).seconds == 10
    assert (simulate(many, 8, 0.0).seconds, simulate(many, 8, 0.0).bound) == (5, "longest chain")
    assert simulate(many, 64, 1.0).bound == "build's process"
    assert simulate(many, 64, 1.0).seconds >= 16
    here = repeated([Work(3, 5, (), False)], 4)
    assert simulate(here, 4, 0.0).seconds == 12


def test_stages_are_read_with_their_order(tmp_path: Path) -> None:
    file = tmp_path / "times.jsonl"
    records = [
        {"seconds": 1, "shared": True, "inputs": {}, "outputs": ["build/in", "build/in/a"]},
        {"seconds": 2, "shared": False, "inputs": {"build/in/a": 117, "x": 117}, "outputs": ["out"]},
    ]
    file.write_text("".join(json.dumps(one) + "\n" for one in records))
    file.open("a").write('{"processor": 1.5}\n')
    first, second = read_stages(file)
    assert processor_seconds(file) == 1.5
    assert (first.after, second.after, second.shared) == ((), (0,), False)
    assert second.transfer == pytest.approx(2e-6)
    file.write_text("[]\n")
    with pytest.raises(KilnError, match="not a file that KILN_STAGE_TIMES named"):
        read_stages(file)
