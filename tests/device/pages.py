"""Follows a page of docs as a reader would: writes its files and runs its commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from scons_real import ROOT

from .building import Project

_FILE = re.compile(r"\*\*`([^`]+)`\*\*\n\n```\w+\n(.*?)```", re.DOTALL)
_COMMANDS = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def page(name: str) -> str:
    """The text of a page of docs."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def section(name: str, title: str) -> str:
    """The text of one heading of a page."""
    return page(name).split(f"\n## {title}\n")[1].split("\n## ")[0]


def follow(project: Project, text: str) -> None:
    """Write the files of a text and run its commands, as a reader would."""
    for name, content in _FILE.findall(text):
        path = project.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    kiln = project.folder / "kiln"  # the page is read in Kiln's own folder
    kiln.write_text(f'#!/bin/sh\nexec {ROOT}/kiln "$@"\n')
    kiln.chmod(0o755)
    tools = Path(sys.executable).parent
    environment = project.environment(PATH=f"{tools}:{os.environ['PATH']}")
    for commands in _COMMANDS.findall(text):
        done = subprocess.run(
            ["bash", "-euc", commands], cwd=project.folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
