"""Starts the command `kiln`: Ctrl-C ends it in one line also while its modules are still being imported."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command of sys.argv; returns its exit status. See kiln.command_line.__main__."""
    try:
        from kiln.command_line.__main__ import main as run

        return run()
    except KeyboardInterrupt:
        from kiln.errors import INTERRUPTED

        if "--json" in sys.argv:
            print(_answer(sys.argv[1:]))
        else:
            print(INTERRUPTED, file=sys.stderr)
        return 2


def _answer(words: list[str]) -> str:
    """The answer of an interrupted command as JSON, without the module that has its schema."""
    import json

    from kiln import __version__

    command = next((word for word in words if "=" not in word and not word.startswith("-")), "")
    error = {"code": "interrupted", "text": "interrupted"}
    return json.dumps(
        {"format": 1, "kiln": __version__, "command": command, "status": 2, "error": error, "results": [],
         "messages": []},
        indent=1,
    )  # fmt: skip
