"""The packages that .venv gets when a lock file changes."""

from __future__ import annotations

import errno
import importlib.util
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from scons_real import ROOT


def load() -> Any:
    """The module, which is a program that no package holds."""
    spec = importlib.util.spec_from_file_location("environment", ROOT / "build_tools/setup/environment.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, whose installations are only recorded, in `installed`."""
    module = load()
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
    """./kiln makes .venv again after a change of a lock file, with packages of ./kiln test if it had them."""
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


def test_the_first_build_finds_bytecode(
    tmp_path: Path, environment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The modules of all stages are compiled; one that cannot be imported hinders nothing."""
    package = tmp_path / "build_tools" / "kiln"
    for name, text in {
        "__init__": "", "stage_server": "", "scons/__init__": "", "scons/methods": "", "good": "",
        "bad": "1 / 0",
        "stages": "from types import SimpleNamespace as N\n"
        "STAGES = {name: N(spec=N(module=f'kiln.{name}')) for name in ('bad', 'good')}",
    }.items():  # fmt: skip
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / f"{name}.py").write_text(text)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment.write_bytecode(tmp_path)
    assert {path.name.split(".")[0] for path in package.glob("__pycache__/*.pyc")} >= {"good", "stage_server"}


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
@pytest.mark.parametrize(("system", "machine"), [("linux", "aarch64"), ("darwin", "arm64")])
def test_other_machines_get_the_same_versions(
    environment: Any, lock: str, system: str, machine: str, tmp_path: Path
) -> None:
    """Every package of Linux on x86-64, by the same hashes: no marker names a machine any more."""
    given = (ROOT / lock).read_text()
    text = environment.lock_for(ROOT / lock, system, machine, tmp_path).read_text()
    assert "platform_machine" not in text and "sys_platform" not in text
    expected = [line for line in given.splitlines() if "--hash" in line]
    assert [line for line in text.splitlines() if "--hash" in line] == expected
    for line in text.splitlines():
        if line[:1].isalnum():
            Requirement(line.rstrip(" \\"))


def test_a_tree_of_another_user_is_one_line_with_a_remedy(
    tmp_path: Path, environment: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(environment, "exclusive", refuse)
    assert environment.main([str(tmp_path), environment.BASIC]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and ".venv.lock: Permission denied; let a user who may write there" in line


BROKEN = (
    "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken by "
    "'NewConnectionError('<HTTPSConnection at 0x7f>: Failed to establish a new connection: "
    "[Errno -3] Temporary failure in name resolution')': /simple/net/"
)


def test_an_index_out_of_reach_is_named(tmp_path: Path) -> None:
    """pip's last line would be that no distribution of the first package matches."""
    module = load()
    last = "ERROR: No matching distribution found for net==1.0"
    lock = tmp_path / "requirements.lock"
    lock.write_text("net==1.0\n")
    for lines, expected in (
        (
            [BROKEN, last],
            r"cannot be reached \(\[Errno -3\] Temporary failure in name resolution\); .*PIP_INDEX_URL",
        ),
        ([last], r"requirements.lock: No matching distribution found for net==1.0$"),
    ):
        printed = "".join(f"print({line!r})\n" for line in lines)
        with pytest.raises(module.SetupError, match=expected):
            module.install(tmp_path, lock, [sys.executable, "-c", f"{printed}raise SystemExit(1)"])


def test_machines_without_packages_are_refused(environment: Any, tmp_path: Path) -> None:
    lock = ROOT / "requirements.lock"
    assert environment.lock_for(lock, "linux", "x86_64", tmp_path) == lock
    for system, machine in (("linux", "riscv64"), ("darwin", "x86_64"), ("win32", "AMD64")):
        with pytest.raises(environment.SetupError, match=f"{system} on {machine}: Kiln's packages exist"):
            environment.lock_for(lock, system, machine, tmp_path)


@pytest.mark.parametrize("place", ["environment", "bundled", "incomplete", "none"])
def test_pip_is_not_installed_to_be_run(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip is the environment's own, or unpacked from ensurepip's whole wheel, else from a downloaded one.

    Without its metadata: pip would take itself for installed, and leave out that version of the lock file.
    """
    module = load()
    wheels, venv, scratch = tmp_path / "wheels", tmp_path / "venv", tmp_path / "scratch"
    for folder in (wheels, venv, scratch):
        folder.mkdir()
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(module.sysconfig, "get_config_var", lambda _: str(wheels))
    monkeypatch.setattr(
        module, "download_pip", lambda: wheel(tmp_path / "its.whl", "downloaded").read_bytes()
    )
    if place == "environment":
        own = venv / "lib/python3.12/site-packages/pip/__main__.py"
        own.parent.mkdir(parents=True)
        own.touch()
    if place in ("bundled", "incomplete"):
        wheel(wheels / "pip-23.0-py3-none-any.whl", "bundled", whole=place == "bundled")
    python, *words = module.pip_command(venv, scratch)
    assert python == str(venv / "bin/python")
    if place == "environment":
        assert words == ["-m", "pip"] and list(scratch.iterdir()) == []
        return
    (program,) = words
    assert Path(program).is_relative_to(scratch) and not list(scratch.rglob("METADATA"))
    assert Path(program, "__main__.py").read_text() == ("bundled" if place == "bundled" else "downloaded")


def wheel(path: Path, content: str, *, whole: bool = True) -> Path:
    """A wheel of pip with `content` as its program; `whole`: with the parts that distributions leave out."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pip/__main__.py", content)
        archive.writestr("pip-23.0.dist-info/METADATA", "Name: pip\nVersion: 23.0\n")
        if whole:
            archive.writestr("pip/_vendor/urllib3/__init__.py", "")
    return path
