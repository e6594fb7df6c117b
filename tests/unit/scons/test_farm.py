"""Stages on workers of Dask: real schedulers and workers, stand-ins as stages."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import waiting
from kiln.config.model import StageLimits
from kiln.errors import INTERRUPTED, KilnError
from kiln.scons.farm import cluster, stages
from kiln.scons.farm.facts import difference, facts
from kiln.scons.storage import open_storage

from unit.scons_project import RESNET, StandInProject

pytestmark = pytest.mark.slow

HERE = {"fetch", "device-schema"}  # stages that no worker runs


class Farm:
    """A scheduler, and workers that the test starts and kills, which run stages of `project`."""

    def __init__(self, project: StandInProject, folder: Path) -> None:
        self.project, self.folder = project, folder
        self.workers: list[subprocess.Popen[bytes]] = []
        file = folder / "scheduler.json"
        words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
        self.scheduler = self._start("dask_scheduler", *words)
        waiting.until(file.is_file, "the file of the scheduler")
        self.file = file

    @property
    def address(self) -> str:
        """The scheduler's address."""
        import json

        return str(json.loads(self.file.read_text())["address"])

    def worker(self, *words: str, project: StandInProject | None = None, **environment: str) -> Path:
        """Start a worker; returns the file that gets a line for each stage that it runs."""
        log = self.folder / f"worker{len(self.workers)}.log"
        log.touch()
        given = (
            "--scheduler-file",
            str(self.file),
            "--nthreads",
            "1",
            "--no-nanny",
            "--no-dashboard",
            *words,
        )
        self.workers.append(self._start("dask_worker", *given, of=project, FAKE_LOG=str(log), **environment))
        return log

    def end(self) -> None:
        """Kill all that was started."""
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()

    def _start(
        self, program: str, *words: str, of: StandInProject | None = None, **environment: str
    ) -> subprocess.Popen[bytes]:
        project = of or self.project
        path = environment.pop("KILN_TEST_PATH", str(project.folder / "build_tools"))
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{program}", *words],
            cwd=self.folder, env=project.environment(PYTHONPATH=path, **environment),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


def ran(log: Path) -> set[str]:
    """The names of the stages in a log."""
    return {line.split()[0] for line in log.read_text().splitlines()}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> StandInProject:
    return StandInProject(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def bundle(project: StandInProject) -> dict[str, str]:
    """The digests of the bundle's files as a build without workers makes them."""
    project.build(*RESNET, "cache=none")
    return project.bundle_digest("aarch64/resnet")


@pytest.fixture
def farm(project: StandInProject, tmp_path: Path) -> Iterator[Farm]:
    made = Farm(project, tmp_path)
    yield made
    made.end()


def fresh(project: StandInProject) -> None:
    shutil.rmtree(project.folder / "build", ignore_errors=True)


def _running() -> list[str]:
    """The command lines of all processes of this machine, as /proc has them."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            lines.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return lines


@pytest.mark.heavy
def test_workers_make_the_same_bytes(
    project: StandInProject, bundle: dict[str, str], farm: Farm, tmp_path: Path
) -> None:
    """A second build takes them from the cache."""
    log = farm.worker()
    fresh(project)
    words = (f"cluster={farm.address}", f"cache={tmp_path / 'cache'}")
    done = project.scons(*RESNET, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert project.bundle_digest("aarch64/resnet") == bundle
    assert {line.split()[0] for line in project.ran()} == HERE
    assert {"lower", "golden", "bundle"} < ran(log)
    assert f"kiln: cluster {farm.address}: 1 worker, 1 stages at a time, dashboard http://" in done.stdout
    log.write_text("")
    fresh(project)
    project.build(*RESNET, *words)
    assert project.bundle_digest("aarch64/resnet") == bundle and ran(log) == set()


@pytest.mark.heavy
def test_a_worker_that_dies_costs_its_stage_only(
    project: StandInProject, bundle: dict[str, str], farm: Farm, tmp_path: Path
) -> None:
    log = farm.worker(FAKE_STUCK="lower")
    fresh(project)
    command = project.command(*RESNET, f"cluster={farm.address}", f"cache={tmp_path / 'cache'}")
    build = subprocess.Popen(
        command,
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    waiting.until(lambda: log.read_text().isdigit(), "the process id that the stage `lower` writes")
    before = {path.name for path in (tmp_path / "cache" / "stages").rglob("*.json")}
    other = farm.worker()
    farm.workers[0].kill()
    output = build.communicate(timeout=120)[0]
    assert build.returncode == 0, output
    assert project.bundle_digest("aarch64/resnet") == bundle
    assert "lower" in ran(other) and not {"import", "simplify"} & ran(other) and len(before) > 2


@pytest.mark.heavy
def test_ctrl_c_ends_the_stage_on_the_worker(project: StandInProject, farm: Farm, tmp_path: Path) -> None:
    log = farm.worker(FAKE_STUCK="lower")
    fresh(project)
    build = subprocess.Popen(
        project.command(*RESNET, f"cluster={farm.address}", f"cache={tmp_path / 'cache'}"),
        cwd=project.folder, env=project.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    waiting.until(lambda: log.read_text().isdigit(), "the process id that the stage `lower` writes")
    os.killpg(build.pid, signal.SIGINT)
    assert build.communicate(timeout=120)[1].decode() == f"{INTERRUPTED}\n"
    assert build.returncode == 2
    waiting.until(lambda: not Path("/proc", log.read_text()).exists(), "the end of the program of a stage")
    assert farm.workers[0].poll() is None


@pytest.mark.heavy
def test_a_cluster_on_this_machine_reports_errors_as_a_local_build_does(project: StandInProject) -> None:
    """Without a cache of its own; nothing of the cluster remains."""
    for more, expected in (
        ({"FAKE_FAIL": "lower"}, "kiln: error: lower cannot do this\n"),
        ({"FAKE_SIGNAL": "plan"}, "crashed: killed by SIGSEGV"),
    ):
        fresh(project)
        done = project.scons(*RESNET, "cluster=local:1", "cache=none", **more)
        assert done.returncode == 2 and expected in done.stderr and done.stderr.count("\n") == 1
    assert not [words for words in _running() if "farm.local" in words and str(project.folder) in words]


@pytest.mark.heavy
def test_another_kiln_on_a_worker_is_named(project: StandInProject, farm: Farm, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = StandInProject(tmp_path / "other")
    other.edit("build_tools/kiln/files.py", "import json", "import json  # another")
    farm.worker(project=other)
    done = project.scons(*RESNET, f"cluster={farm.address}", f"cache={tmp_path / 'cache'}")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "kiln: error: option 'cluster': worker tcp://127.0.0.1:" in done.stderr
    assert "source of Kiln is " in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cluster=farm"], "'farm': tcp://HOST:PORT or tls://HOST:PORT of a scheduler, or local:N with "),
        (["cluster=local:0"], "'local:0': tcp://HOST:PORT"),
        (["cluster=tcp://127.0.0.1:9"], "workers exchange files through a cache: cache=FOLDER"),
    ],
)
def test_wrong_options_are_one_line(project: StandInProject, words: list[str], expected: str) -> None:
    done = project.scons(*RESNET, *words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("kiln: error: option 'cluster': ") and expected in done.stderr


@pytest.mark.heavy
def test_a_scheduler_that_dies_ends_the_build_in_one_line(
    project: StandInProject, farm: Farm, tmp_path: Path
) -> None:
    log = farm.worker(FAKE_SECONDS="1000")
    fresh(project)
    process = subprocess.Popen(
        project.command(*RESNET, f"cluster={farm.address}", f"cache={tmp_path / 'cache'}"),
        cwd=project.folder, env=project.environment(), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    waiting.until(log.read_text, "the first stage on a worker")
    farm.scheduler.kill()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 2
    gone = "the scheduler is gone; start the build again, without it or when it is back"
    assert stderr == f"kiln: error: cluster {farm.address}: {gone}\n"


def test_no_scheduler_is_asked_for_a_list_and_a_missing_one_is_named(
    project: StandInProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("cluster=tcp://127.0.0.1:9", f"cache={tmp_path / 'cache'}")
    fresh(project)
    listed = project.scons(*RESNET, "-n", *words)
    assert (listed.returncode, listed.stderr) == (0, "") and "would run" in listed.stdout
    monkeypatch.setattr(cluster, "CONNECT", 0.2)
    with pytest.raises(KilnError, match=r"no scheduler answers at tcp://127.0.0.1:9: .*dask scheduler"):
        cluster.Cluster("tcp://127.0.0.1:9", str(tmp_path / "cache"))
    with pytest.raises(KilnError, match=r"tls://h:9: no certificates are set; DASK_DISTRIBUTED__COMM__TLS__"):
        cluster.Cluster("tls://h:9", str(tmp_path / "cache"))


def test_a_cache_that_a_worker_does_not_see_is_named(tmp_path: Path) -> None:
    answer = cluster._probe_answer(str(tmp_path / "not-there-yet"), "0" * 64)
    assert answer["cache"] == f"it does not see the cache {tmp_path}/not-there-yet of this build"
    assert cluster._probe_answer("http://127.0.0.1:9/x", "0" * 64)["cache"].startswith(
        "it cannot read the cache: "
    )


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    cluster._distributed.cache_clear()
    with pytest.raises(
        KilnError, match=r"needs the package distributed: .* -m pip install distributed bokeh"
    ):
        cluster.Cluster("local:1", str(tmp_path))
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(KilnError, match=r"'s3://a/b' needs the package fsspec: .* -m pip install fsspec"):
        open_storage("s3://a/b")


@pytest.mark.heavy
def test_a_worker_without_kiln_is_named(project: StandInProject, farm: Farm, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    farm.worker(KILN_TEST_PATH=str(tmp_path / "nothing"))
    done = project.scons(*RESNET, f"cluster={farm.address}", f"cache={tmp_path / 'cache'}")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "Kiln is missing there, or another version: " in done.stderr
    assert "No module named 'kiln'" in done.stderr


def test_the_first_difference_is_named() -> None:
    ours = dict(facts())
    assert difference(ours, ours) is None
    assert (
        difference({**ours, "Python": "3.9"}, {**ours, "Python": "3.11"}) == "Python is 3.9 there, 3.11 here"
    )
    assert difference({}, {"Kiln": "1"}) == "Kiln is missing there, 1 here"
    assert {"apache-tvm", "Kiln", "machine"} < set(ours)


class Offering:
    """A cluster, as far as `resources` asks it."""

    def __init__(self, **most: float) -> None:
        self.most = most

    def offers(self, name: str) -> float:
        return self.most.get(name, 0)


def test_resources_decide_where_a_stage_runs(tmp_path: Path) -> None:
    from kiln.config import load_target
    from kiln.scons.stage_node import StageNode
    from kiln.stages.model import SimplifyStage
    from kiln.stages.use import DeviceBenchStage, PlanTextStage

    def needed(stage: Any, limited: StageLimits | None = None, marker: str = "", **offered: float) -> Any:
        node = StageNode(stage, "net", [], ["out"], None, None, [marker] if marker else [], None)
        return stages.resources(node, Offering(**offered), limited)  # type: ignore[arg-type]

    simplify = SimplifyStage(source=Path("in"), out=Path("out"))
    assert needed(simplify) == {} and needed(simplify, StageLimits(memory="4GiB")) == {}
    assert needed(simplify, StageLimits(), memory=1e9) == {}  # only what the model states counts
    assert needed(simplify, StageLimits(memory="4GiB"), memory=8e9) == {"memory": float(4 << 30)}
    with pytest.raises(KilnError, match="no worker has more than 1000000000"):
        needed(simplify, StageLimits(memory="4GiB"), memory=1e9)
    assert needed(simplify, marker="dump.done") is None
    assert needed(PlanTextStage(plan=Path("plan.json")), cuda=1) is None

    def bench(target: str, device: bool) -> Any:
        (tmp_path / "target.json").write_text(load_target(target).model_dump_json())
        (tmp_path / "device.json").write_text('{"name": "pi4"}')
        chosen = tmp_path / "device.json" if device else None
        places = {"bundle": Path("b"), "plan": Path("p"), "work": Path("w"), "out": Path("o")}
        return DeviceBenchStage(target=tmp_path / "target.json", device=chosen, **places)

    assert needed(bench("x86_64", device=False), cuda=1) is None
    assert needed(bench("cuda", device=False)) is None
    assert needed(bench("cuda", device=False), cuda=1) == {"cuda": 1.0}
    assert needed(bench("aarch64", device=True), **{"device:pi3": 1}) is None
    assert needed(bench("aarch64", device=True), **{"device:pi4": 1}) == {"device:pi4": 1.0}
