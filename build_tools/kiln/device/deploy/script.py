"""Shell scripts that Kiln runs on a device: constant texts.

Arguments are passed separately, never inserted.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from kiln.device.deploy.transports import TIMEOUT, Answer, Transport
from kiln.errors import KilnError

_FOLDER = Path(__file__).resolve().parent / "scripts"


@functools.cache
def text(name: str) -> str:
    """The text of a script, preceded by the prelude that all scripts share."""
    return source("prelude") + source(name)


def purpose(name: str) -> str:
    """The script's first line: its name, arguments and purpose."""
    return source(name).splitlines()[0].lstrip("# ")


def command(name: str, *arguments: str) -> list[str]:
    """The command line that runs a script with `arguments`."""
    return ["sh", "-c", _without_comments(text(name)), name, *arguments]


def run(
    transport: Transport, name: str, *arguments: str, lines: Sequence[str] = (), timeout: float = TIMEOUT
) -> str:
    """Run a script on a device, with `lines` on standard input; returns its standard output.

    Raises KilnError, with the script's last line on stderr, when it fails.
    """
    answer = attempt(transport, name, *arguments, lines=lines, timeout=timeout)
    if answer.status:
        raise KilnError(f"{transport.description}: {name} failed: {answer.complaint}")
    return answer.text


def attempt(
    transport: Transport, name: str, *arguments: str, lines: Sequence[str] = (), timeout: float = TIMEOUT
) -> Answer:
    """Run a script that may fail; returns its status and output."""
    input_text = "".join(f"{line}\n" for line in lines).encode()
    return transport.run(command(name, *arguments), stdin=input_text, timeout=timeout)


def _without_comments(script: str) -> str:
    return "".join(f"{line}\n" for line in script.splitlines() if not line.lstrip().startswith("#"))


@functools.cache
def source(name: str) -> str:
    """The text of a script's file, with comments."""
    return (_FOLDER / f"{name}.sh").read_text(encoding="utf-8")
