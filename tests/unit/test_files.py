"""Folders that are written next to their place: complete or absent, also if other processes write them."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import stat
from pathlib import Path

import pytest
from kiln import files
from kiln.errors import KilnError
from kiln.files import atomic_dir, atomic_write, error_text, make_build_folder, write_together


@pytest.mark.parametrize(("shared", "left"), [(False, "second"), (True, "first")])
def test_who_comes_second(tmp_path: Path, shared: bool, left: str) -> None:
    folder = tmp_path / "made"
    with atomic_dir(folder, shared=shared) as mine:
        with atomic_dir(folder, shared=shared) as other:
            (other / "file").write_text("first")
        (mine / "file").write_text("second")
    assert (folder / "file").read_text() == left
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("shared", [False, True])
def test_what_fails_leaves_nothing(tmp_path: Path, shared: bool) -> None:
    place = tmp_path / "made"
    failure = pytest.raises(KilnError, match=rf"{place}: cannot write: Is a directory")
    with failure, atomic_dir(place, shared=shared) as folder:
        (folder / "file").mkdir()
        (folder / "file").write_text("")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.write_text("")
    failure = pytest.raises(KilnError, match=rf"{folder}: cannot write: Not a directory")
    with failure, atomic_dir(folder, shared=True):
        pass


def test_a_copy_that_fails_is_one_short_line(tmp_path: Path) -> None:
    """shutil collects the errors of all files of a folder; the line has the first."""
    errors = [("a/x", "b/x", "[Errno 28] No space left on device: 'a/x' -> 'b/x'"), ("a/y", "b/y", "other")]
    failure = pytest.raises(KilnError, match=r"bundle: cannot write: No space left on device$")
    with failure, atomic_dir(tmp_path / "bundle"):
        raise shutil.Error(errors)
    assert not list(tmp_path.iterdir())


def test_files_that_belong_together_are_written_or_left(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("before")
    with pytest.raises(KilnError, match=r"old/new: cannot write 6 bytes: "):
        write_together({tmp_path / "first": b"1", tmp_path / "old": "2", tmp_path / "old" / "new": "3 äö"})
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old", "before")]
    write_together({tmp_path / "first": b"1", tmp_path / "old": "2"})
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["1", "2"]


def test_an_error_of_a_full_disk_names_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing to an open file raises an error without a name."""
    monkeypatch.chdir(tmp_path)
    assert error_text(OSError(errno.ENOSPC, "No space left", "x.bin")) == "x.bin: No space left"
    assert error_text(OSError(errno.EIO, "Input/output error")) == "Input/output error"
    monkeypatch.setattr(files, "_LEAST_FREE", 1 << 62)
    assert error_text(OSError(errno.ENOSPC, "No space left")).startswith(
        f"No space left on device? {tmp_path} "
    )


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_are_those_of_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    files._umask.cache_clear()
    try:
        with atomic_dir(tmp_path / "folder") as folder:
            atomic_write(folder / "file", "")
            (folder / "tool").touch()
            files.set_mode(folder / "tool", executable=True)
        folder = tmp_path / "folder"
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
        assert modes == {"folder": 0o777 & ~umask, "file": 0o666 & ~umask, "tool": 0o777 & ~umask}
    finally:
        os.umask(before)
        files._umask.cache_clear()


def test_too_many_open_files_names_the_limit_of_the_shell(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    expected = f"Too many open files: this shell allows {most} (ulimit -n)"
    error = OSError(errno.EMFILE, "Too many open files", str(path))
    assert error_text(error) == f"{path}: {expected}"
    with pytest.raises(KilnError) as raised, atomic_dir(path):
        raise error
    assert str(raised.value) == f"{path}: cannot write: {expected}"


def test_a_build_folder_that_is_a_link_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("build").symlink_to("/absent/disk")
    with pytest.raises(KilnError, match=r"build: a link to /absent/disk, which does not exist$"):
        make_build_folder(Path("build", ".stages"))
