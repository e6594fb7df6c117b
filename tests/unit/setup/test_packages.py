"""The system's packages: one table, with which README, error messages and all programs that run agree."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import syntax
from kiln import packages
from kiln.config import list_targets, load_target
from scons_real import ROOT

SETUP = ROOT / "build_tools/setup"
SOURCES = [
    path for folder in ("build_tools", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")
]
# Calls whose first argument is the name of a program, and calls whose first argument is a command.
BY_NAME = {"which", "need", "client", "missing_program", "package_of"}
BY_COMMAND = {"run", "Popen", "check_output", "check_call", "call", "run_tool"}
SANITIZERS = "libclang-rt-14-dev"  # Debian 12's; the number is that of clang


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _commands(tree: ast.AST) -> Iterator[ast.List]:
    """List literals that are run: handed over at once, or by way of a variable."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and n.args and _called(n) in BY_COMMAND]
    names = {n.args[0].id for n in calls if isinstance(n.args[0], ast.Name)}
    yield from (n.args[0] for n in calls if isinstance(n.args[0], ast.List))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(getattr(t, "id", None) in names for t in node.targets):
            values = [node.value]
        elif isinstance(node, ast.For) and getattr(node.target, "id", None) in names:
            values = list(node.iter.elts) if isinstance(node.iter, ast.Tuple) else []
        else:
            continue
        yield from (value for value in values if isinstance(value, ast.List))


def programs_of(tree: ast.AST) -> set[str]:
    """Names of programs that a file looks for or runs, as far as they are literals."""
    # Variables belong to functions; a file that has none is looked at as a whole.
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] or [tree]
    commands = (command for scope in scopes for command in _commands(scope))
    found = {_text(command.elts[0]) for command in commands if command.elts}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and _called(node) in BY_NAME:
            found.add(_text(node.args[0]))
    return {name for name in found if name}


def table() -> set[str]:
    """Every package of the table that a machine of the x86-64 architecture needs."""
    targets = [load_target(one.name) for one in list_targets()]
    foreign = {t.arch for t in targets if t.emulator is not None and not t.libc.static and t.arch != "x86_64"}
    return {
        *packages.FIRST_USE,
        *packages.PROGRAMS.values(),
        *packages.LIBRARIES.values(),
        *packages.FILES.values(),
        *(packages.CROSS_LIBC[arch] for arch in foreign),
        SANITIZERS,
    }


def test_programs_are_found_in_a_file() -> None:
    tree = ast.parse(
        'run(["one", "x"])\nwords = ["two"]\nrun(words)\nother = ["none"]\n'
        'for c in (["three"],):\n    run(c)\nshutil.which("four")\n'
    )
    assert programs_of(tree) == {"one", "two", "three", "four"}


@pytest.mark.slow
def test_every_program_that_is_run_is_in_the_table() -> None:
    known = {*packages.PROGRAMS, *packages.FOR_ALL_TESTS, *packages.EVERYWHERE, *packages.OF_PYPI, "sudo"}
    made_up = re.compile(r".*(absent|nowhere).*")
    unknown = {}
    calls = re.compile(rf"\b(?:{'|'.join(BY_NAME | BY_COMMAND)})\(")
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        names = programs_of(syntax.tree(text)) - known if calls.search(text) else set()
        if names := {name for name in names if "/" not in name and not made_up.fullmatch(name)}:
            unknown[str(path.relative_to(ROOT))] = names
    assert unknown == {}


def test_every_package_that_a_message_names_is_in_the_table() -> None:
    told = re.compile(r"apt(?:-get)? install ((?:[a-z0-9][a-z0-9+.-]*[ ,\"]*)+)")
    texts = [*SOURCES, ROOT / "kiln", ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    known = table() | {"libclang-rt", *packages.FOR_ALL_TESTS.values()}
    for path in texts:
        for names in told.findall(path.read_text(encoding="utf-8")):
            words = re.findall(r"[a-z0-9][a-z0-9+.-]+", names)
            assert not [word for word in words[:1] if word not in known], (path, names)


def test_readme_names_every_package() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    (listed,) = re.findall(r"^ +sudo apt-get install ((?:[a-z0-9+.-]+ *)+)$", text, re.MULTILINE)
    assert set(listed.split()) == table()
    assert all(f"`{package}`" in text for package in packages.FOR_ALL_TESTS.values())


def test_programs_of_targets_have_packages() -> None:
    for summary in list_targets():
        emulator = load_target(summary.name).emulator
        assert emulator is None or packages.package_of(emulator.command)


def test_a_c_library_of_another_architecture(tmp_path: Path) -> None:
    where = tmp_path / "arm-linux-gnueabihf"
    assert packages.cross_libc("armv7", "armv7a-unknown-linux-gnueabihf", tmp_path) == (
        where, "libc6-armhf-cross",
    )  # fmt: skip
    (where / "lib").mkdir(parents=True)
    (where / "lib/ld-linux-armhf.so.3").touch()
    assert packages.cross_libc("armv7", "armv7a-unknown-linux-gnueabihf", tmp_path) == (where, None)


@pytest.mark.parametrize(
    ("version", "files", "package"),
    [
        ("14.0.6", [], "libclang-rt-14-dev"),
        ("21", ["linux/libclang_rt.asan-x86_64.a"], "libclang-rt-21-dev"),
        ("19", ["linux/libclang_rt.asan-x86_64.a", "linux/libclang_rt.fuzzer-x86_64.a"], None),
        ("20", ["x86_64-pc-linux-gnu/libclang_rt.asan.a", "x86_64-pc-linux-gnu/libclang_rt.fuzzer.a"], None),
    ],
)
def test_the_sanitizers_of_a_clang(
    tmp_path: Path, version: str, files: list[str], package: str | None
) -> None:
    resources = tmp_path / version
    for name in files:
        (resources / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (resources / "lib" / name).touch()
    clang = tmp_path / "clang"
    clang.write_text(f"#!/bin/sh\necho {resources}\n")
    clang.chmod(0o755)
    assert packages.sanitizers_of(str(clang)) == package


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[object]:
    """The module setup/system.py, on a machine whose PATH has an apt-get that fails and nothing else."""
    apt = tmp_path / "bin/apt-get"
    apt.parent.mkdir()
    apt.write_text('#!/bin/sh\necho "E: Unable to locate package adb" >&2\nexit 100\n')
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(apt.parent))
    monkeypatch.syspath_prepend(str(SETUP))
    spec = importlib.util.spec_from_file_location("setup_system", SETUP / "system.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module


def test_a_program_that_a_newer_release_moved_is_found_by_its_lists(system: object, tmp_path: Path) -> None:
    """QEMU 11's qemu-system-misc has no qemu-system-riscv32; apt knows its package after an update."""
    lists, log = tmp_path / "lists", tmp_path / "log"
    apt_get, apt_cache = tmp_path / "bin/apt-get", tmp_path / "bin/apt-cache"
    apt_get.write_text(f'#!/bin/sh\necho "$*" >>{log}\n: >{lists}\n')
    apt_cache.write_text(f'#!/bin/sh\n[ -e {lists} ] && [ "$*" = "show qemu-system-riscv" ]\n')
    apt_cache.chmod(0o755)
    assert packages.package_of("qemu-system-riscv32") == "qemu-system-misc"

    def lacking() -> dict[str, str | None]:
        return {"qemu-system-riscv32": packages.package_of("qemu-system-riscv32")}

    assert system.install(["apt-get"], lacking) == ""  # type: ignore[attr-defined]
    assert [line.split()[3:] for line in log.read_text().splitlines()] == [
        ["update"], ["install", "-y", "--no-install-recommends", "qemu-system-riscv"],
    ]  # fmt: skip


@pytest.mark.heavy
@pytest.mark.slow
def test_what_cannot_be_installed_is_one_line(
    system: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for user, reason in ((0, " (apt-get install: Unable to locate package adb)"), (1000, "")):
        monkeypatch.setattr("os.geteuid", lambda user=user: user)
        for layer, arguments, status, kind in (
            ("gate", [], 2, "error"), ("all", [], 2, "error"), ("all", ["tests/unit"], 0, "warning"),
        ):  # fmt: skip
            assert system.main(layer, arguments) == status  # type: ignore[attr-defined]
            *_, warning, line = ["", *capsys.readouterr().err.splitlines()]
            assert line.startswith(f"kiln: {kind}: the tests need adb, ar, cc, clang, ")
            assert f"{reason}; install with: as root: apt-get install adb binutils clang " in line
            assert ("the tests need chromium, fish, java, javac, softhsm2-util, wine" in warning) == (
                layer == "all" and not arguments
            )
    assert shutil.which("sudo") is None
