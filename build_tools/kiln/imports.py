"""Whether what pip has installed in another environment can be imported there.

pip compares version numbers alone. Libraries with machine code may still not fit each other: with an index or
a folder of wheels in pip's configuration, one may come from there as a build for CPUs, and another one, which
is compiled against it, from PyPI as a build for GPUs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln.errors import KilnError

_SECONDS = 600  # the first import of PyTorch compiles thousands of modules
# Prints the versions of distributions, and the first whose modules cannot be imported.
_PROGRAM = """
import importlib, json, re, sys
from importlib import metadata
plain = lambda name: re.sub(r"[-_.]+", "_", name).lower()
modules = {}
for module, owners in metadata.packages_distributions().items():
    for owner in owners:
        modules.setdefault(plain(owner), set()).add(module)
report, answers = {"versions": {}, "failed": None}, sys.stdout
sys.stdout = sys.stderr
for name in sys.argv[1:]:
    try:
        report["versions"][name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        report["failed"] = [name, "it is not there"]
        break
for name in report["versions"] if report["failed"] is None else ():
    print(name, file=sys.stderr, flush=True)
    found = modules.get(plain(name), ())
    for module in [module for module in found if plain(module) == plain(name)] or sorted(found):
        try:
            if module.isidentifier():
                importlib.import_module(module)
                version = getattr(sys.modules[module], "__version__", None)
                report["versions"][name] = str(version or report["versions"][name])
        except BaseException as error:
            lines = str(error).strip().splitlines()
            report["failed"] = report["failed"] or [name, f"{type(error).__name__}: {''.join(lines[:1])}"]
json.dump(report, answers)
"""


def check_imports(python: Path, names: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Raise KilnError for the first of the distributions `names` that `python` cannot import.

    `environment`: variables in addition to those of this process.
    """
    command = [str(python), "-c", _PROGRAM, *names]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=_SECONDS,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KilnError(f"{python}: what is installed there cannot be tried: {error}") from None
    if done.returncode == 0:
        report = json.loads(done.stdout)
        if report["failed"] is not None:
            raise KilnError(_fault(python, report))
        return
    lines = done.stderr.strip().splitlines() or ["no reason given"]
    if done.returncode < 0:  # a library has ended the process: its name is the last that was printed
        last = next((line for line in reversed(lines) if line in names), names[0])
        name = signal.Signals(-done.returncode).name
        raise KilnError(f"{python}: {last} is installed there, but its import ends with {name}{_way(python)}")
    raise KilnError(f"{python}: what is installed there cannot be tried: {lines[-1]}")


def _fault(python: Path, report: Mapping[str, Any]) -> str:
    """The line about a distribution that cannot be imported."""
    (failed, reason), versions = report["failed"], report["versions"]
    if failed not in versions:
        return f"{python}: '{failed}' is not installed there"
    builds = {name: version for name, version in versions.items() if "+" in version and name != failed}
    others = "".join(f", next to {name} {version}" for name, version in builds.items())
    return (
        f"{python}: {failed} {versions[failed]} is installed there{others}, but cannot be imported: {reason}"
        f"{_way(python)}"
    )


def _way(python: Path) -> str:
    """The remedy for libraries that do not fit each other, as the end of an error."""
    return (
        f"; libraries that belong together must be of one index (pip config list shows where pip looks): "
        f"{python} -m pip install --force-reinstall --no-deps --index-url URL NAME==VERSION …, for PyTorch "
        "on CPUs with the URL https://download.pytorch.org/whl/cpu"
    )
