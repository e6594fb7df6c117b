"""Generated source: compiled by C and C++ compilers, linked with kernels in C, run, and its errors."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from c_programs import need, run
from emitted import PAYLOAD, EmittedProgram, Plan, W, make_plan
from kiln.__main__ import main
from kiln.emit.headers import dlpack_h, kiln_h
from kiln.emit.source import emit
from kiln.plan.schema import parse_plan
from kiln.runtime.structs import ABI

pytestmark = pytest.mark.slow

USE = """
#include <stdio.h>
#include "tiny.h"
int main(int count, char **arguments) {
    alignas(64) static unsigned char arena[TINY_ARENA_BYTES];
    static float x[TINY_INPUT_0_ELEMENTS], y[TINY_OUTPUT_0_ELEMENTS];
    static const int8_t shift = 5;
    kiln_config config = {};
    kiln_session session;
    kiln_pool pool;
    char text[200];
    config.arena = arena;
    config.arena_bytes = sizeof arena;
    config.pool = &pool;
    if (count > 1 && kiln_map_params(arguments[1], &config.params, &config.params_bytes) != KILN_OK)
        return 7;
    if (kiln_pool_open(&pool, 2) != KILN_OK)
        return 8;
    for (int i = 0; i < 36; i++)
        x[i] = (float)i;
    kiln_status status = kiln_open(&session, &tiny, &config);
    for (int64_t batch = 1; status == KILN_OK && batch <= 13; batch++) {
        kiln_plan_result plan = {};
        const kiln_status planned = tiny_plan(batch, &plan, nullptr);
        const kiln_status ran = tiny_run(&session, batch, x, &shift, y);
        if (ran == KILN_OK) {
            printf("%d: bucket %u arena %zu", (int)batch, plan.bucket, plan.arena_bytes);
            for (int i = 0; i < 3 * (int)batch; i++)
                printf(" %g", (double)y[i]);
            printf("\\n");
        } else {
            kiln_detail_text(kiln_error(&session), text, sizeof text);
            printf("%d: %d %s\\n", (int)batch, planned == ran, text);
        }
    }
    if (status != KILN_OK) {
        kiln_detail_text(kiln_error(&session), text, sizeof text);
        printf("%s\\n", text);
    }
    printf("%s %s\\n", tiny_step_label(2, 0), tiny_step_label(2, 2) == nullptr ? "none" : "some");
    printf("%s %g %d\\n", TINY_INPUT_1_NAME, (double)TINY_INPUT_1_SCALE, TINY_INPUT_1_ZERO_POINT);
    kiln_pool_close(&pool);
    return 0;
}
"""
USE_C = USE.replace("alignas", "_Alignas").replace("= {}", "= {0}").replace("nullptr", "NULL")


def expected_output() -> list[str]:
    """The lines that the program USE prints if the model is right."""
    lines = []
    for batch in range(1, 14):
        if not 2 <= batch <= 12 or batch % 2:
            lines.append(f"{batch}: 1 x:0 axis 0: {batch}, allowed multiples of 2 in 2..12")
        elif batch == 12:
            lines.append("12: 1 batch: 12, served by no bucket; nearest size served: 10")
        else:
            bucket = 0 if batch == 2 else 2 if batch == 10 else 1
            values = 2 * (np.arange(3 * batch, dtype=np.float32).reshape(batch, 3) * W + 5)
            numbers = " ".join(f"{value:g}" for value in values.ravel())
            lines.append(f"{batch}: bucket {bucket} arena {(24, 96, 120)[bucket]} {numbers}")
    return [*lines, 'a "scale" */ ?\\ none', "zero 0.1 -3"]


@pytest.mark.parametrize(
    ("storage", "threads", "language", "compiler"),
    [
        ("embedded", "pthread", "c", "clang"),
        ("section", "none", "c++", "gcc"),
        ("file", "pthread", "c++", "gcc"),
    ],
)
def test_results_and_errors(storage: str, threads: str, language: str, compiler: str, tmp_path: Path) -> None:
    project = EmittedProgram(tmp_path, threads)
    project.add(make_plan(storage=storage, threads=threads), compiler=compiler)
    program = project.program(USE if language == "c++" else USE_C, language)
    params = [str(tmp_path / "source-tiny" / "params.bin")] if storage == "file" else []
    assert run([str(program), *params]).splitlines() == expected_output()


def test_params_of_another_build_are_refused(tmp_path: Path) -> None:
    project = EmittedProgram(tmp_path)
    project.add(make_plan(storage="file"))
    other = {**make_plan(storage="file"), "model_hash": "0" * 64}
    (tmp_path / "other.bin").write_bytes(emit(parse_plan(other), PAYLOAD)["params.bin"])  # type: ignore[arg-type]
    program = project.program(USE_C)
    assert run([str(program), str(tmp_path / "other.bin")]).startswith(
        "params: made by another build than the code"
    )
    assert run([str(program)]).startswith(
        "params: missing: this model keeps its parameters in a file of their own"
    )


def test_section_has_the_name_asked_for(tmp_path: Path) -> None:
    plan = make_plan(storage="section")
    plan["params"]["section"] = ".qspi.weights"
    project = EmittedProgram(tmp_path)
    project.add(plan)
    assert ".qspi.weights" in run([need("readelf"), "-SW", str(tmp_path / "source-tiny" / "p.o")])


def test_two_models_in_one_image_share_an_arena(tmp_path: Path) -> None:
    project = EmittedProgram(tmp_path)
    project.add(make_plan("tiny"))
    project.add(make_plan("huge", "file"), bytes(64) + (W * 10).tobytes())
    text = """
#include <stdio.h>
#include "tiny.h"
#include "huge.h"
int main(int count, char **arguments) {
    static _Alignas(TINY_ARENA_ALIGN) unsigned char arena[TINY_ARENA_BYTES];
    _Static_assert(TINY_ARENA_BYTES >= HUGE_ARENA_BYTES, "large enough for both");
    kiln_config config = {.arena = arena, .arena_bytes = sizeof arena};
    kiln_session one, two;
    const float x[6] = {1, 1, 1, 2, 2, 2};
    float y[6], z[6];
    const int8_t shift = 0;
    if (count != 2 || kiln_open(&one, &tiny, &config) != KILN_OK)
        return 1;
    if (kiln_map_params(arguments[1], &config.params, &config.params_bytes) != KILN_OK)
        return 2;
    if (kiln_open(&two, &huge, &config) != KILN_OK)
        return 3;
    if (tiny_run(&two, 2, x, &shift, y) != KILN_WRONG_MODEL)
        return 4;
    if (huge_run(NULL, 2, x, &shift, y) != KILN_NULL_ARGUMENT)
        return 4;
    if (tiny_run(&one, 2, x, &shift, y) != KILN_OK || huge_run(&two, 2, x, &shift, z) != KILN_OK)
        return 5;
    for (int i = 0; i < 6; i++)
        printf("%g %g ", (double)y[i], (double)z[i]);
    return 0;
}
"""
    program = project.program(text)
    output = run([str(program), str(tmp_path / "source-huge" / "params.bin")])
    assert output.split() == ["6", "60", "-4", "-40", "2", "20", "12", "120", "-8", "-80", "4", "40"]


def static_plan(storage: str) -> Plan:
    """The model of `make_plan` with a fixed batch, without symbolic dimensions."""
    plan = make_plan(storage=storage)
    plan["dims"] = [{"name": "batch", "min": 2, "max": 2, "multiple": 1}]
    for port in (*plan["inputs"], *plan["outputs"]):
        port["shape"] = [2 if size == "batch" else size for size in port["shape"]]
    plan["buckets"] = plan["buckets"][:1]
    for step in plan["buckets"][0]["steps"]:
        step["extent"] = 2
        step["args"] = [arg for arg in step["args"] if arg["at"] != "dim"]
    plan["kernels"][1]["args"].pop()
    return plan


@pytest.mark.parametrize(
    ("storage", "symbolic"),
    [
        ("embedded", True),
        ("file", False),
        pytest.param("embedded", False, marks=pytest.mark.heavy),
        pytest.param("file", True, marks=pytest.mark.heavy),
    ],
)
def test_the_example_in_the_header_compiles_and_runs(storage: str, symbolic: bool, tmp_path: Path) -> None:
    plan = make_plan(storage=storage) if symbolic else static_plan(storage)
    if symbolic:  # the example takes the greatest sizes
        plan["buckets"][2].update(dims={"batch": 12}, arena_bytes=144)
    project = EmittedProgram(tmp_path)
    header = project.add(plan)["tiny.h"]
    if not symbolic:  # its kernel reads two batches
        kernels = tmp_path / "source-tiny" / "kernels.c"
        kernels.write_text(kernels.read_text().replace(", int64_t n) {", ") { const int64_t n = 2;"))
        project.objects.pop()
        project.compile(kernels)
    assert isinstance(header, str)
    example = re.search(r" \* Example:\n \*\n(.*?)\n \*\n \* After", header, re.DOTALL)
    assert example is not None
    lines = [line[3:].removeprefix("    ") for line in example[1].splitlines()]
    body = lines[lines.index("int main(void) {") + 1 : lines.index("}")]
    assert len(body) <= 10
    program = project.program("\n".join(lines) + "\n")
    run([str(program)], tmp_path / "source-tiny")


@pytest.mark.parametrize("model_is_newer", [True, False])
def test_headers_of_two_versions_are_not_mixed(model_is_newer: bool, tmp_path: Path) -> None:
    """A program's kiln.h may be of an earlier bundle, with structures of another size."""
    header = emit(parse_plan(make_plan()), PAYLOAD)["tiny.h"]
    assert isinstance(header, str)
    number = ABI - 1 if model_is_newer else ABI + 1
    (tmp_path / "tiny.h").write_text(header)
    (tmp_path / "dlpack.h").write_text(dlpack_h().read_text())
    command = [need("cc"), "-fsyntax-only", "-x", "c", str(tmp_path / "tiny.h")]
    (tmp_path / "kiln.h").write_text(kiln_h().read_text())
    assert subprocess.run(command, check=False).returncode == 0
    (tmp_path / "kiln.h").write_text(
        re.sub(r"(define KILN_ABI +)\d+", rf"\g<1>{number}", kiln_h().read_text())
    )
    refused = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "kiln.h is of another version of Kiln than tiny.h" in refused.stderr


def test_a_single_threaded_plan_names_no_pool() -> None:
    text = emit(parse_plan(make_plan(threads="none")), PAYLOAD)["tiny_plan.c"]
    assert isinstance(text, str)
    assert "kiln_parallel" not in text
    assert "0, (int32_t)frame->dims[0]" in text


def test_same_plan_same_bytes() -> None:
    assert emit(parse_plan(make_plan()), PAYLOAD) == emit(parse_plan(make_plan()), PAYLOAD)


def test_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(make_plan()))
    stage = ["emit-source", "--plan", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(stage) == 2
    told = f"kiln: error: {tmp_path}/params.raw: cannot read: No such file or directory\n"
    assert capsys.readouterr() == ("", told)
    assert not (tmp_path / "out").exists()
    (tmp_path / "params.raw").write_bytes(PAYLOAD)
    assert main(stage) == 0
    assert (tmp_path / "out" / "params.bin").read_bytes() == emit(parse_plan(make_plan()), PAYLOAD)[
        "params.bin"
    ]
