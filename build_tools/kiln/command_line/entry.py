"""Starts the command `kiln`: Ctrl-C ends it in one line also while its modules are still being imported.

So does an installation without Kiln's dependencies, which only runs bundles.
"""

from __future__ import annotations

import sys

from kiln.errors import INTERRUPTED, not_installed


def main() -> int:
    """Run the command of sys.argv; returns its exit status. See kiln.command_line.__main__."""
    try:
        from kiln.command_line.__main__ import main as run

        return run()
    except KeyboardInterrupt:
        return _failed("interrupted", "interrupted", INTERRUPTED)
    except ModuleNotFoundError as missing:
        text = str(not_installed(missing))
        return _failed("not-installed", text, f"kiln: error: {text}")


def _failed(code: str, text: str, line: str) -> int:
    """Print an error, with --json as an answer, made without the module of its schema; returns the status."""
    words = sys.argv[1:]
    if "--json" not in words:
        print(line, file=sys.stderr)
        return 2
    import json

    from kiln import __version__

    command = next((word for word in words if "=" not in word and not word.startswith("-")), "")
    error = {"code": code, "text": text}
    print(
        json.dumps(
            {"format": 1, "kiln": __version__, "command": command, "status": 2, "error": error, "results": [],
             "messages": []},
            indent=1,
        )
    )  # fmt: skip
    return 2
