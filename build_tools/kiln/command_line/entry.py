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

        print(INTERRUPTED, file=sys.stderr)
        return 2
