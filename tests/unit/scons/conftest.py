"""A project of stand-ins that has been built once, for the tests that begin with a finished build."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.scons_project import RESNET, StandInProject


class KeptProject:
    """A project and a copy of its folder, with which `restore` undoes what a test has changed.

    A file is unchanged if it is the same one with the same time of its last change, which no program can set.
    """

    def __init__(self, project: StandInProject, copy: Path) -> None:
        self.project = project
        self._copy = copy
        shutil.copytree(project.folder, copy, symlinks=True)
        self._state = dict(self._entries())

    def restore(self) -> None:
        """Give every file of the project the content, mode and times that it had at first."""
        entries = dict(self._entries())
        for name in sorted(entries, reverse=True):  # a folder's files before the folder
            if entries[name] != self._state.get(name):
                path = self.project.folder / name
                shutil.rmtree(path) if stat.S_ISDIR(entries[name][0]) else path.unlink()
                del entries[name]
        for name in sorted(self._state.keys() - entries.keys()):
            path = self.project.folder / name
            if stat.S_ISDIR(self._state[name][0]):
                path.mkdir()
                shutil.copystat(self._copy / name, path)
            else:
                shutil.copy2(self._copy / name, path, follow_symlinks=False)
                self._state[name] = _state_of(path.lstat())

    def _entries(self, folder: str = "") -> Iterator[tuple[str, tuple[int, int, int]]]:
        """The names of all files and folders, relative to the project's, and their states."""
        with os.scandir(self.project.folder / folder) as entries:
            for entry in entries:
                name = os.path.join(folder, entry.name)  # of thousands of files
                yield name, _state_of(entry.stat(follow_symlinks=False))
                if entry.is_dir(follow_symlinks=False):
                    yield from self._entries(name)


def _state_of(status: os.stat_result) -> tuple[int, int, int]:
    """Mode, number and time of the last change of a file; of a folder, whose time is no matter, the mode."""
    is_folder = stat.S_ISDIR(status.st_mode)
    return (status.st_mode, 0, 0) if is_folder else (status.st_mode, status.st_ino, status.st_ctime_ns)


@pytest.fixture(scope="session")
def _kept(tmp_path_factory: pytest.TempPathFactory) -> KeptProject:
    """A project in which RESNET has been built."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "project").mkdir()
    project = StandInProject(folder / "project", lasting=True)
    assert len(project.build(*RESNET)) == 16  # and `schema`, which is the real one here
    return KeptProject(project, folder / "copy")


@pytest.fixture
def built(_kept: KeptProject) -> StandInProject:
    """The project in the state after its first build, whatever the test before has done to it."""
    _kept.restore()
    return _kept.project
