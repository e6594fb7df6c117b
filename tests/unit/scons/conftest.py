"""A project of stand-ins that has been built once, for the tests that begin with a finished build."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from unit.scons_project import RESNET, StandInProject


@pytest.fixture(scope="session")
def _kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[StandInProject, Path]:
    """A project in which RESNET has been built, and a copy of its folder."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "project").mkdir()
    project = StandInProject(folder / "project", lasting=True)
    assert len(project.build(*RESNET)) == 16  # and `schema`, which is the real one here
    shutil.copytree(project.folder, folder / "copy", symlinks=True)
    return project, folder / "copy"


@pytest.fixture
def built(_kept: tuple[StandInProject, Path]) -> StandInProject:
    """The project in the state after its first build, whatever the test before has done to it."""
    project, copy = _kept
    shutil.rmtree(project.folder)
    shutil.copytree(copy, project.folder, symlinks=True)
    return project
