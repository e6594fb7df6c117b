"""Runs goals of the build and collects their results, which the build lists in a file, as an answer."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

from kiln.command_line.answer import AnswerPart, CommandAnswer, error_of
from kiln.command_line.own_process import kiln_program
from kiln.command_line.two_reports import page_data
from kiln.errors import INTERRUPTED, KilnError
from kiln.files import read_json
from kiln.scons.options import ALIASES, RESULTS
from kiln.scratch import scratch_folder


def answer_of_goals(
    words: Sequence[str], environment: Mapping[str, str] | None = None, stream: TextIO | None = None
) -> CommandAnswer:
    """Run SCons with `words` in a process of its own; its lines go to `stream` (None: stderr) as they come.

    `environment`: variables for that process in addition to this process's own.
    """
    goals = [word for word in words if word in ALIASES] or ["bundle"]
    command = " ".join(map(_command_of, goals))
    started = time.time()
    with scratch_folder("json") as folder:
        results_file = Path(folder, "results.json")
        done = subprocess.Popen(
            kiln_program(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            env={**os.environ, **(environment or {}), RESULTS: str(results_file)},
        )  # fmt: skip
        output, errors = _relayed(done, stream or sys.stderr, quiet="-s" in words)
        parts = read_json(results_file) if results_file.is_file() else []
    status = done.returncode if done.returncode in (0, 1) else 2  # negative: a signal ended it
    line = next((text for text in reversed(errors) if text.startswith("kiln: ")), None)
    if line is None and errors:
        line = errors[-1]
    failed = error_of(line or f"kiln: error: ended with status {done.returncode}") if status else None
    # After an error, files of an earlier build do not describe this one.
    oldest = started if status else 0.0
    dry = not {"-n", "-c"}.isdisjoint(words)
    results = [_answer_part(p) for p in parts if p["goal"] in goals and not dry and _is_written(p, oldest)]
    answered = {part.goal for part in results if part.data is not None or part.files}
    lines = [] if {_command_of(goal) for goal in goals} <= answered else output
    return CommandAnswer(command=command, status=status, error=failed, results=results, messages=lines)


def _command_of(goal: str) -> str:
    """The name of the command for a goal."""
    return "build" if goal == "bundle" else goal


def _relayed(process: subprocess.Popen[str], stream: TextIO, quiet: bool) -> tuple[list[str], list[str]]:
    """The lines of stdout and of stderr; those of stdout are copied to `stream`, unless `quiet`."""
    lines: tuple[list[str], list[str]] = ([], [])

    def copy(lines_of_process: IO[str], collected: list[str], printed: bool) -> None:
        for line in lines_of_process:
            collected.append(line.rstrip("\n"))
            if printed:
                print(line, end="", file=stream, flush=True)

    assert process.stdout is not None and process.stderr is not None
    # Errors are part of the answer, and not printed twice.
    threads = [
        threading.Thread(target=copy, args=(process.stdout, lines[0], not quiet)),
        threading.Thread(target=copy, args=(process.stderr, lines[1], False)),
    ]
    for thread in threads:
        thread.start()
    interrupted = False
    try:
        process.wait()
    except KeyboardInterrupt:
        interrupted = True
        try:
            process.wait(1)  # Ctrl-C reaches the build too, which ends by itself
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
    for thread in threads:
        thread.join()
    if interrupted:  # the last line of the build is another one where its interpreter ended before it
        lines[1].append(INTERRUPTED)
    return [line for line in lines[0] if not line.startswith("kiln: ")], lines[1]


def _is_written(part: Any, oldest: float) -> bool:
    """Whether the files of a result exist, and none of them is older than `oldest` (seconds)."""
    paths = [Path(path) for path in part["files"].values()]
    return all(path.exists() and path.stat().st_mtime >= oldest for path in paths)


def _answer_part(part: Any) -> AnswerPart:
    """An entry of the list of results, with the figures that its file holds."""
    data = None
    if part["data"] is not None:
        path = Path(part["files"][part["data"]])
        try:
            data = page_data(path) if path.suffix == ".html" else read_json(path)
        except KilnError:  # removed since: the build has ended well, and another one has begun
            data = None
    return AnswerPart(**{**part, "goal": _command_of(part["goal"]), "data": data})
