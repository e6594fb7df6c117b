"""Folders of a user who has no home, or none to write to, as in many containers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kiln import paths
from kiln.errors import KilnError
from kiln.trust.fetch import state_dir

_VARIABLES = ("KILN_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_user_with_a_home(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place / "home"))
    assert paths.cache_dir() == place / "home/.cache/kiln"
    assert paths.user_dir() == place / "home/.config/kiln"
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    assert paths.cache_dir() == place / "cache/kiln"
    monkeypatch.setenv("KILN_CACHE", "/srv/kiln")
    assert paths.cache_dir() == Path("/srv/kiln")


def test_a_home_that_cannot_be_made(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "file").touch()
    monkeypatch.setenv("HOME", str(place / "file/home"))
    assert paths.cache_dir() == place / "build/.cache"


def test_a_user_whom_the_system_does_not_know(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(path: str | Path) -> str:
        return str(path)  # as os.path.expanduser does for a number without a name

    monkeypatch.setattr(os.path, "expanduser", unknown)
    assert paths.cache_dir() == place / "build/.cache"
    assert paths.user_dir() == place / "build/.config"
    with pytest.raises(
        KilnError, match="no home folder, in which fetch remembers repositories: set XDG_DATA_HOME"
    ):
        state_dir()
