"""Special steps for what an input holds: emitted, compiled, run; and what is refused of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_programs import run
from emitted import PAYLOAD, EmittedProgram, W, setting
from emitted_sizes import CASES, CASES_PRINT, MARK, case_plan
from kiln.emit import c_text
from kiln.emit.source import emit
from kiln.errors import KilnError
from kiln.plan.schema import parse_plan


@pytest.mark.slow
def test_the_content_chooses_the_steps(tmp_path: Path) -> None:
    project = EmittedProgram(tmp_path)
    header = project.add(case_plan())["tiny.h"]
    mark = tmp_path / "mark.c"
    mark.write_text(MARK)
    project.compile(mark)
    assert run([str(project.program(CASES))]) == CASES_PRINT
    assert isinstance(header, str)
    shown = "for Some when batch is 2..12 and batch is a multiple of 4 and x:0 is all zeros"
    assert f"4 Some_zeros: {shown}; arena of 96 bytes" in header
    assert "TINY_ARENA_BYTES_SOME_ZEROS" not in header


def test_an_input_that_equals_bytes(tmp_path: Path) -> None:
    """x of one row, w; and an empty x, whose data is null."""
    plan = case_plan()
    plan["dims"] = [{"name": "batch", "min": 0, "max": 12, "multiple": 1}]
    for bucket in (plan["buckets"][1], *plan["buckets"][3:]):
        bucket["dims"] = {"batch": {"min": 0, "max": 1}}
    project = EmittedProgram(tmp_path)
    project.add(plan)
    mark = tmp_path / "mark.c"
    mark.write_text(MARK)
    project.compile(mark)
    values = ", ".join(f"{value}f" for value in W.astype(float))
    body = f"""    static const float w[] = {{{values}}};
    try_it(1, w, 0);
    const int8_t shift = 0;
    float y;
    printf("%d ", tiny_run(&session, 0, NULL, &shift, NULL));
    puts(tiny.buckets[session.bucket].name);
    (void)x, (void)y;
    return 0;
"""
    program = CASES[: CASES.index("    try_it(4")].replace("static float x", "const float x") + body + "}\n"
    program = program.replace("x[TINY_INPUT_0_ELEMENTS]", "x[1] = {0}").replace("    float y;\n", "")
    program = program.replace("(void)x, (void)y", "(void)x")
    assert run([str(project.program(program))]) == "0 0 Some_w 1 102\n0 Some\n"


WHEN = ("buckets", 3, "when")
ONE = (*WHEN, "all", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (setting(*WHEN, "bucket", 3), "buckets[3].when.bucket: 3, allowed: an earlier bucket"),
        (setting("buckets", 4, "when", "bucket", 3), "buckets[4].when.bucket: 3, allowed: an earlier bucket"),
        (setting(*WHEN, "bucket", 0), "buckets[3].dims: other sizes, allowed: those of bucket 'two'"),
        (setting("buckets", 3, "arena_bytes", 97), "buckets[3].arena_bytes: 97, allowed: at most the 96 of"),
        (setting(*ONE, "input", 2), "buckets[3].when.all[0].input: 2, allowed: 0..1"),
        (setting(*ONE, "value", "twos"), "buckets[3].when.all[0].value: twos, allowed: zeros or ones"),
        (
            setting(*ONE, "value", {"offset": 70, "bytes": 8}),
            "when.all[0].value: bytes 70..78 of params, allowed",
        ),
        (
            setting(*ONE, "value", {"offset": 0, "bytes": 0}),
            "when.all[0].value: bytes 0..0 of params, allowed",
        ),
        (setting(*WHEN, "all", [{"input": 0}]), "key 'value' is missing"),
        (setting(*WHEN, "all", []), "buckets[3].when.all: 0 entries, allowed: at least 1"),
        (setting(*ONE, {"dim": "bath", "min": 1, "max": 1}), "when.all[0].dim: bath, allowed: batch"),
        (
            setting(*ONE, {"dim": "batch", "min": 2, "max": 1}),
            "when.all[0]: range: 2..1, allowed: min <= max",
        ),
        (
            setting(*ONE, {"dim": "batch", "multiple": 0}),
            "when.all[0].multiple: 0, allowed: greater than or equal to 1",
        ),
    ],
)
def test_a_case_that_cannot_be(change: Any, message: str) -> None:
    plan = case_plan()
    change(plan)
    with pytest.raises(KilnError) as raised:
        emit(parse_plan(plan), PAYLOAD)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_elements() -> None:
    for dtype in ("int8", "uint16", "int64", "float16", "float32", "float64", "bool"):
        for one in (False, True):
            assert np.frombuffer(c_text.element(dtype, one), dtype).tolist() == [one]
    # bfloat16 is the upper half of a float32
    assert np.frombuffer(bytes(2) + c_text.element("bfloat16", True), np.float32).tolist() == [1.0]
    assert c_text.element("bfloat16", False) == bytes(2)
