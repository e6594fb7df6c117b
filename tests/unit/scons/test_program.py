"""The command line of programs for microcontrollers: program= and the options that it needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kiln.errors import KilnError
from kiln.scons.options import parse


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    transport = {"kind": "gdb", "address": "localhost:3333"}
    about = {"description": "a chip", "target": "armv7", "transport": transport}
    (tmp_path / "chip.yaml").write_text(json.dumps(about))
    (tmp_path / "it's $(a) program.elf").write_bytes(b"")
    return {"device": str(tmp_path / "chip.yaml"), "program": str(tmp_path / "it's $(a) program.elf")}


def test_what_is_done_with_a_program(given: dict[str, str]) -> None:
    options = parse({**given, "model": "resnet", "target": "x86_64"}, ["flash", "test"])
    assert options.program is not None and options.targets == options.models == []
    assert (options.program.path, options.program.goals) == (given["program"], ["flash", "test"])
    assert (options.program.model, options.program.target) == ("resnet", "x86_64")
    alone = parse(given, ["status"]).program
    assert alone is not None and (alone.model, alone.target) == (None, "armv7")


def test_what_cannot_be_done_with_one(given: dict[str, str]) -> None:
    for goal, message in (
        ("rollback", "keeps only the present program"),
        ("bench", "does not accept program=, allowed: flash, status, run, test"),
        ("bundle", "does not accept program="),
        ("test", "needs model=NAME, the model with the golden vectors"),
    ):
        with pytest.raises(KilnError, match=message):
            parse(given, [goal])
    with pytest.raises(KilnError, match=r"absent\.elf': no such file"):
        parse({**given, "program": "absent.elf"}, ["flash"])
    for goal in ("flash", "run"):
        with pytest.raises(KilnError, match="device=NAME"):
            parse({"program": given["program"], "target": "x86_64"}, [goal])
