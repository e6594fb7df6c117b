"""Mistakes of users, as they see them: one line on stderr, status 2, nothing half-written.

Every stage is real. Mistakes that are refused before any stage runs are in tests/unit/scons/test_errors.py
and tests/unit/config/test_errors.py, damaged model files in tests/unit/frontend/test_bad_input.py, and
mistakes of a program at run time in the checks of device-test (see test_host_golden.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from scons_real import ROOT, shared_cache

from .building import Project, write_small_network

Refused = Callable[..., str]


def leftovers(build: Path) -> list[str]:
    """Files and folders that a stage has begun and not finished: they are called `.NAME.XXXXXXXX`."""
    return [str(path) for path in build.rglob(".*") if path.name != ".stages"]


@pytest.fixture
def refused(project: Project) -> Refused:
    """refused(target, model, …): the line with which such a build ends."""

    def call(target: str, model: str, *more: str, **environment: str) -> str:
        done = project.scons(f"target={target}", f"model={model}", *more, **environment)
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stderr.startswith("kiln: error: ") and done.stderr.count("\n") == 1, done.stderr
        assert "Traceback" not in done.stdout and "crashed" not in done.stderr, done.stderr
        assert leftovers(project.build) == []
        return done.stderr.removeprefix("kiln: error: ").rstrip("\n")

    return call


def no_bundle(project: Project, target: str, model: str) -> bool:
    """Whether there is nothing where the bundle would be."""
    folder = project.build / target / model
    return not folder.exists() and not folder.with_name(f"{model}.tar.gz").exists()


def write_target(project: Project, name: str, old: str, new: str) -> None:
    """The shipped target aarch64 with one change, as the project's own `name`."""
    text = (ROOT / "targets" / "aarch64.yaml").read_text()
    assert old in text
    (project.folder / "targets" / f"{name}.yaml").write_text(text.replace(old, new, 1))


def write_model(project: Project, name: str, **keys: str) -> None:
    """A model of the project's own: the small network, and `keys` as YAML."""
    write_small_network(project.folder / f"{name}.onnx")
    lines = [f"source: {{kind: file, path: ../{name}.onnx}}", *(f"{k}: {v}" for k, v in keys.items())]
    (project.folder / "models" / f"{name}.yaml").write_text("\n".join(lines) + "\n")


def _truncated(path: Path) -> None:
    content = write_small_network(path).read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _text(path: Path) -> None:
    path.write_text("This is a README, not a model.\n" * 20)


def _unknown_operator(path: Path) -> None:
    write_small_network(path, Relu="Frobnicate")


def _operator_with_random_results(path: Path) -> None:
    write_small_network(path, Relu="Bernoulli")


def _dynamic_dimension(path: Path) -> None:
    model = onnx.load(write_small_network(path))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, path)


@pytest.mark.parametrize(
    ("name", "write", "told"),
    [
        ("truncated", _truncated, "not a complete ONNX model: truncated or of another format"),
        ("text", _text, "not an ONNX model: the file is plain text"),
        ("unknown", _unknown_operator, "cannot be imported: Frobnicate (node activation)"),
        ("lacking", _operator_with_random_results, "cannot be imported: Bernoulli (node activation)"),
        ("open", _dynamic_dimension, "input 'x' axis 0 ('batch') is dynamic and has no range"),
    ],
)
def test_a_model_file(
    project: Project, refused: Refused, name: str, write: Callable[[Path], None], told: str
) -> None:
    path = project.folder / f"{name}.onnx"
    write(path)
    line = refused("x86_64", f"{name}.onnx")
    assert line.startswith(f"{name}.onnx: ") and told in line
    assert no_bundle(project, "x86_64", name)
    # Once the file is right, nothing of the failure stands in the way.
    if name == "truncated":
        write_small_network(path)
        project.make("target=x86_64", f"model={name}.onnx")


def test_a_checksum(project: Project, refused: Refused) -> None:
    write_small_network(project.folder / "other.onnx")
    text = f"source: {{kind: file, path: ../other.onnx, sha256: '{'0' * 64}'}}\n"
    (project.folder / "models" / "other.yaml").write_text(text)
    line = refused("x86_64", "other")
    assert "other.onnx: SHA-256 is " in line and f"expected {'0' * 64}" in line
    assert not (project.build / ".stages/models/other/source.onnx").exists()


def test_a_yaml(project: Project, refused: Refused) -> None:
    write_model(project, "typo", tolerance="{levels: one}")
    assert refused("x86_64", "typo") == (
        "models/typo.yaml:2: key 'tolerance.levels': a whole number expected, got 'one'"
    )
    write_model(project, "typo", tolerence="{levels: 1}")
    assert refused("x86_64", "typo") == (
        "models/typo.yaml:2: key 'tolerence': unknown key; did you mean 'tolerance'?"
    )


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("no_cpu", "cpu: cortex-a72", "cpu: cortex-b99", "LLVM knows no CPU 'cortex-b99' for aarch64"),
        pytest.param(
            *("no_feature", "+neon", "+frobnication", "LLVM knows no feature 'frobnication' for aarch64"),
            marks=pytest.mark.heavy,
        ),
        pytest.param(
            *("no_triple", "triple: aarch64-", "triple: foo-", "key 'triple': 'foo-unknown-linux-gnu'"),
            marks=pytest.mark.heavy,
        ),
        ("no_flag", "-mcpu=generic", "-mcpu=frob", "unknown CPU: 'frob'"),
    ],
)
def test_a_target_that_compilers_do_not_know(
    project: Project, refused: Refused, name: str, old: str, new: str, told: str
) -> None:
    write_target(project, name, old, new)
    write_small_network(project.folder / "fine.onnx")
    line = refused(name, "fine.onnx")
    assert told in line
    assert no_bundle(project, name, "fine")


def test_an_emulator_that_is_missing(project: Project, refused: Refused) -> None:
    write_target(project, "no_emulator", "command: qemu-aarch64", "command: qemu-absent")
    write_small_network(project.folder / "fine.onnx")
    line = refused("no_emulator", "fine.onnx", "test")
    assert line.startswith("not installed: 'qemu-absent', which runs 'no_emulator'")
    assert line.endswith("qemu-user")
    assert not (project.build / ".stages/no_emulator").exists()


@pytest.mark.heavy  # a model's budget, below, is refused in the same place
def test_a_targets_budget(project: Project, refused: Refused) -> None:
    write_target(project, "tiny_flash", "flash_bytes: null", "flash_bytes: 4KiB")
    write_small_network(project.folder / "fine.onnx")
    line = refused("tiny_flash", "fine.onnx")
    assert line.startswith(
        "budget exceeded for fine on tiny_flash: target tiny_flash allows 4096 bytes of flash, "
    )
    assert no_bundle(project, "tiny_flash", "fine")


def test_a_models_budget(project: Project, refused: Refused) -> None:
    write_model(project, "tight", budget="{ram_bytes: 100}")
    line = refused("x86_64", "tight")
    assert line.startswith("budget exceeded for tight on x86_64: model tight allows 100 bytes of ram, ")
    assert no_bundle(project, "x86_64", "tight")


@pytest.mark.heavy
def test_a_picture(project: Project, refused: Refused) -> None:
    write_small_network(project.folder / "fine.onnx")
    assert refused("x86_64", "fine.onnx", "run", "image=absent.png") == "image 'absent.png': no such file"
    (project.folder / "text.png").write_text("no picture")
    line = refused("x86_64", "fine.onnx", "run", "image=text.png")
    assert line == "model 'fine' accepts no image: its configuration has no 'preprocess'"


def test_an_image_with_a_library_is_refused_before_anything_runs(project: Project, refused: Refused) -> None:
    (project.folder / "backends").mkdir(exist_ok=True)
    backend = project.folder / "backends" / "theirs.py"
    backend.write_text(
        "from kiln.byoc.backend import Backend, Library\n"
        "library = Library('theirs', licence='MIT', symbols=['f'], headers=[], shared=[])\n"
        "BACKEND = Backend('theirs', archs=['x86_64'], library=library, generate=None)\n"
    )
    write_small_network(project.folder / "imaged.onnx")
    try:
        line = refused("x86_64", "imaged.onnx", "image", "byoc=theirs")
    finally:
        backend.unlink()
    assert line.startswith("image: code of the library theirs needs addresses") and line.endswith("byoc=none")
    assert not (project.build / ".stages/x86_64/imaged").exists()


def test_an_output_that_is_off(project: Project) -> None:
    """No mistake of the user's: the line begins with other words. SCons has one status for all failures."""
    write_model(project, "strict", tolerance="{absolute: 0, relative: 0}")
    done = project.scons("target=x86_64", "model=strict", "test")
    assert done.returncode == 2
    assert done.stderr.startswith("kiln: test failed: strict on x86_64: vector random_")
    assert done.stderr.endswith("kiln compare strict --target x86_64\n")  # names the first wrong tensor
    assert done.stderr.count("\n") == 1 and "FAILED" in done.stdout
    assert not (project.build / ".stages/x86_64/strict/test.json").exists()
    # Through the command, whose stages are forks of it: what they say as they end is not taken for a crash.
    words = ["target=x86_64", "model=strict", "test", *shared_cache(["target=x86_64"])]
    again = project.run([sys.executable, ROOT / "build_tools/command.py", *words])
    assert again.stderr == done.stderr


@pytest.mark.heavy  # in the gate tests/unit/scons/test_errors.py has a stand-in that a signal kills
def test_a_compiler_that_crashes(project: Project, tmp_path: Path) -> None:
    """A stage killed by a signal, as a fault inside of TVM or LLVM does it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "def crash(event, _):\n"
        "    if event == 'open' and 'emit-objects' in getattr(sys, 'argv', []):\n"
        "        os.kill(os.getpid(), signal.SIGSEGV)\n"
        "sys.addaudithook(crash)\n"
    )
    write_model(project, "crashing")
    done = project.scons("target=x86_64", "model=crashing", "cache=none", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("kiln: error: x86_64/crashing: emit-objects: crashed: killed by SIGSEGV")
    assert done.stderr.count("\n") == 1 and leftovers(project.build) == []
    assert no_bundle(project, "x86_64", "crashing")
    project.make("target=x86_64", "model=crashing")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 300 KiB; skips where none can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "kiln", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    """A build ends in one line at whichever stage the disk becomes full."""
    project = Project(small_disk)
    network = write_small_network(tmp_path / "net.onnx", channels=40)
    lines = set()
    for taken in (40, 120, 200, 240):
        (small_disk / "ballast").write_bytes(bytes(taken * 1024))
        done = project.scons("target=x86_64", f"model={network}", "cache=none")
        assert done.returncode == 2, done.stdout
        assert done.stderr.startswith("kiln: error: ") and done.stderr.count("\n") == 1, done.stderr
        assert "No space left on device" in done.stderr
        assert leftovers(project.build) == [] and no_bundle(project, "x86_64", "net")
        lines.add(done.stderr)
        shutil.rmtree(project.build)
    assert len(lines) > 2, "the disk is always full at the same place"


@pytest.mark.heavy
def test_a_file_size_limit(tmp_path: Path) -> None:
    """A build ends in one line if no file may grow beyond 20,000 bytes, which needs no mount."""
    project = Project(tmp_path)
    network = write_small_network(tmp_path / "net.onnx", channels=40)
    limit = "import resource, runpy, signal, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000));"
    ignore = "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); sys.argv[0] = 'scons';"
    command = [sys.executable, "-c", f"{limit}{ignore} runpy.run_module('SCons', run_name='__main__')"]
    done = project.run([*command, *project.command("target=x86_64", f"model={network}")[3:]])
    assert done.returncode == 2
    assert done.stderr.startswith("kiln: error: ") and done.stderr.count("\n") == 1, done.stderr
    assert "File too large" in done.stderr
    assert leftovers(project.build) == [] and no_bundle(project, "x86_64", "net")
