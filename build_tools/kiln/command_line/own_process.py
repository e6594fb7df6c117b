"""The command `kiln` as a program, for a build that runs in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

_COMMAND = "from kiln.command_line.__main__ import main; sys.exit(main())"


def kiln_program(words: Sequence[str]) -> list[str]:
    """The program and arguments that run the command `kiln` with the arguments `words`.

    The process imports this very package, also where it is not installed.
    """
    package = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-c", f"import sys; sys.path[0] = {package!r}; {_COMMAND}", *words]
