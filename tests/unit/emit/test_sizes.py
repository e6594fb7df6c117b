"""Sizes that follow from dimensions: as C, on axes, as extents and as arguments; and what is refused."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from c_programs import WARNINGS, need, run
from emitted import PAYLOAD, EmittedProgram, setting
from emitted_sizes import DERIVED, DERIVED_PRINTS, derived_plan
from kiln.config import sizes
from kiln.emit.headers import include_flags
from kiln.emit.size_code import INT32_MAX, SizeCode, size_bounds
from kiln.emit.source import emit
from kiln.errors import KilnError
from kiln.plan.schema import parse_plan

BOX = {"n": (1, 12), "m": (0, 7)}
EXPRESSIONS: list[sizes.SizeExpr] = [
    7,
    "n",
    ["+", ["*", "n", 3], "m"],
    ["*", ["+", "n", 3], ["-", 9, "m"]],
    ["-", "n", ["-", "n", "m"]],
    ["//", ["+", "n", 7], 8],
    ["%", ["+", "n", "m"], 5],
    ["//", ["-", "m", "n"], 4],
    ["%", ["-", "m", "n"], 4],
    ["//", ["*", "m", 100], "n"],
    ["%", ["-", ["*", "m", 9], 20], "n"],
    ["min", "n", ["max", "m", ["*", 2, ["min", "n", 4]]]],
    ["max", ["-", "m", "n"], -2],
]


def test_the_same_value_in_c(tmp_path: Path) -> None:
    """Every expression at every size, computed in C and here; the bounds hold each of them."""
    code = SizeCode({"n": "n", "m": "m"}, BOX)
    values = [code.value(expr, "test") for expr in EXPRESSIONS]
    body = "\n".join([*code.lines, *(f'printf("%d ", (int)({value}));' for value in values)])
    source = tmp_path / "sizes.c"
    source.write_text(f"""#include <stdio.h>
#include "kiln.h"
int main(void) {{
    for (int32_t n = 1; n <= 12; n++)
        for (int32_t m = 0; m <= 7; m++) {{ {body} puts(""); }}
}}
""")
    gcc = [need("gcc"), *WARNINGS, *include_flags(), "-fsanitize=undefined"]
    run([*gcc, str(source), "-o", str(tmp_path / "sizes")])
    lines = run([str(tmp_path / "sizes")]).splitlines()
    for (n, m), line in zip(itertools.product(range(1, 13), range(8)), lines, strict=True):
        expected = [sizes.evaluate(expr, {"n": n, "m": m}) for expr in EXPRESSIONS]
        assert [int(word) for word in line.split()] == expected
        for expr, value in zip(EXPRESSIONS, expected, strict=True):
            low, high = size_bounds(expr, BOX, "test")
            assert low <= value <= high


def test_text_stays_as_long_as_the_expression() -> None:
    expr: sizes.SizeExpr = "n"
    for depth in range(100):
        expr = ["min" if depth % 2 else "max", ["+", expr, 1], ["-", 200, "m"]]
    code = SizeCode({"n": "n", "m": "m"}, BOX)
    assert len(code.value(expr, "test")) + sum(map(len, code.lines)) < 100 * 100


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (["*", "n", 2**28], "n * 268435456: 268435456..3221225472, allowed -2147483647..2147483647"),
        (["//", ["*", "n", INT32_MAX], 2**20], "n * 2147483647: 2147483647..25769803764, allowed"),
        (["//", 100, "m"], "100 // m: divisor from 0, allowed from 1"),
        (["min", 3, ["%", 100, ["-", "m", 3]]], "100 % (m - 3): divisor from -3, allowed from 1"),
        (["+", "n", "seq"], "dimension 'seq', allowed: n, m"),
    ],
)
def test_an_expression_that_cannot_be(expr: sizes.SizeExpr, message: str) -> None:
    with pytest.raises(KilnError) as raised:
        size_bounds(expr, BOX, "place")
    assert str(raised.value).startswith("plan.json: place: ") and message in str(raised.value)


def test_a_model_with_computed_axes(tmp_path: Path) -> None:
    project = EmittedProgram(tmp_path)
    header = project.add(derived_plan())["tiny.h"]
    program = project.program(DERIVED)
    assert run([str(program)]).splitlines() == DERIVED_PRINTS
    assert isinstance(header, str)
    assert "float (batch + batch % 4, 3) NC" in header.replace("y: ", "")


STEP = ("buckets", 0, "steps", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            setting("inputs", 0, "shape", 0, ["+", "batch", 1]),
            "dims 'batch': in expressions only, allowed: on",
        ),
        (
            setting("inputs", 1, "shape", [["//", "batch", 0]]),
            "'zero': batch // 0: divisor from 0, allowed from 1",
        ),
        (setting("outputs", 0, "shape", 0, ["*", "batch", 2**30]), "'y': batch * 1073741824: 2147483648.."),
        (
            setting("outputs", 0, "shape", [["*", "batch", n] for n in range(2, 18)]),
            "dims: 18 with those computed",
        ),
        (setting("outputs", 0, "shape", 0, ["?", 1, 2]), "outputs[0].shape[0]: size ['?', 1, 2]: a number"),
        (setting(*STEP, "extent", ["-", 1, 1]), "buckets[0].steps[0].extent: 0, allowed: 1..2147483647"),
        (setting(*STEP, "extent", ["*", "batch", 2**30]), "buckets[0].steps[0].extent: batch * 1073741824"),
    ],
)
def test_a_plan_that_cannot_be(change: Any, message: str) -> None:
    plan = derived_plan()
    change(plan)
    with pytest.raises(KilnError) as raised:
        emit(parse_plan(plan), PAYLOAD)
    assert message in str(raised.value) and "\n" not in str(raised.value)
