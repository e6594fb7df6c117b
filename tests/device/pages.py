"""Follows a page of docs as a reader would: writes its files and runs its commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from scons_real import ROOT

from .building import Project

_FILE = re.compile(r"\*\*`([^`]+)`\*\*\n\n```\w+\n(.*?)```", re.DOTALL)
_BUILD = re.compile(r"\./kiln((?: \w+=[\w.,/]+)+(?: \w+)?)")  # without a word for the shell
_COMMANDS = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def page(name: str) -> str:
    """The text of a page of docs."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def section(name: str, title: str) -> str:
    """The text of one heading of a page."""
    return page(name).split(f"\n## {title}\n")[1].split("\n## ")[0]


def _parts(blocks: Sequence[str]) -> Iterator[str]:
    """Commands to run: each block as a whole, except that the lines of a block with calls of Kiln alone run
    one by one."""
    for block in blocks:
        lines = block.strip().splitlines()
        yield from lines if all(line.startswith("./kiln ") for line in lines) else [block]


def follow(project: Project, text: str) -> None:
    """Write the files of a text and run its commands, as a reader would; only builds run in forks of this
    process."""
    for name, content in _FILE.findall(text):
        path = project.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    kiln = project.folder / "kiln"  # the page is read in Kiln's own folder
    kiln.write_text(f'#!/bin/sh\nexec {ROOT}/kiln "$@"\n')
    kiln.chmod(0o755)
    tools = Path(sys.executable).parent
    environment = project.environment(PATH=f"{tools}:{os.environ['PATH']}")
    for commands in _parts(_COMMANDS.findall(text)):
        build = _BUILD.fullmatch(commands)
        if build is not None:
            project.make(*build[1].split())
            continue
        done = subprocess.run(
            ["bash", "-euc", commands], cwd=project.folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
