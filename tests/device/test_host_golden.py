"""device-test on this machine: a right bundle passes, and each kind of fault is found and told."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path

import pytest

from . import tiny
from .conftest import MadeBundle, Maker

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="gcc makes programs of this machine's own kind"
)

SCALE = tiny.KERNELS.split("void tiny_square", maxsplit=1)[0]
SQUARE = "void tiny_square" + tiny.KERNELS.split("void tiny_square")[1]
SIGNATURE = "void tiny_square(const float *t, float *workspace, float *y) {\n"


def right(make: Maker, storage: str = "embedded") -> MadeBundle:
    target = tiny.gcc_target if storage == "section" else tiny.base_target  # a compiler of the user's own
    return make(target("x86_64_v2"), storage)


@pytest.mark.parametrize("storage", ["embedded", "section", "file"])
def test_a_right_bundle_passes(make: Maker, storage: str) -> None:
    bundle = right(make, storage)
    done = bundle.test()
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "tiny on x86_64_v2 (host CPU)"
    assert lines[1].startswith("  vector random1: max error 0, allowed ")
    assert lines[2].startswith("  vector random2: max error 0, allowed ")
    checks = bundle.results()["checks"]
    assert (
        lines[3] == f"  {len(checks)} of {len(checks)} checks of repeated runs, guards and wrong arguments ok"
    )
    statuses = {check["text"].split(":")[0] for check in checks if check["text"]}
    expected = {
        "KILN_NULL_ARGUMENT",
        "KILN_NOT_OPEN",
        "KILN_NOT_RUNNING",
        "KILN_NULL_DATA",
        "KILN_BAD_RANK",
        "KILN_BAD_DTYPE",
        "KILN_BAD_SHAPE",
        "KILN_BAD_STRIDES",
        "KILN_BAD_DEVICE",
        "KILN_BAD_OFFSET",
        "KILN_BAD_ALIGNMENT",
        "KILN_OVERLAP",
        "KILN_ARENA_NULL",
        "KILN_ARENA_ALIGNMENT",
        "KILN_ARENA_TOO_SMALL",
        "KILN_PARAMS_ALIGNMENT",
        "KILN_PARAMS_TRUNCATED",
        "KILN_PARAMS_NOT_PARAMS",
        "KILN_PARAMS_VERSION",
        "KILN_PARAMS_OTHER_BUILD",
        "KILN_PARAMS_CORRUPT",
    }
    assert statuses == expected | ({"KILN_PARAMS_MISSING"} if storage == "file" else set())
    text_of_check = {check["name"]: check["text"] for check in checks}
    assert text_of_check["one too many of x axis 0"] == "KILN_BAD_SHAPE: x axis 0: 3, allowed 2"


@pytest.mark.parametrize(
    ("kernels", "fault"),
    [
        (SCALE + SQUARE.replace("+ 1.0f", "+ 1.1f"), "vector random1, output y: 6 of 6 elements differ"),
        (SCALE + SQUARE.replace("\n}\n", "\n    workspace[6] = 0;\n}\n"), "guards around arena"),
        (SCALE + SQUARE.replace("\n}\n", "\n    workspace[-17] = 0;\n}\n"), "guards around arena"),
        (SCALE + SQUARE.replace("\n}\n", "\n    y[6] = 0;\n}\n"), "guards around arena"),
        (SCALE + SQUARE.replace("\n}\n", "\n    y[0] += workspace[-9] * 1e-20f;\n}\n"), "same bytes"),
        (SCALE.replace("= x[", "= ((float *)x)[0] = x[") + SQUARE, "inputs unchanged"),
        (
            SCALE.replace("int32_t end) {", "int32_t end) {\n    if (end - begin < 2) t[0] = 1e9f;") + SQUARE,
            # or earlier: whether a worker takes a task of a vector is left to chance
            "same bytes after errors, on several threads|vector random., output y: 1 of 6 elements differ",
        ),
    ],
    ids=["value", "beyond arena", "before arena", "beyond output", "garbage", "input", "threads"],
)
def test_a_fault_is_found(make: Maker, kernels: str, fault: str) -> None:
    assert kernels != tiny.KERNELS
    bundle = make(tiny.base_target("x86_64_v2"), kernels=kernels)
    (bundle.folder / "test.json").write_text("of an earlier build")
    done = bundle.test()
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("kiln: test failed: tiny on x86_64_v2: ") and re.search(
        fault, done.stdout + done.stderr
    )
    assert "FAILED" in done.stdout
    assert not (bundle.folder / "test.json").exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "for (;;) workspace[0] = *(volatile const float *)t;",
            "its limit of 2 s and was stopped; allow more with the model's key 'limits.program_seconds'",
        ),
        ("*(volatile int *)16 = 0;", "killed by SIGSEGV"),
        ("__builtin_trap();", "killed by SIGILL"),
    ],
)
def test_a_program_that_does_not_end_well(make: Maker, body: str, message: str) -> None:
    bundle = make(tiny.base_target("x86_64_v2"), kernels=SCALE + SIGNATURE + body + "\n}\n")
    done = bundle.test("--timeout", "2")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and message in done.stderr


def test_a_tolerance_is_taken_and_nothing_is_compiled_for_it(make: Maker) -> None:
    bundle = make(tiny.base_target("x86_64_v2"), kernels=SCALE + SQUARE.replace("+ 1.0f", "+ 1.001f"))
    assert bundle.test().returncode == 1
    programs = sorted((bundle.folder / "work").iterdir())
    stamps = [path.stat().st_mtime_ns for path in programs]
    loose = bundle.folder / "tolerance.json"
    loose.write_text(json.dumps({"name": "tiny", "tolerance": {"absolute": 0.1, "outputs": {}}}))
    done = bundle.test("--tolerance", str(loose))
    assert done.returncode == 0, done.stderr
    assert sorted((bundle.folder / "work").iterdir()) == programs
    assert [path.stat().st_mtime_ns for path in programs] == stamps
    error = bundle.results()["vectors"][0]["outputs"][0]
    assert 0 < error["error"] < error["limit"]


def test_results_hold_no_times(make: Maker) -> None:
    bundle = right(make)
    assert bundle.test().returncode == 0
    first = (bundle.folder / "test.json").read_bytes()
    assert bundle.test().returncode == 0
    assert (bundle.folder / "test.json").read_bytes() == first


@pytest.mark.parametrize("name", ["random1.output0.bin", "golden.json"])
def test_damaged_vectors(make: Maker, name: str) -> None:
    bundle = right(make)
    path = bundle.bundle / "golden" / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    try:
        done = bundle.test()
    finally:
        path.write_bytes(content)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and name in done.stderr


def test_a_folder_that_is_no_bundle(make: Maker, tmp_path: Path) -> None:
    bundle = right(make)
    done = MadeBundle(tmp_path, bundle.target, tmp_path).test()
    assert done.returncode == 2
    assert done.stderr == f"kiln: error: {tmp_path}: not a bundle: 0 libraries in lib/, 1 expected\n"


def test_a_missing_compiler(make: Maker, tmp_path: Path) -> None:
    bundle = right(make)
    compiler = bundle.target.c_compiler.model_copy(update={"command": ["gcc-of-nowhere"]})
    target = bundle.target.model_copy(update={"c_compiler": compiler})
    done = MadeBundle(bundle.bundle, target, tmp_path).test()
    assert done.returncode == 2
    assert done.stderr == (
        "kiln: error: target 'x86_64_v2': C compiler 'gcc-of-nowhere' is not installed (key 'c_compiler')\n"
    )
