"""Downloads Debian packages and extracts pinned files from them; nothing is installed or run."""

from __future__ import annotations

import lzma
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

from kiln.byoc.backend import Deb
from kiln.errors import KilnError
from kiln.scratch import scratch_folder
from kiln.sources import cache
from kiln.toolchain import archiver_command

# The archive of current releases, and the archive of older releases.
MIRRORS = ("https://deb.debian.org/debian/", "http://archive.debian.org/debian/")
_SECONDS = 60  # timeout while a server sends nothing
_DATA = "data.tar.xz"


def fetch(deb: Deb, folder: Path, mirrors: Iterable[str] = MIRRORS) -> None:
    """Put the package's files into `folder`; download the package if a file is not in the cache.

    Raises KilnError if the package cannot be downloaded or a file's SHA-256 differs.
    """
    absent = []
    for path, (name, digest) in deb.files.items():
        cached = cache.lookup(digest, Path(path).name)
        if cached is None:
            absent.append(path)
        else:
            _add_file(cached, folder, name)
    if not absent:
        return
    with scratch_folder("fetch") as temporary:
        archive = _download(deb, Path(temporary) / "package.deb", mirrors)
        data = _contents(deb, archive)
        for path in absent:
            name, digest = deb.files[path]
            member = Path(temporary) / "member"
            member.write_bytes(_read_member(deb, data, path))
            _add_file(cache.keep(member, digest, Path(path).name, f"{deb.path}: {path}"), folder, name)


def _add_file(path: Path, folder: Path, name: str) -> None:
    """Copy a file to `folder`/`name`; append it if it is a further licence.txt."""
    out = folder / name
    if out.name == "licence.txt" and out.exists():
        with out.open("ab") as stream:
            stream.write(b"\n" + path.read_bytes())
    else:
        cache.copy(path, out)


def _download(deb: Deb, out: Path, mirrors: Iterable[str]) -> Path:
    reason = "no mirror"
    for mirror in mirrors:
        try:
            with (
                urllib.request.urlopen(mirror + deb.path, timeout=_SECONDS) as answer,
                out.open("wb") as file,
            ):
                shutil.copyfileobj(answer, file, 1 << 20)
            return out
        except (urllib.error.URLError, OSError) as error:
            reason = f"{mirror}: {getattr(error, 'reason', None) or error}"
    raise KilnError(f"{deb.path}: cannot download from Debian's archive: {reason}")


def _contents(deb: Deb, archive: Path) -> tarfile.TarFile:
    """The files of a package: an ar archive with a compressed tar archive in it (deb(5))."""
    command = [*archiver_command(), "p", str(archive), _DATA]
    done = subprocess.run(command, capture_output=True, check=False)
    try:
        if done.returncode != 0:
            raise ValueError(done.stderr.decode(errors="replace").strip())
        return tarfile.open(fileobj=BytesIO(lzma.decompress(done.stdout)))
    except (ValueError, lzma.LZMAError, tarfile.TarError) as error:
        raise KilnError(f"{deb.path}: cannot be read as a package of Debian: {error}") from error


def _read_member(deb: Deb, data: tarfile.TarFile, path: str) -> bytes:
    try:
        stream = data.extractfile(f"./{path}")
    except KeyError:
        stream = None
    if stream is None:
        raise KilnError(f"{deb.path}: no file '{path}' in it")
    return stream.read()
