"""Follows a guide of docs/guides as a stranger would: writes files, runs commands, compares the output.

A guide's commands are lines with `$ ` in blocks `console`; the lines below a command are what it prints. In
these lines `…` stands for any text, and `…` alone for any lines. Numbers and spaces may differ, and lines
with Kiln's progress are left out. A name in bold above a block is that of a file with the block's content.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scons_real import ROOT

FOLDER = ROOT / "docs/guides"
_BLOCK = re.compile(
    r"(?:^\*\*`(?P<file>[^`]+)`\*\*\n\n)?^```(?P<language>\w+)\n(?P<content>.*?)^```", re.M | re.S
)
_PROGRESS = re.compile(r"kiln: (\S+: [\w-]+([:, ].*)?|fetching .*)")


@dataclass(frozen=True)
class Command:
    """A line to run, and the lines that it must print; None if the guide shows none."""

    line: str
    expected: str | None


def steps(text: str) -> list[tuple[str, str] | Command]:
    """The files, as (name, content), and commands of a guide, in its order."""
    found_steps: list[tuple[str, str] | Command] = []
    for block in _BLOCK.finditer(text):
        if block["file"]:
            found_steps.append((block["file"], block["content"]))
        elif block["language"] == "console":
            for command_text in re.split(r"^\$ ", block["content"], flags=re.M)[1:]:
                line, _, expected = command_text.partition("\n")
                found_steps.append(Command(line, expected or None))
    return found_steps


def agrees(said: str, expected: str) -> bool:
    """Whether a command printed the expected lines; see the top of this file."""
    lines = [line for line in said.splitlines() if line.strip() and not _PROGRESS.fullmatch(line)]
    patterns = []
    for line in map(_alike, filter(str.strip, expected.splitlines())):
        patterns.append("(.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + "\n")
    return re.fullmatch("".join(patterns), "".join(f"{_alike(line)}\n" for line in lines)) is not None


def _alike(line: str) -> str:
    """A line without the differences that do not count."""
    line = re.sub(r"\d[\d,.]*(e-\d+)?", "0", line)
    return re.sub(r"([━─])+", r"\1", " ".join(line.split()))


def follow_guide(
    name: str, folder: Path, replace: Mapping[str, str] | None = None, path: str = "", **environment: str
) -> list[str]:
    """Follow docs/guides/NAME in `folder`; returns what each command printed.

    `replace`: texts of the guide that stand for hardware, and what stands in for them here. `path`: folders
    of programs that come before the others.
    """
    text, printed = (FOLDER / name).read_text(encoding="utf-8"), []
    for old, new in (replace or {}).items():
        assert old in text, old
        text = text.replace(old, new)
    variables = _environment(folder, path, environment)
    for step in steps(text):
        if isinstance(step, tuple):
            file = folder / step[0]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(step[1], encoding="utf-8")
            continue
        done = subprocess.run(
            ["bash", "-c", step.line],
            cwd=folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1800,
        )
        assert done.returncode == 0, f"{step.line}\n{done.stdout}"
        if re.search(r"\bcc -", step.line):  # a compiler's warning would make a reader stop
            assert done.stdout == "", f"{step.line}\n{done.stdout}"
        if step.expected is not None:
            assert agrees(done.stdout, step.expected), f"{step.line}\n{done.stdout}"
        printed.append(done.stdout)
    return printed


def _environment(folder: Path, path: str, more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a reader who has installed Kiln: the command `kiln`, and its Python."""
    programs = folder / ".programs"
    programs.mkdir()
    (programs / "kiln").write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/build_tools/command.py "$@"\n')
    (programs / "kiln").chmod(0o755)
    folders = [path, str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {
        **os.environ,
        "PATH": ":".join(filter(None, folders)),
        "PYTHONPATH": ":".join(filter(None, [str(ROOT / "build_tools"), os.environ.get("PYTHONPATH")])),
        "COLUMNS": "120",
        **more,
    }
    cache = os.environ.get("KILN_TEST_STAGES")
    return {"KILN_CACHE": cache, **environment} if cache else environment
