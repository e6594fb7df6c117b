"""Kiln called in a folder of the user: outputs are in that folder, and the user's own files come first."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from unit.scons_project import StandInProject

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> StandInProject:
    return StandInProject(tmp_path_factory.mktemp("kiln"))


def call(
    project: StandInProject, folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Call SCons as the wrapper does; the stages that ran are in `project.ran()`."""
    project.log.write_text("")
    return subprocess.run(
        project.command("-f", str(project.folder / "SConstruct"), *arguments),
        cwd=folder,
        env=project.environment(**environment),
        capture_output=True,
        text=True,
        timeout=120,
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.heavy
def test_a_build_belongs_to_the_folder_that_the_user_stands_in(
    project: StandInProject, tmp_path: Path
) -> None:
    """models/ and targets/ there are found before Kiln's own, and paths begin there."""
    own = {
        "models/mine.yaml": project.folder / "models/resnet.yaml",
        "models/resnet.yaml": project.folder / "models/blazeface.yaml",  # in place of Kiln's own
        "targets/board.yaml": project.folder / "targets/aarch64.yaml",
        "photos/cat.png": None,
        "net.onnx": None,
    }
    for name, source in own.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source.read_text() if source else "data")
    before = {*names(project.folder), "stages.log"}
    models = "model=mine,resnet,net.onnx,ppocr_cls"
    done = call(project, tmp_path, "target=board", models, "image=photos/cat.png", "run")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    for model in ("mine", "resnet", "net", "ppocr_cls"):
        assert (tmp_path / f"build/board/{model}/manifest.json").is_file()
    assert names(tmp_path) == ["build", "models", "net.onnx", "photos", "targets"]
    assert set(names(project.folder)) == before
    assert "face-detection" in (tmp_path / "build/.stages/models/resnet/fetch.json").read_text()
    assert call(project, tmp_path, "target=board", models).returncode == 0
    assert project.ran() == ["device-schema build/schema/device.schema.json"]
    listed = call(project, tmp_path, "-h").stdout
    assert "board" in listed and "mine" in listed and "aarch64" in listed


def test_schemas_need_no_model(project: StandInProject, tmp_path: Path) -> None:
    done = call(project, tmp_path, "schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "build/schema/model.schema.json").is_file()


def test_a_dry_run_makes_nothing(project: StandInProject, tmp_path: Path) -> None:
    done = call(project, tmp_path, "-n", "target=aarch64", "model=resnet")
    assert (done.returncode, done.stderr, project.ran()) == (0, "", [])
    lines = done.stdout.splitlines()
    first, last = "kiln: would run resnet: fetch", "kiln: would run aarch64/resnet: bundle"
    assert lines.index(first) < lines.index(last)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and "sconsign" not in path.name] == []


def test_a_folder_that_cannot_be_written_is_one_line(project: StandInProject, tmp_path: Path) -> None:
    (tmp_path / "build").write_text("a file")
    done = call(project, tmp_path, "target=aarch64", "model=resnet")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"kiln: error: {tmp_path}/build: cannot be made: Not a directory; ")
