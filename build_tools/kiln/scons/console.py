"""Progress of a build: on a terminal the running stages with their times, else one plain line per stage."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from kiln.errors import printable

_HEARTBEAT = 10.0  # seconds between progress lines where there is no terminal


class Console:
    """Shows stages that run at the same time. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress: Any = None
        self._running = 0
        self.stages = 0

    def start(self, title: str) -> Any:
        """Show that the stage `title` has started; returns a handle for `alive` and `finish`."""
        with self._lock:
            self._running += 1
            self.stages += 1
            task = None
            if _quiet():
                pass
            elif sys.stdout.isatty():
                task = self._terminal().add_task(title, total=None)
            else:
                print(f"kiln: {title}", flush=True)
            now = time.monotonic()
            return {"what": title, "task": task, "started": now, "shown": now}

    def alive(self, run: Any) -> None:
        """Print a progress line for a long stage, at most every `_HEARTBEAT` seconds.

        Nothing on a terminal.
        """
        now = time.monotonic()
        if run["task"] is None and not _quiet() and now - run["shown"] >= _HEARTBEAT:
            run["shown"] = now
            print(f"kiln: {run['what']}: {now - run['started']:.0f} s", flush=True)

    def line(self, text: str, progress: bool = False) -> None:
        """Print a line of a stage whose output is for the user, or of the build's `progress`."""
        if progress and _quiet():
            return
        text = "\n".join(map(printable, text.split("\n")))  # names of a user's model may have any character
        with self._lock:
            if self._progress is None:
                print(text, flush=True)
            else:
                self._print(text)

    def finish(self, run: Any, done: bool) -> None:
        """Show that the stage of the handle `run` has ended; `done`: without an error."""
        with self._lock:
            self._running -= 1
            seconds = time.monotonic() - run["started"]
            if run["task"] is not None:
                self._progress.remove_task(run["task"])
                if done:
                    self._print(("✓", "green"), f" {run['what']} ", (f"{seconds:.1f} s", "dim"))
            elif done and run["shown"] > run["started"]:
                print(f"kiln: {run['what']}: done, {seconds:.0f} s", flush=True)
            if self._progress is not None and not self._running:
                self._progress.stop()
                self._progress = None

    def _terminal(self) -> Any:
        if self._progress is None:
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            # As markup, [b4] in the name of a bucket's stage is not shown.
            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            self._progress = Progress(*columns, transient=True)
            self._progress.start()
        return self._progress

    def _print(self, *parts: str | tuple[str, str]) -> None:
        """Print a line above those of the running stages; parts with a style are pairs."""
        from rich.text import Text

        self._progress.console.print(Text.assemble(*parts), highlight=False, soft_wrap=True)


def _quiet() -> bool:
    """Whether SCons was called with -s, --silent or --quiet: then only results and errors are printed."""
    from SCons.Script import GetOption

    return bool(GetOption("silent"))
