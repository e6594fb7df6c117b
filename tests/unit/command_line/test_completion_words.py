"""Completion of the words `target=… model=… GOAL`: what a shell offers at the end of a line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from kiln.command_line import __main__ as command_line

# As bash calls a function of completion, which takes the line from these variables.
_BASH = """
source "$1"
compopt() { :; }
COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDS=($2)
[[ $2 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_kiln_words kiln "${COMP_WORDS[COMP_CWORD]}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""
_FISH = "source $argv[1]; complete -C $argv[2]"
LINES = {
    "kiln tar": ["target="],
    "kiln target=riscv32_": ["riscv32_imac", "riscv32_imafc"],
    "kiln target=aarch64,riscv32_imac": ["aarch64,riscv32_imac"],
    "kiln target=host model=resnet1": ["resnet18"],
    "kiln target=host model=own/n": ["own/net.onnx"],
    "kiln target=host rollb": ["rollback"],
    "kiln target=host prec": ["precision="],
    "kiln build --target riscv32_": ["riscv32_imac", "riscv32_imafc"],
    "kiln quan": ["quantise"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of a model, from which a user completes."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/net.onnx").touch()
    return tmp_path


def script(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The completion script of a shell, in a file."""
    assert command_line.main(["completion", shell]) == 0
    (folder / "script").write_text(capsys.readouterr().out, encoding="utf-8")
    return folder / "script"


def test_bash(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bash replaces what stands after `=`."""
    file = script("bash", folder, capsys)
    for line, offered in LINES.items():
        command = ["bash", "-c", _BASH, "bash", file, line]
        assert subprocess.check_output(command, text=True, cwd=folder).split() == offered, line


@pytest.mark.heavy  # fish is one of the programs that only all tests use
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fish replaces the whole word."""
    file = script("fish", folder, capsys)
    for line, offered in LINES.items():
        option, joined, _ = line.split()[-1].partition("=")
        command = ["fish", "-N", "-c", _FISH, file, line]
        printed = subprocess.check_output(command, text=True, cwd=folder).splitlines()
        found = [candidate.split("\t")[0] for candidate in printed]  # then its description
        assert found == [f"{option}={name}" if joined else name for name in offered], line
