"""Which packages .venv gets when the lock files change."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from scons_real import ROOT


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, whose installations are only recorded, in `installed`."""
    spec = importlib.util.spec_from_file_location("environment", ROOT / "build_tools/setup/environment.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.installed = []

    def make_venv(venv: Path) -> None:
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").touch()
        module.installed.append("new")

    monkeypatch.setattr(module, "run_venv", make_venv)
    monkeypatch.setattr(module, "pip_command", lambda *_: [])
    monkeypatch.setattr(module, "install", lambda _, lock, __: module.installed.append(lock.name))
    return module


def test_developers_packages_come_back(tmp_path: Path, environment: Any) -> None:
    """./kiln makes .venv again after a change of a lock file, with those of ./kiln test if it had them."""
    basic, developers = environment.BASIC, environment.DEVELOPERS

    def use(lock: str, **changed: str) -> list[str]:
        for name, content in changed.items():
            (tmp_path / {"basic": basic, "developers": developers}[name]).write_text(content)
        environment.installed.clear()
        assert environment.main([str(tmp_path), lock]) == 0
        assert environment.is_whole(tmp_path, lock)
        return list(environment.installed)

    assert use(basic, basic="a", developers="a b") == ["new", basic]
    assert use(basic) == []
    assert use(basic, basic="a2") == ["new", basic]  # never had the developers' packages
    assert use(developers) == [developers]
    assert use(basic, basic="a3", developers="a3 b") == ["new", developers]
    assert use(developers) == []
    assert use(developers, developers="a3 b2") == [developers]
