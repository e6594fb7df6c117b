"""The runtime's C tests and fuzz targets on the ARM targets, under QEMU."""

from __future__ import annotations

from pathlib import Path

import pytest
from c_programs import FUZZ, TESTS, Builder
from kiln.config import load_target
from kiln.device.runners.qemu_user import open_runner
from kiln.toolchain import compiler_command

TARGETS = ("aarch64", "armv7")


@pytest.fixture(scope="module", params=TARGETS)
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Builder]:
    """A target's name and a builder for it."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, Builder(compiler_command(load_target(request.param)), ("-O2",), folder)


def _run(name: str, program: Path, *arguments: str) -> str:
    """Standard output of a program that must succeed; an error names a tool that is missing."""
    runner = open_runner(load_target(name))
    done = runner.run(program, arguments, send={}, fetch={}, timeout=300)
    assert done.status == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("test", TESTS)
def test_passes(machine: tuple[str, Builder], test: str) -> None:
    name, builder = machine
    assert ", 0 failures" in _run(name, builder.link(TESTS[test]), *TESTS[test].arguments)


@pytest.mark.parametrize("test", FUZZ)
def test_fuzz(machine: tuple[str, Builder], test: str) -> None:
    name, builder = machine
    assert _run(name, builder.link(FUZZ[test]), "5000", "2") == "5000 inputs\n"
