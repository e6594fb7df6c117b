"""A build that cannot go on: one line on stderr, status 2, nothing of SCons's own, nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import waiting
from kiln.scons.failure import _of_missing_file, _of_system
from SCons.Errors import StopError, convert_to_BuildError
from SCons.Executor import Executor
from SCons.Node.FS import FS

from unit.scons_project import RESNET, StandInProject

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> StandInProject:
    stand_in = StandInProject(tmp_path_factory.mktemp("errors"), lasting=True)
    (stand_in.folder / "net.pt2").touch()
    for name in ("tests", "docs", "devices"):
        (stand_in.folder / name).mkdir(parents=True)
    (stand_in.folder / "folder.onnx").mkdir()
    return stand_in


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("target=aarch65", "model=resnet"), "unknown target 'aarch65'; did you mean 'aarch64'?"),
        (("target=aarch64", "model=resnte"), "unknown model 'resnte'; did you mean 'resnet'?"),
        (("target=aarch64", "model=absent.onnx"), "model 'absent.onnx': no such file"),
        (("target=aarch64",), "model is missing: model=NAME"),
        (("target=aarch64", "net.onnx"), "'net.onnx' is not a goal; use model=net.onnx"),
        (
            (*RESNET, "target=armv7"),
            "option 'target' is given twice: 'aarch64' and 'armv7'; several: target=",
        ),
        ((*RESNET, "dump=0", "dump=1"), "option 'dump' is given twice: '0' and '1'\n"),
        (
            ("target=aarch64", "model=net.pt2"),
            "net.pt2: not an archive of torch.export",
        ),
        (("target=aarch64", "model=folder.onnx"), "model 'folder.onnx': a folder, not a file"),
        (("model=resnet",), "target is missing: target=NAME"),
        (("tarjet=aarch64", "model=resnet"), "unknown option 'tarjet='; did you mean 'target'?"),
        ((*RESNET, "tset"), "unknown goal 'tset'; did you mean 'test'?"),
        # Folders of these names are there, which SCons would find up to date.
        ((*RESNET, "tests"), "unknown goal 'tests'; did you mean 'test'?"),
        ((*RESNET, "test", "models"), "unknown goal 'models'"),
        ((*RESNET, "targets"), "unknown goal 'targets'"),
        ((*RESNET, "devices/"), "unknown goal 'devices/'; did you mean 'devices'?"),
        ((*RESNET, "docs"), "unknown goal 'docs'"),
        ((*RESNET, "build"), "unknown goal 'build'"),
        ((*RESNET, "build/aarch64/resnet"), "unknown goal 'build/aarch64/resnet'"),
        ((*RESNET, "."), "unknown goal '.'"),
        ((*RESNET, "SConstruct"), "unknown goal 'SConstruct'"),
        ((*RESNET, "flash"), "device is missing: device=NAME (./kiln devices lists them)"),
        ((*RESNET, "precision=fp8"), "option 'precision': 'fp8', allowed: fp32, tf32, bf16, fp16"),
        (
            (*RESNET, "precision=fp16"),
            "model 'resnet': precision fp16 is for targets with an NVIDIA GPU, 'aarch64' has none; "
            "allowed: fp32",
        ),
        (
            ("target=cuda_sm75", "model=resnet", "precision=tf32"),
            "model 'resnet': precision tf32 is for GPUs from sm_80 on, 'cuda_sm75' has sm_75; allowed: fp32, "
            "fp16",
        ),
        (
            ("target=cuda", "model=resnet", "precision=bf16"),
            "model 'resnet': precision bf16 is for GPUs from sm_80 on, 'cuda' has sm_75; allowed: fp32, fp16",
        ),
        ((*RESNET, "image=a.png"), "option 'image' is for the goal run"),
        ((*RESNET, "size", "package=npm"), "option 'package' is for the goals package, bundle and joint"),
        (("devices", "target=armv7"), "option 'target': the goal devices has no options"),
        ((*RESNET, "dump=yes"), "option 'dump': 0 or 1 expected, got 'yes'"),
        ((*RESNET, "test", "device= "), "option 'device': no value after '='; leave it out, or give "),
    ],
)
def test_what_cannot_be_asked_for(project: StandInProject, arguments: tuple[str, ...], told: str) -> None:
    done = project.scons(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kiln: error: ") and done.stderr.count("\n") == 1
    assert told in done.stderr
    assert project.ran() == []


@pytest.mark.heavy
def test_names_of_files_are_not_evaluated(project: StandInProject) -> None:
    """SCons runs what stands between ${ and } in a text as Python; a file's name is no such text."""
    program = "${__import__('os').mkdir('evaluated')}"
    (project.folder / f"{program}.onnx").write_text("a model")
    (project.folder / "-net.onnx").write_text("a model")
    (project.folder / "models/dollar.yaml").write_text(
        f'source: {{kind: file, path: "../{program}.onnx"}}\nformat: onnx\n'
    )
    for model in (f"{program}.onnx", "dollar", "-net.onnx"):
        done = project.scons("target=aarch64", f"model={model}")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert not (project.folder / "evaluated").exists()
    (project.folder / "targets/my target.yaml").write_text("description: none\n")
    assert "in the file's name, got 'my target'" in project.scons("target=my target", "model=resnet").stderr


@pytest.mark.heavy
def test_a_folder_with_a_dollar(tmp_path: Path) -> None:
    """SCons would replace `$x` in the name of its own file, and make another folder."""
    (tmp_path / "a $x b").mkdir()
    project = StandInProject(tmp_path / "a $x b", lasting=True)
    done = project.scons(*RESNET)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a $x b"]
    assert (project.folder / "build/.stages/sconsign.dblite").is_file()


def test_a_missing_compiler_is_told_before_anything_runs(project: StandInProject) -> None:
    text = (project.folder / "targets/aarch64.yaml").read_text()
    other = text.replace("kind: zig", "kind: gcc").replace("command: null", "command: [aarch64-absent-gcc]")
    (project.folder / "targets/no_gcc.yaml").write_text(other)
    done = project.scons("target=no_gcc", "model=resnet")
    assert done.returncode == 2 and project.ran() == []
    assert done.stderr == (
        "kiln: error: not installed: C compiler 'aarch64-absent-gcc' of target 'no_gcc' (key 'c_compiler')\n"
    )


def test_what_is_missing_to_run_is_told_before_anything_runs(project: StandInProject, tmp_path: Path) -> None:
    several = ("target=aarch64,armv7", "model=resnet")
    done = project.scons(*several, "run", "test", PATH=str(tmp_path))
    assert (done.returncode, done.stdout, project.ran()) == (2, "", [])
    assert done.stderr == (
        "kiln: error: not installed: 'qemu-aarch64', which runs 'aarch64', 'qemu-arm', which runs 'armv7'; "
        "install it with: sudo apt-get install qemu-user\n"
    )
    assert project.scons(*several, "-n", "test", PATH=str(tmp_path)).returncode == 0


@pytest.mark.parametrize("jobs", ["-j1", "-j2"])
def test_a_stages_line_is_all_there_is(project: StandInProject, jobs: str) -> None:
    done = project.scons(*RESNET, jobs, FAKE_FAIL="plan")
    assert (done.returncode, done.stderr) == (2, "kiln: error: plan cannot do this\n")
    assert not (project.folder / "build/aarch64/resnet").exists()
    # What was made before the failure is kept.
    assert "import build/.stages/models/resnet/import" not in project.build(*RESNET)
    project.scons(*RESNET, "-c")


@pytest.mark.heavy
def test_no_warning_of_an_open_file_where_python_shows_them(project: StandInProject) -> None:
    assert project.build(*RESNET, PYTHONWARNINGS="default::ResourceWarning")
    project.scons(*RESNET, "-c")


def test_a_crash_is_one_line_that_names_the_log(project: StandInProject) -> None:
    done = project.scons(*RESNET, FAKE_CRASH="emit-objects")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "aarch64/resnet: emit-objects: crashed: RuntimeError: out of ideas" in done.stderr
    log = Path(done.stderr.split("(log: ")[1].rstrip(")\n"))
    assert "Traceback" in (project.folder / log).read_text()
    done = project.scons(*RESNET, FAKE_SIGNAL="emit-objects")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("kiln: error: aarch64/resnet: emit-objects: crashed: killed by SIGSEGV")
    assert not (project.folder / "build/aarch64/resnet").exists()
    assert "killed by SIGSEGV while a library ran the model: try another one (log: " in done.stderr


@pytest.mark.parametrize("jobs", ["-j0", "-j-1"])
def test_no_stages_at_a_time_are_refused(project: StandInProject, jobs: str) -> None:
    """SCons alone waits forever with -j0."""
    done = project.scons(*RESNET, jobs)
    allowed = "allowed: a whole number of 1 or more"
    assert (done.returncode, done.stderr) == (2, f"kiln: error: option -j: '{jobs[2:]}', {allowed}\n")


@pytest.mark.parametrize(
    ("jobs", "send"),
    [
        ("-j1", lambda pid: os.killpg(pid, signal.SIGINT)),
        ("-j2", lambda pid: os.killpg(pid, signal.SIGINT)),
        ("-j1", lambda pid: os.kill(pid, signal.SIGTERM)),
        ("-j2", lambda pid: os.kill(pid, signal.SIGINT)),
    ],
)
def test_an_interrupted_build_says_just_that(tmp_path: Path, jobs: str, send: Callable[[int], None]) -> None:
    """By a signal for all its processes, or for the first alone: it waits for no stage, and leaves none."""
    project = StandInProject(tmp_path)
    process = subprocess.Popen(
        project.command(*RESNET, jobs),
        cwd=project.folder,
        env=project.environment(FAKE_SECONDS="1000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    with waiting.limit("the first line of a build"):
        assert process.stdout.readline().startswith("kiln: ")  # a stage runs
    send(process.pid)
    printed, stderr = process.communicate(timeout=60)
    assert not _of_session(process.pid)
    assert (process.returncode, stderr) == (2, "kiln: interrupted\n")
    assert all(line.startswith("kiln: ") for line in printed.splitlines())


@pytest.mark.heavy
def test_nohup_keeps_a_build(tmp_path: Path) -> None:
    """SIGHUP ends a build whose terminal is gone, but not one that is started with SIGHUP ignored."""
    project = StandInProject(tmp_path)
    process = subprocess.Popen(
        ["nohup", *project.command(*RESNET, "-j2")],
        cwd=project.folder,
        env=project.environment(FAKE_SECONDS="0.1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with waiting.limit("the first line of a build"):
        assert process.stdout.readline().startswith("kiln: ")  # a stage runs
    process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=120)[1] == ""
    assert process.returncode == 0


def _of_session(leader: int) -> list[str]:
    """The processes of a session, without those that have ended and nobody has waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append(path.parent.name)
    return found


def test_two_models_of_one_name_are_refused(project: StandInProject) -> None:
    for folder in ("a", "b"):
        (project.folder / folder).mkdir()
        (project.folder / folder / "net.onnx").write_text(folder)
    done = project.scons("target=aarch64", "model=a/net.onnx,b/net.onnx")
    assert done.returncode == 2
    assert done.stderr == "kiln: error: model 'b/net.onnx': another model of this build is called 'net' too\n"


def test_an_unknown_option_of_a_method_is_one_line(project: StandInProject) -> None:
    text = 'env = Environment(tools=["kiln"], toolpath=["build_tools"])\n'
    path = project.folder / "own.py"
    path.write_text(text + 'env.KilnBundle("resnet", target="aarch64", devise="pi4")\n')
    done = project.scons("-f", "own.py")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("kiln: error: model 'resnet': unknown option 'devise'")
    assert "device" in done.stderr


def test_help_lists_targets_models_and_goals_from_the_yaml(project: StandInProject) -> None:
    text = (project.folder / "models/resnet.yaml").read_text()
    (project.folder / "models/my_own.yaml").write_text(
        text.replace("description: >-\n  ", "description: >-\n  Mine. ")
    )
    done = project.scons("-h")
    assert (done.returncode, done.stderr) == (0, "")
    for word in (
        "aarch64",
        "armv7",
        "resnet",
        "Mine.",
        "dump=1",
        "mobilenet_v2 | mobilenet",
        "five best classes",
    ):
        assert word in done.stdout


def test_a_full_disk_is_one_line(project: StandInProject) -> None:
    limit = "import resource,runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); import signal;"
    ignore = "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); import sys; sys.argv[0] = 'scons';"
    program = f"{limit}{ignore} runpy.run_module('SCons', run_name='__main__')"
    project.scons(*RESNET, "-c")
    done = subprocess.run(
        [sys.executable, "-c", program, "-Q", *RESNET],
        cwd=project.folder, env=project.environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("kiln: error: ") and done.stderr.count("\n") == 1
    assert "File too large" in done.stderr
    assert not (project.folder / "build/aarch64/resnet").exists()
    assert project.build(*RESNET)


@pytest.mark.parametrize(
    ("blocked", "told"),
    [
        ("build", "build: cannot be made: Not a directory; builds go to build/ of the current folder"),
        (
            "build/.stages/models/resnet",
            "build/.stages/models/resnet: a file, where the build writes a folder: remove it",
        ),
        ("build/aarch64/resnet", "build/aarch64/resnet: a file, where the build writes a folder: remove it"),
    ],
)
def test_a_file_in_the_place_of_a_folder_is_one_line(tmp_path: Path, blocked: str, told: str) -> None:
    stand_in = StandInProject(tmp_path)
    (stand_in.folder / blocked).parent.mkdir(parents=True, exist_ok=True)
    (stand_in.folder / blocked).write_text("mine")
    done = stand_in.scons(*RESNET)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("kiln: error: ") and told in done.stderr
    assert (stand_in.folder / blocked).read_text() == "mine" and stand_in.ran() == []


def test_a_file_that_disappears(tmp_path: Path) -> None:
    """SCons's error for a source that was there when the build was planned becomes a line of Kiln."""
    files = FS(str(tmp_path))
    with pytest.raises(StopError) as stopped:
        Executor([None], None, [{}], [files.File("source.onnx")], [files.File("net.onnx")]).prepare()
    line = _of_missing_file(stopped.value)
    assert line == "kiln: error: net.onnx: no such file any more: it was removed or renamed during the build"
    assert _of_missing_file(StopError("something else")) is None and _of_missing_file(None) is None


def test_an_error_of_the_system() -> None:
    """SCons's own, of a folder that it cannot make for an output, becomes a line of Kiln."""
    denied = PermissionError(13, "Permission denied", "build/schema")
    for error in (denied, convert_to_BuildError(denied)):
        assert _of_system(error) == "kiln: error: build/schema: Permission denied"
    assert _of_system(convert_to_BuildError(ValueError("x"))) is None and _of_system(None) is None
