"""Output of the goals for devices: tables, and with -n the commands that would run on the device."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from kiln.config import Device
from kiln.device.deploy import script
from kiln.device.deploy.copies import File
from kiln.tables import table_console

_ONCE = ("facts", "lock", "state")
_COPY = ("incoming", "adopt")
_RUN = ("run", "end")
# Commands on the device other than scripts: (goals, the script after which the command runs, the command).
_RUNS_A_PROGRAM = ("flash", "test", "run", "bench", "profile")
_PLAIN = (
    (("flash",), "state", "rm -f ROOT/.kiln/blobs/SHA256 …      (only what is found to be damaged)"),
    (("rollback",), "state", "sh -c '… cat \"$1\" …' FILE         (installed.json of the version before)"),
    (_RUNS_A_PROGRAM, "incoming", "sh -c 'command -v tar', tar -x -o -f - -C /"),
    (
        _RUNS_A_PROGRAM,
        "incoming",
        "sh -c 'cat > \"$1\"' FILE         (where there is no tar; or adb push)",
    ),
    (_RUNS_A_PROGRAM, "run", "sh -c '… cat \"$1\" …' FILE         (what the program wrote: outputs.bin)"),
)
# The scripts of each goal in order. `beat` runs every few seconds in the meantime.
_GOALS = {
    "flash": (*_ONCE, *_COPY, "stage", "verify", *_RUN, "switch", "clean", "beat", "unlock"),
    "rollback": (*_ONCE, "verify", "switch", "beat", "unlock"),
    "status": (*_ONCE, "verify", "beat", "unlock"),
    "test": (*_ONCE, *_COPY, *_RUN, "beat", "unlock"),
}
_ALL, _LOADS, _RUNS = ("flash", "status", "run", "test"), ("flash", "run", "test"), ("run", "test")
# (packets, what they do, goals that send them), in the order of sending
_PACKETS = (
    ("qSupported, QStartNoAckMode", "what the server can do", _ALL),
    ("qXfer:memory-map:read", "which memory is flash", _ALL),
    ("m e000ed00", "which core it is", _ALL),
    ("qCRC, or m", "is the program there already, block by block", _ALL),
    ("vFlashErase, vFlashWrite", "blocks of flash that differ, with their other contents", _LOADS),
    ("M", "blocks of other memory that differ", _LOADS),
    ("qCRC, or m", "the whole program, checked in memory", _LOADS),
    ("M e000ed08, P", "the vector table's address; stack, program counter, flags", _LOADS),
    ("Z1, c, then z1", "run to kiln_exit", _RUNS),
    ("m, M, p", "what the program asks of its files, and its status", _RUNS),
)


def rows(title: str, entries: Mapping[str, str]) -> None:
    """Print a table with a title and two columns, keys and values."""
    console = table_console()
    width = min(len(title), console.width)
    table = Table(title=title, title_justify="left", show_header=False, min_width=width)
    for key, value in entries.items():
        table.add_row(Text(key), Text(value))
    console.print(table)


def grid(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table with the column titles `head`."""
    table = Table(*head)
    for line in lines:
        table.add_row(*map(Text, line))
    table_console().print(table)


def listing(goal: str, device: Device, model: str) -> str:
    """Text of the commands that `goal` would run on the device, in order, then the text of each script.

    Words in capitals are placeholders for values that are known once the device has answered.
    """
    names = _GOALS.get(goal, _GOALS["test"])
    lines = [f"{_place(device)}, for {model}:"]
    for name in names:
        parameters = script.purpose(name).partition(":")[0].partition(",")[0].split()[1:]
        placeholders = {"FOLDER": device.folder, "ROOT": device.folder, "MODEL": model, "KEEP": model}
        if name == "verify":
            placeholders["FOLDER"] = f"{device.folder}/{model}/versions/VERSION"
        words = " ".join(
            shlex.quote(placeholders[word]) if word in placeholders else word for word in parameters
        )
        lines.append(f"  sh -c '({name})' {name} {words}")
        lines += [f"  {plain}" for goals, after, plain in _PLAIN if goal in goals and after == name]
    for name in ("prelude", *names):
        lines += ["", f"{name}.sh:" if name == "prelude" else f"({name}), after prelude.sh:"]
        lines += [f"    {line}" for line in script.source(name).splitlines()]
    return "\n".join(lines)


def program_listing(goal: str, device: Device, program: str) -> str:
    """Text of the packets of gdb's protocol that `goal` would send for a program, in order."""
    lines = [f"{_place(device)}, for {program}:"]
    lines += [f"  {packets:<28} {what}" for packets, what, goals in _PACKETS if goal in goals]
    return "\n".join(lines)


def _place(device: Device) -> str:
    settings = device.transport.model_dump().items()
    how = ", ".join(f"{key} {value}" for key, value in settings if value is not None)
    return f"on device '{device.name}' ({how})"


def sizes(files: Sequence[File]) -> str:
    """Number and total size of files as text: `14 files, 1,234 bytes`."""
    return f"{len(files)} file{'' if len(files) == 1 else 's'}, {sum(file.bytes for file in files):,} bytes"


def origin(installed: Mapping[str, Any]) -> str:
    """Origin of an installed version as text: `2026-11-21 08:45:12 UTC by ann@desk, target aarch64`."""
    return f"{installed['installed']} by {installed['by']}, target {installed['target']}"
