"""Command lines that run a Python module in a process of its own."""

from __future__ import annotations

import sys

_PROGRAM = (
    "import sys; sys.path[:] = [folder for folder in sys.path if folder]; import runpy; "
    "runpy.run_module(sys.argv.pop(1), None, '__main__', True)"
)


def module_command(name: str, *arguments: str) -> list[str]:
    """The command line of `python -m name arguments`, without modules of the current folder.

    `python -m` searches the folder it is started in first: a user's own onnx.py or random.py there would be
    imported in place of the library's.
    """
    return [sys.executable, "-c", _PROGRAM, name, *arguments]
