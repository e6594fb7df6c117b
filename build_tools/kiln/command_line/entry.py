"""Starts the command `kiln`: Ctrl-C ends it in one line also while its modules are still being imported.

So does an installation without Kiln's dependencies, which only runs bundles, or where other modules are in
their place; it still prints its version.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from kiln import __version__
from kiln.command_line.checked_output import checked
from kiln.errors import INTERRUPTED, not_imported

# Commands that run models in ONNX Runtime, LiteRT or PyTorch, in their own process.
_WITH_REFERENCE = ("compare", "evaluate", "quantise", "reduce")


def main() -> int:
    """Run the command of sys.argv; returns its exit status. See kiln.command_line.__main__."""
    _handle_signals(_interrupt)  # SIGTERM as Ctrl-C; SCons has handlers of its own while it builds
    try:
        return _status()
    finally:
        # The process ends what it has started: another Ctrl-C would only keep it from that. Not ignored:
        # programs that are started inherit what is ignored.
        _handle_signals(lambda *_: None)


def _handle_signals(handler: Callable[..., object]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, handler)


def _status() -> int:
    _open_standard_streams()
    try:
        if _runs_a_reference():
            from kiln.command_line.supervised import supervised

            return supervised(lambda: checked(_run), _killed)
        return checked(_run)
    except KeyboardInterrupt:
        return _failed("interrupted", "interrupted", INTERRUPTED)
    except ImportError as error:
        text = str(not_imported(error))
        return _failed("not-installed", text, f"kiln: error: {text}")


def _runs_a_reference() -> bool:
    """Whether the command runs a model in another library, in a process that its supervisor can start."""
    return sys.argv[1:2] in [[name] for name in _WITH_REFERENCE] and hasattr(os, "memfd_create")


def _killed(code: str, line: str) -> int:
    """Print the error of a command that a signal has ended; returns the status."""
    return _failed(code, line.removeprefix("kiln: error: ").removeprefix("kiln: "), line)


def _run() -> int:
    if [word for word in sys.argv[1:] if word not in ("--json", "-q", "--quiet")] in (["--version"], ["-V"]):
        return _say_version()
    try:
        os.getcwd()  # noqa: PTH109  # pathlib is not imported yet
    except OSError as error:  # SCons cannot even be imported
        text = f"the current folder: {error.strerror}: it was removed or renamed; change to another one"
        return _failed("no-such-file", text, f"kiln: error: {text}")
    from kiln.command_line.__main__ import main as run

    return run()


def _open_standard_streams() -> None:
    """Connect standard streams that are closed with /dev/null: other files would get their numbers."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _failed(code: str, text: str, line: str) -> int:
    """Print an error, with --json as an answer, made without the module of its schema; returns the status."""
    words = sys.argv[1:]
    if "--json" not in words:
        print(line, file=sys.stderr)
        return 2
    command = next((word for word in words if "=" not in word and not word.startswith("-")), "")
    _print_answer(command, 2, {"code": code, "text": text}, [])
    return 2


def _say_version() -> int:
    """Print Kiln's version, which no dependency is needed for; returns the status."""
    if "--json" in sys.argv:
        part: dict[str, object] = {
            "goal": "version",
            "model": None,
            "target": None,
            "device": None,
            "files": {},
        }
        _print_answer("version", 0, None, [{**part, "data": {"version": __version__}}])
    else:
        print(f"kiln {__version__}")
    return 0


def _print_answer(command: str, status: int, error: object, results: list[Any]) -> None:
    """Print an answer as kiln.command_line.answer describes it, a module that needs pydantic."""
    import json  # here, as no exception is caught while this module is imported

    answer = {"format": 1, "kiln": __version__, "command": command, "status": status, "error": error}
    print(json.dumps({**answer, "results": results, "messages": []}, indent=1))
