"""A plugin of QEMU that counts the instructions of a whole program: programs/count.c, compiled here."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from kiln.errors import KilnError
from kiln.toolchain import run as run_tool
from kiln.toolchain import zig_command

SOURCE = Path(__file__).resolve().parent / "programs" / "count.c"


def make_plugin(emulator: str, folder: Path) -> tuple[Path, str]:
    """Compile the plugin for this machine's `emulator` into `folder`; returns it and the emulator's version.

    Raises KilnError where the emulator does not report its version, or the plugin cannot be compiled.
    """
    output = subprocess.run([emulator, "--version"], check=False, capture_output=True, text=True).stdout
    version = re.search(r"version (\d+)([0-9.]*)", output)
    if version is None:
        raise KilnError(f"{emulator} --version does not report a version")
    plugin = folder / "count.so"
    command = [*zig_command(), "cc", "-std=c11", "-O2", "-shared", "-fPIC"]
    command.append(f"-DPLUGIN_VERSION={1 if int(version[1]) < 9 else 2}")
    run_tool([*command, str(SOURCE), "-o", str(plugin)], "compiling QEMU's plugin")
    return plugin, version[1] + version[2]
