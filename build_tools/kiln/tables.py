"""The console for the tables that goals and commands print."""

from __future__ import annotations

import sys

from rich.console import Console


def table_console(width: int | None = None) -> Console:
    """A console on stdout, of `width` columns; None: as the terminal.

    Texts stand as they are: a node of a user's model may be called `[/]` or `a:id:0`, which rich would take
    for its own markup and for an emoji.
    """
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False, width=width)
