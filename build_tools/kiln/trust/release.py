"""The greatest release that a bundle or an image was signed with, so that the next one is not lower.

A build writes a bundle's folder anew, without its signature; the number is kept in a file next to it.
"""

from __future__ import annotations

from pathlib import Path

from kiln.errors import KilnError
from kiln.files import read_json, write_json
from kiln.trust import FOLDER


def kept_in(signed: Path) -> Path:
    """The file that keeps the release of the bundle's folder or the image `signed`."""
    return signed.with_name(f"{signed.name}.release.json")


def check(signed: Path, release: int, present: int) -> None:
    """Raise KilnError where `signed` had a release above `release`; `present` is the one it still has."""
    path = kept_in(signed)
    kept = _read(path) if path.exists() else 0
    greatest = max(present, kept)
    if release < greatest:
        ways = [f"remove {path}"] if kept > release else []
        if present > release:  # a copy of a signed bundle has no file next to it
            ways.append(f"remove {signed / FOLDER}" if signed.is_dir() else "build it anew")
        raise KilnError(
            f"release {release}: {signed} was signed as release {greatest}, and a device that has had it "
            f"refuses lower ones; allowed: {greatest} or more (if none has: {' and '.join(ways)})"
        )


def keep(signed: Path, release: int) -> None:
    """Remember that `signed` has this release."""
    write_json(kept_in(signed), {"release": release})


def _read(path: Path) -> int:
    content = read_json(path)
    release = content.get("release") if isinstance(content, dict) else None
    if not isinstance(release, int):
        raise KilnError(f"{path}: damaged: it has no number 'release'; write the greatest release there")
    return release
