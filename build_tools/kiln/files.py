"""Atomic files and folders: content is written to a temporary name next to its path, then renamed."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kiln.errors import KilnError

_LEAST_FREE = 1 << 20  # bytes; with fewer, what ended without a reason has most likely met a full disk


_FULL = (errno.ENOSPC, errno.EDQUOT)


def full_disk(folders: Iterable[Path]) -> str | None:
    """The sentence that one of these folders, of those that exist, has hardly any space left, or None."""
    for folder in folders:
        if folder.is_dir():
            free = shutil.disk_usage(folder).free
            if free < _LEAST_FREE:
                return f"No space left on device? {folder} has {free} bytes left"
    return None


def reason(error: OSError) -> str:
    """The system's text for an error, with the limit of the shell that has caused it."""
    text = str(error.strerror or error)
    if error.errno != errno.EMFILE:
        return text
    import resource  # here: Windows has none

    return f"{text}: this shell allows {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} (ulimit -n)"


def error_text(error: OSError) -> str:
    """An error of the system as a line: the file, where the error has it, and the reason.

    Where a disk is full, errors of open files name none: then the folder without space is named, of the
    current one and that of temporary files.
    """
    if error.filename:
        return f"{error.filename}: {reason(error)}"
    full = full_disk([Path.cwd(), Path(tempfile.gettempdir())]) if error.errno in _FULL else None
    return full or reason(error)


@functools.cache
def _umask() -> int:
    """The permissions that this process withholds from files and folders that it creates."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)  # the only other way to read it, for a moment in which no thread may create files
    os.umask(mask)
    return mask


def set_mode(path: str | os.PathLike[str], executable: bool = False) -> None:
    """Give a file, or with `executable` a program or folder, the permissions of one that was created plainly.

    Files with a temporary name, and those of some tools, are readable for their owner alone, or executable.
    """
    os.chmod(path, (0o777 if executable else 0o666) & ~_umask())


def atomic_write(path: str | os.PathLike[str], data: bytes | str, *, sync: bool = True) -> None:
    """Write `data` to `path` atomically: a reader sees the old file or the new one, never a partial file.

    `sync`: also when the machine crashes, which takes milliseconds. Raises KilnError naming the file if the
    disk is full or the folder cannot be written.
    """
    write_together({Path(path): data}, sync=sync)


def write_together(contents: Mapping[Path, bytes | str], *, sync: bool = True) -> None:
    """Write files that belong together, each as `atomic_write` does: all of them, or on a full disk none.

    The files get their names, in the order of `contents`, once all of them are written.
    """
    payloads = {path: data.encode() if isinstance(data, str) else data for path, data in contents.items()}
    temporaries: dict[Path, str] = {}
    try:
        for path, payload in payloads.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporaries[path] = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            with os.fdopen(handle, "wb") as stream:
                stream.write(payload)
                if sync:
                    stream.flush()
                    os.fsync(stream.fileno())
            set_mode(temporaries[path])
        for path in contents:
            os.replace(temporaries[path], path)
    except OSError as error:
        for temporary in temporaries.values():
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise KilnError(f"{path}: cannot write {len(payloads[path])} bytes: {reason(error)}") from error


def json_text(value: Any) -> str:
    """`value` as JSON with sorted keys, so that equal values give equal bytes."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def make_build_folder(path: str | os.PathLike[str]) -> None:
    """Make the folder `path` below build/ of the current folder. Raises KilnError where it cannot be made."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        build = Path("build").absolute()
        if build.is_symlink() and not build.exists():
            raise KilnError(f"{build}: a link to {build.readlink()}, which does not exist") from None
        raise KilnError(
            f"{build}: cannot be made: {reason(error)}; builds go to build/ of the current folder: change to "
            "one that you can write to"
        ) from None


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` to a file as `json_text` has it."""
    atomic_write(path, json_text(value))


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file. Raises KilnError naming the file if it cannot be read or is not valid JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise KilnError(f"{path}: cannot read: {reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise KilnError(f"{path}: not valid JSON: {error}") from error


def _reason(error: OSError) -> str:
    """The system's text for an error; of the errors of a copied folder, which shutil collects, the first."""
    if isinstance(error, shutil.Error):
        _, _, text = error.args[0][0] if isinstance(error.args[0], list) else ("", "", str(error))
        return re.sub(r"^\[Errno \d+\] |: '[^']*'( -> '[^']*')?$", "", str(text))
    return reason(error)


@contextlib.contextmanager
def atomic_dir(path: str | os.PathLike[str], *, shared: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder; when the block ends without an exception, the folder replaces `path`.

    `shared`: other processes may write the same content to `path` at the same time and read it; the first
    folder that is complete stays. Raises KilnError if the folder cannot be written.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        set_mode(temporary, executable=True)
        yield temporary
        if path.is_dir() and not path.is_symlink() and not shared:
            shutil.rmtree(path)
        try:
            os.replace(temporary, path)
        except OSError:
            if not (shared and path.is_dir()):
                raise
    except OSError as error:
        raise KilnError(f"{path}: cannot write: {_reason(error)}") from error
    finally:
        if temporary is not None and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)
