"""The cache of stage outputs: it restores whole bundles or nothing, in any folder, even if it is damaged."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import waiting
from kiln.config import load_target
from kiln.scons import digest
from kiln.scons.cache import Entry, StageCache
from kiln.scons.storage import StorageError, digest_of_entry

from unit.scons.test_storage import server as server
from unit.scons_project import RESNET, StandInProject

pytestmark = pytest.mark.slow

NEVER_KEPT = {"fetch", "device-schema"}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, kept: Path) -> StandInProject:
    """A project that was built with an empty cache."""
    stand_in = StandInProject(tmp_path_factory.mktemp("project"), lasting=True)
    assert len(stand_in.build(*RESNET, f"cache={kept}")) == 16
    return stand_in


@pytest.fixture(scope="module")
def bundle(project: StandInProject) -> dict[str, str]:
    return project.bundle_digest("aarch64/resnet")


def rebuilt(project: StandInProject, *arguments: str, **environment: str) -> set[str]:
    """Build from nothing; the stages that ran."""
    shutil.rmtree(project.folder / "build", ignore_errors=True)
    return {stage.split()[0] for stage in project.build(*RESNET, *arguments, **environment)}


def test_a_bundle_comes_back_whole(project: StandInProject, bundle: dict[str, str], kept: Path) -> None:
    assert rebuilt(project, KILN_CACHE=str(kept)) == NEVER_KEPT
    assert project.bundle_digest("aarch64/resnet") == bundle
    assert project.build(*RESNET) == []


@pytest.mark.heavy
def test_another_folder_takes_it_too_and_runs_what_is_another(
    project: StandInProject, bundle: dict[str, str], kept: Path, tmp_path: Path
) -> None:
    other = StandInProject(tmp_path)
    assert rebuilt(other, f"cache={kept}") == NEVER_KEPT
    assert other.bundle_digest("aarch64/resnet") == bundle
    other.edit("models/resnet.yaml", "tolerance: {levels: 1}", "tolerance: {levels: 2}")
    assert rebuilt(other, f"cache={kept}") == NEVER_KEPT | {"limits", "report", "bundle"}
    assert other.bundle_digest("aarch64/resnet") != bundle
    assert rebuilt(other, "cache=none", KILN_CACHE=str(kept)) > {"lower", "link", "bundle"}
    assert rebuilt(other, KILN_CACHE="none") > {"lower", "link", "bundle"}
    assert not list(tmp_path.rglob("none"))  # a folder of that name


@pytest.mark.heavy
def test_a_file_of_the_users_own_is_known_by_its_content(
    project: StandInProject, kept: Path, tmp_path: Path
) -> None:
    """The path is not part of the key, although it is in the configuration that stages read."""
    other = StandInProject(tmp_path)
    wanted = "{kind: tensors, tensors: {input_1_int8: {kind: file, path: ../x.npy}}}"
    for made, content, known in ((project, "a", False), (other, "a", True), (other, "b", False)):
        text = (made.folder / "models/resnet.yaml").read_text()
        (made.folder / "models/own.yaml").write_text(text.replace("{kind: random, seed: 1}", wanted))
        (made.folder / "x.npy").write_text(content)
        ran = made.build("target=aarch64", "model=own", f"cache={kept}")
        assert ("golden build/.stages/models/own/golden" in ran) != known


@pytest.mark.heavy
def test_sconss_own_cache_restores_no_broken_bundle(tmp_path: Path) -> None:
    """A SConstruct that says CacheDir(…): each file of a bundle comes back, declared to SCons or not."""
    project = StandInProject(tmp_path)
    path = project.folder / "SConstruct"
    path.write_text(f"CacheDir('of-scons')\n{path.read_text()}")
    project.build(*RESNET)
    before = project.bundle_digest("aarch64/resnet")
    assert rebuilt(project) == NEVER_KEPT
    assert project.bundle_digest("aarch64/resnet") == before


@pytest.mark.heavy
def test_a_damaged_cache_is_noticed_and_mended(
    project: StandInProject, bundle: dict[str, str], kept: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(kept, folder)
    blobs, entries = sorted(folder.glob("blobs/*/*")), sorted(folder.glob("stages/*/*"))
    for index, path in enumerate(blobs):
        content = path.read_bytes()
        path.write_bytes((content[:-1], b"x" + content[1:], b"")[index % 3])
    for path in entries[::3]:
        path.write_text(path.read_text()[:-5])
    outside = tmp_path / "outside"
    for path in entries[1::3]:  # an entry that would write elsewhere
        entry = json.loads(path.read_text())
        entry["files"].append({**entry["files"][0], "name": str(outside)})
        path.write_text(json.dumps({**entry, "check": digest_of_entry(entry["files"])}))
    assert rebuilt(project, f"cache={folder}") > {"lower", "link", "bundle"}
    assert project.bundle_digest("aarch64/resnet") == bundle and not outside.exists()
    assert rebuilt(project, f"cache={folder}") == NEVER_KEPT
    assert project.bundle_digest("aarch64/resnet") == bundle


@pytest.mark.heavy
def test_two_builds_fill_one_cache_at_a_time(bundle: dict[str, str], tmp_path: Path) -> None:
    several = [
        StandInProject(tmp_path / name) for name in ("one", "two") if (tmp_path / name).mkdir() is None
    ]
    command = several[0].command(*RESNET, f"cache={tmp_path / 'shared'}")
    running = [
        subprocess.Popen(command, cwd=made.folder, env=made.environment(), stdout=subprocess.DEVNULL)
        for made in several
    ]
    assert [process.wait(waiting.SECONDS) for process in running] == [0, 0]
    for made in several:
        assert made.bundle_digest("aarch64/resnet") == bundle
    assert rebuilt(several[0], f"cache={tmp_path / 'shared'}") == NEVER_KEPT
    assert several[0].bundle_digest("aarch64/resnet") == bundle
    assert not list((tmp_path / "shared").rglob(".*"))


def test_a_cache_that_cannot_be_used_is_one_line(project: StandInProject, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    empty = project.scons(*RESNET, "cache=").stderr
    assert empty.startswith("kiln: error: option 'cache': no value after '='") and empty.count("\n") == 1
    done = project.scons(*RESNET, f"cache={blocked}")
    assert done.returncode == 2
    assert done.stderr == f"kiln: error: option 'cache': {blocked}: a file, but a folder is expected\n"
    (tmp_path / "half").mkdir()
    (tmp_path / "half/blobs").write_text("a file")
    shutil.rmtree(project.folder / "build")
    done = project.scons(*RESNET, KILN_CACHE=str(tmp_path / "half"))
    assert done.returncode == 0
    assert done.stderr.startswith("kiln: warning: the cache cannot be written: ")
    assert done.stderr.count("\n") == 1


def test_after_three_failures_nothing_more_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that takes nothing let each stage wait for its time limit."""
    nothing: Any = None
    cache = StageCache(nothing)
    for _ in range(3):
        assert not cache.unwritable
        cache.warn(StorageError("http://there: timed out"))
    assert cache.unwritable
    Entry(cache, nothing, "key").store()
    assert capsys.readouterr().err == "kiln: warning: the cache cannot be written: http://there: timed out\n"


def test_the_version_of_a_compiler_counts(tmp_path: Path) -> None:
    compiler = tmp_path / "gcc"
    texts = []
    for version in ("12.2.0", "13.1.0"):
        compiler.write_text(f"#!/bin/sh\necho gcc {version}\n")
        compiler.chmod(0o755)
        digest.of_compiler.cache_clear()
        text = (Path(__file__).resolve().parents[3] / "targets/aarch64.yaml").read_text()
        text = text.replace("kind: zig", "kind: gcc").replace("command: null", f"command: [{compiler}]")
        path = tmp_path / "own.yaml"
        path.write_text(text)
        target = load_target(path).model_dump_json()
        texts.append(digest.of_compiler(target))
    assert texts == ["gcc 12.2.0\n", "gcc 13.1.0\n"]


def test_a_cache_that_cannot_be_reached_costs_one_warning(
    project: StandInProject, bundle: dict[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/kiln"
    shutil.rmtree(project.folder / "build")
    done = project.scons(*RESNET, f"cache={url}")
    assert done.returncode == 0
    assert done.stderr == f"kiln: warning: the cache cannot be read: {url}: Connection refused\n"
    assert project.bundle_digest("aarch64/resnet") == bundle


def test_a_server_restores_a_bundle(project: StandInProject, bundle: dict[str, str], server: Any) -> None:
    """With Bazel's protocol; contents that the server has damaged are made, and stored, again."""
    assert rebuilt(project, f"cache={server.url}") > {"lower", "link", "bundle"}
    assert rebuilt(project, f"cache={server.url}") == NEVER_KEPT
    assert project.bundle_digest("aarch64/resnet") == bundle
    for path in [path for path in server.kept if "/cas/" in path]:
        server.kept[path] = b"damaged"
    assert rebuilt(project, f"cache={server.url}") > NEVER_KEPT
    assert project.bundle_digest("aarch64/resnet") == bundle
    assert rebuilt(project, f"cache={server.url}") == NEVER_KEPT
