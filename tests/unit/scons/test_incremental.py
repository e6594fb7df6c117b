"""Stages that run again after a change, and stages that do not: all are stand-ins (scons_project.py)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from unit.scons_project import RESNET, StandInProject

pytestmark = pytest.mark.slow


def test_a_second_build_runs_and_imports_nothing_that_only_stages_need(built: StandInProject) -> None:
    """A build without work takes a fraction of a second only if it imports none of these."""
    again = built.scons(*RESNET, PYTHONPROFILEIMPORTTIME="1")
    assert again.returncode == 0 and built.ran() == []
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in again.stderr.splitlines()}
    assert {"SCons", "kiln"} <= imported
    assert imported & {"tvm", "tvm_ffi", "numpy", "onnx", "onnxruntime", "ai_edge_litert"} == set()


def test_a_touched_tolerance_compiles_nothing(built: StandInProject) -> None:
    built.build(*RESNET, "test")
    built.edit("models/resnet.yaml", "tolerance: {levels: 1}", "tolerance: {levels: 2}")
    assert built.build(*RESNET, "test") == [
        "bundle build/aarch64/resnet",
        "device-test build/.stages/aarch64/resnet/test.json",
        "limits build/.stages/models/resnet/limits.json",
        "report build/.stages/aarch64/resnet/report.html",
    ]


@pytest.mark.parametrize("goal", ["test", "size"])
def test_limits_are_checked_before_anything_is_lowered(built: StandInProject, goal: str) -> None:
    """With `size` too, whose result does not depend on them."""
    shutil.rmtree(built.folder / "build")
    lines = built.scons(*RESNET, goal, "-n").stdout.splitlines()
    order = [line.rpartition(": ")[2] for line in lines if line.startswith("kiln: would run")]
    assert order.index("import") < order.index("limits") < order.index("simplify") < order.index("lower")


def test_a_target_flag_compiles_for_that_target_only(built: StandInProject) -> None:
    both = ("target=aarch64,armv7", "model=resnet")
    built.build(*both)
    built.edit("targets/armv7.yaml", "flags: [", "flags: [-DTOUCHED, ")
    ran = built.build(*both)
    assert [stage for stage in ran if "armv7" not in stage] == []
    assert "compile build/.stages/armv7/resnet/compiled" in ran
    assert "compile build/.stages/armv7/runtime-pthread" in ran


@pytest.mark.heavy
def test_models_share_the_runtime_and_targets_share_the_import(built: StandInProject) -> None:
    shutil.rmtree(built.folder / "build")
    ran = built.build("target=aarch64,armv7", "model=resnet,blazeface")
    runtimes = [stage for stage in ran if "/runtime-" in stage]
    assert runtimes == [f"compile build/.stages/{target}/runtime-pthread" for target in ("aarch64", "armv7")]
    assert len([stage for stage in ran if stage.startswith("import")]) == 2


def test_a_comment_in_a_yaml_makes_nothing_anew(built: StandInProject) -> None:
    built.edit("models/resnet.yaml", "tolerance:", "# only a comment\ntolerance:")
    built.edit("targets/aarch64.yaml", "arch:", "# only a comment\narch:")
    assert built.build(*RESNET) == []


def test_a_stages_own_source_counts(built: StandInProject) -> None:
    path = built.folder / "build_tools/kiln/plan/stage.py"
    path.write_text(path.read_text() + "# changed\n")
    ran = built.build(*RESNET)
    # Its outputs came out as they were, so nothing after it had to run.
    assert ran == ["plan build/.stages/aarch64/resnet/plan"]


def test_a_runtime_source_counts(built: StandInProject) -> None:
    header = built.folder / "runtime_c/include/kiln.h"
    header.write_text(header.read_text() + "/* changed */\n")
    ran = built.build(*RESNET)
    assert [stage.split()[0] for stage in ran if stage.startswith("compile")] == ["compile", "compile"]
    assert [stage for stage in ran if stage.split()[0] in ("import", "lower", "plan")] == []


@pytest.mark.parametrize(
    "lost",
    [
        "aarch64/resnet/golden/golden.json",
        "aarch64/resnet.tar.gz",
        ".stages/aarch64/resnet/objects/two.o",
        pytest.param("aarch64/resnet/manifest.json", marks=pytest.mark.heavy),
        pytest.param(".stages/models/resnet/golden/a.bin", marks=pytest.mark.heavy),
        pytest.param(".stages/aarch64/resnet/plan/params.raw", marks=pytest.mark.heavy),
    ],
)
def test_a_lost_file_is_made_again(built: StandInProject, lost: str) -> None:
    before = built.bundle_digest("aarch64/resnet")
    path = built.folder / "build" / lost
    path.unlink()
    assert built.build(*RESNET) != []
    assert path.exists()
    assert built.bundle_digest("aarch64/resnet") == before


def test_damaged_files_are_made_again(built: StandInProject) -> None:
    """A byte that changed is noticed; what a command rewrites, such as an archive that it signs, stays."""
    before = built.bundle_digest("aarch64/resnet")
    names = {
        ".stages/models/resnet/import/interface.json": "import",
        ".stages/models/resnet/golden/a.bin": "golden",
        ".stages/aarch64/resnet/objects.list.json": "emit-objects",
        ".stages/models/resnet/import.json": "",
        "aarch64/resnet/lib/libresnet.a": "bundle",
    }
    for number, name in enumerate(names):
        path = built.folder / "build" / name
        content = path.read_bytes()
        path.write_bytes([b"", content[: len(content) // 2], bytes(len(content))][number % 3])
    assert built.scons(*RESNET, "-q").returncode == 1
    done = built.scons(*RESNET)
    assert done.returncode == 0
    assert {line.split()[0] for line in built.ran()} == {name for name in names.values() if name}
    told = [line.partition(": changed")[0] for line in done.stderr.splitlines()]
    assert sorted(told) == sorted(f"kiln: warning: build/{name}" for name in names)
    assert built.bundle_digest("aarch64/resnet") == before and built.build(*RESNET) == []
    archive = built.folder / "build/aarch64/resnet.tar.gz"
    archive.write_bytes(b"signed")
    assert built.build(*RESNET) == [] and archive.read_bytes() == b"signed"
    for name in ("journal", "models/resnet/golden.list.json"):
        path = built.folder / "build/.stages" / name
        path.unlink(missing_ok=True)
        path.mkdir()
        line = f"kiln: error: build/.stages/{name}: a folder, where the build writes a file: remove it\n"
        assert built.scons(*RESNET).stderr == line
        path.rmdir()


def test_dump_adds_the_dumps_and_changes_nothing_else(built: StandInProject) -> None:
    before = built.bundle_digest("aarch64/resnet")
    ran = built.build(*RESNET, "dump=1")
    assert [stage.split()[0] for stage in ran] == ["lower", "simplify"]
    assert (built.folder / "build/.stages/aarch64/resnet/dump/lower/dump.txt").exists()
    assert built.build(*RESNET, "dump=1") == []
    assert built.build(*RESNET) == []
    assert built.bundle_digest("aarch64/resnet") == before


@pytest.mark.heavy
def test_parallel_builds_give_the_same_bundles(built: StandInProject, tmp_path: Path) -> None:
    several = ("target=aarch64,armv7", "model=resnet,blazeface")
    shutil.rmtree(built.folder / "build")
    built.build(*several, "-j2")
    other = StandInProject(tmp_path)
    other.build(*several)
    for bundle in ("aarch64/resnet", "armv7/resnet", "aarch64/blazeface", "armv7/blazeface"):
        assert built.bundle_digest(bundle) == other.bundle_digest(bundle)


@pytest.mark.heavy
def test_run_and_size_print_each_time_and_test_says_that_it_passed(built: StandInProject) -> None:
    built.build(*RESNET, "run", "size", "test")
    for goal, spoken in (
        ("run", "device-run speaks"),
        ("size", "size speaks"),
        ("test", "passed before, unchanged"),
    ):
        assert spoken in built.scons(*RESNET, goal).stdout


def test_a_file_as_model(built: StandInProject) -> None:
    (built.folder / "My Net.onnx").write_text("one")
    bundle = ("target=aarch64", "model=My Net.onnx")
    built.build(*bundle)
    assert (built.folder / "build/aarch64/my_net/manifest.json").exists()
    (built.folder / "My Net.onnx").write_text("two")
    assert "fetch build/.stages/models/my_net/source.onnx" in built.build(*bundle)


@pytest.mark.heavy
def test_two_changes_within_a_second_are_two(built: StandInProject) -> None:
    model, second = built.folder / "net.onnx", 1_700_000_000 * 10**9
    for nanoseconds, content in ((1, "one"), (500_000_000, "two"), (900_000_000, "one")):
        model.write_text(content)
        os.utime(model, ns=(second, second + nanoseconds))
        ran = built.build("target=aarch64", "model=net.onnx")
        assert "fetch build/.stages/models/net/source.onnx" in ran, content
    assert built.build("target=aarch64", "model=net.onnx") == []


def test_a_damaged_file_of_signatures_is_made_again(built: StandInProject) -> None:
    (built.folder / "build/.stages/signatures.json").write_text("{")
    assert built.build(*RESNET) == []


def test_clean_removes_what_was_built(built: StandInProject) -> None:
    built.scons(*RESNET, "-c")
    left = [path for path in (built.folder / "build").rglob("*") if path.is_file()]
    assert [path for path in left if ".stages" not in path.parts] == []
    assert len(built.build(*RESNET)) == 16


def test_another_bucket_builds_itself_and_no_other(built: StandInProject) -> None:
    dims = "dims: {n: {min: 1, max: 8, buckets: [1]}}\n"
    built.edit("models/resnet.yaml", "tolerance:", f"{dims}tolerance:")
    first = built.build(*RESNET)
    assert "lower build/.stages/aarch64/resnet/buckets/n1/lower" in first
    assert "import build/.stages/models/resnet/buckets/dynamic/import" in first
    built.edit("models/resnet.yaml", "[1]}}", "[1, {pad: 4}]}}")
    ran = built.build(*RESNET)
    assert [stage for stage in ran if "/buckets/" in stage and "/n_pad4/" not in stage] == []
    assert [stage.split()[0] for stage in ran if "/n_pad4/" in stage] == [
        "import", "lower", "simplify", "specialize",
    ]  # fmt: skip
    assert "plan build/.stages/aarch64/resnet/plan" in ran
    assert "interface build/.stages/models/resnet/interface.json" in ran
