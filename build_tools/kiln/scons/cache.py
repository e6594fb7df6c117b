"""A cache of stage outputs in a folder that builds in other folders, on other machines and in CI may share.

SCons's own cache stores single files, and only declared ones; most stages fill a folder. So Kiln's nodes are
excluded from SCons's cache, and all outputs of a stage are stored together:

    stages/ab/abcd….json     by the key of a stage's run: its outputs, each with name, mode and SHA-256
    blobs/12/1234…           contents of files, by SHA-256, so that equal files are stored once

The key is a digest of the stage's name, its flags, the contents of all files that it reads, its own source
and the versions of the libraries and of the C compiler. Only paths relative to the build are part of the key.
Each file is written under a temporary name and renamed, so that several builds may write at a time. A damaged
or missing file is detected by its SHA-256: the stage then runs as if there were no cache, and the file is
replaced.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import SCons.Defaults
import SCons.Node.Python
from SCons.Script import GetOption

from kiln.config import Target
from kiln.errors import KilnError
from kiln.files import atomic_dir, write_json
from kiln.scons import digest
from kiln.sources.cache import copy, file_sha256
from kiln.stage import Input
from kiln.toolchain import compiler_command

if TYPE_CHECKING:
    from kiln.scons.stage import StageNode

_FORMAT = 1  # version of the entries; part of every key, so a new version invalidates all entries
_CONFIG_BYTES = 1 << 20  # larger JSON files are data, which is not searched for paths


class _DamagedError(Exception):
    """An entry, or a file that the entry names, differs from what was written."""


_chosen: list[Path | None] = []


def choose(text: str) -> None:
    """Use the folder `text` instead of KILN_CACHE; `none`: no cache.

    Raises KilnError where the folder cannot be created.
    """
    if not text:
        raise KilnError("option 'cache': a folder or none expected")
    if text == "none":
        _chosen[:] = [None]
        return
    folder = Path(text).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KilnError(f"option 'cache': {folder}: {error.strerror}") from error
    _chosen[:] = [folder]


def chosen() -> StageCache | None:
    """The cache of this build: from the option `cache`, else KILN_CACHE, else in SCons's own CacheDir.

    None where none of the three is set, or with SCons's --cache-disable.
    """
    if _chosen:
        folder = _chosen[0]
    elif os.environ.get("KILN_CACHE"):
        folder = Path(os.environ["KILN_CACHE"]).absolute()
    else:
        # Read from the private attribute: a public call would create the default environment, which searches
        # for compilers.
        scons = getattr(SCons.Defaults._default_env, "_CacheDir_path", None)
        folder = Path(scons).absolute() / "kiln" if scons else None
    return StageCache(folder) if folder is not None and not GetOption("cache_disable") else None


class StageCache:
    """The cache in `folder`. Safe to use from several threads and by several builds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}
        self._told = False

    def entry(self, stage: StageNode) -> Entry | None:
        """The entry for the outputs of this run of a stage; None for a stage that always runs."""
        if not stage.stage.spec.cached or stage.markers:
            return None
        try:
            return Entry(self, stage, self._key(stage))
        except OSError:  # the stage reports an unreadable input with a better message
            return None

    def file(self, sha256: str) -> Path:
        """Path in the cache of the content with this SHA-256."""
        return self.folder / "blobs" / sha256[:2] / sha256

    def warn(self, error: Exception) -> None:
        """Warn that outputs cannot be stored, once in a build."""
        with self._lock:
            told, self._told = self._told, True
        if not told:
            print(f"kiln: warning: the cache cannot be written: {error}", file=sys.stderr, flush=True)

    def sha256(self, path: Path) -> str:
        """SHA-256 of a file; read again only when its inode, size or times have changed."""
        found = path.stat()
        state = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        with self._lock:
            known = self._known.get(str(path))
        if known is None or known[0] != state:
            known = (state, file_sha256(path))
            with self._lock:
                self._known[str(path)] = known
        return known[1]

    def _key(self, stage: StageNode) -> str:
        parts = [f"{_FORMAT}", stage.name, digest.of_stage(stage.name), platform.machine()]
        parts.append("{}.{}".format(*sys.version_info[:2]))
        outside: dict[str, str] = {f"{Path.cwd()}/": ""}
        files: list[Path] = []
        for node in stage.inputs:
            if isinstance(node, SCons.Node.Python.Value):
                parts.append(node.get_text_contents())
                continue
            path = Path(str(node))
            files.append(path)
            if path.is_absolute():
                outside[str(path)] = self.sha256(path)
        parts += [_relative(word, outside) for word in stage.stage.words(silent=False)]
        for one, values in stage.stage.values():
            if isinstance(one.kind, Input):
                files += [file for path in values for file in _files(path)]
        for path in files:
            parts.append(self._content(path, outside))
        target = getattr(stage.stage, "target", None)
        if target is not None:
            parts.append(_compiler(target.read_text(encoding="utf-8")))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _content(self, path: Path, outside: dict[str, str]) -> str:
        """A digest of a file.

        In JSON configuration, each path in `outside` is replaced by its content's hash.
        """
        name = "" if path.is_absolute() else str(path)
        if path.suffix == ".json" and path.stat().st_size <= _CONFIG_BYTES:
            text = _relative(path.read_text(encoding="utf-8"), outside)
            return f"{name} {hashlib.sha256(text.encode()).hexdigest()}"
        return f"{name} {self.sha256(path)}"


class Entry:
    """The cache entry for the outputs of one run of a stage; it may not exist yet."""

    def __init__(self, cache: StageCache, stage: StageNode, key: str) -> None:
        self._cache = cache
        self._path = cache.folder / "stages" / key[:2] / f"{key}.json"
        self._folder = stage.folder
        self._outputs = [name for name in stage.outputs if not self._inside(name)]

    def restore(self) -> bool:
        """Copy the outputs from the cache into the build folder; returns whether this succeeded.

        False, with nothing changed, where an output is missing or damaged in the cache. Raises KilnError
        where an output cannot be written.
        """
        try:
            files = self._read()
            for file in files.values():
                self._verify(file)
            if self._folder is not None:
                with atomic_dir(self._folder) as made:
                    for name in filter(self._inside, files):
                        self._put(files[name], made / Path(name).relative_to(self._folder))
            for name in self._outputs:
                self._put(files[name], Path(name))
        except _DamagedError:
            return False
        for path in (self._path, *(self._cache.file(file["sha256"]) for file in files.values())):
            with contextlib.suppress(OSError):  # the time of last use, for tools that clean the cache
                os.utime(path)
        return True

    def store(self) -> None:
        """Store the outputs in the cache. On failure, print a warning and continue the build."""
        try:
            folder = Path(self._folder) if self._folder is not None else None
            inside = [] if folder is None else _files(folder)
            files = [*inside, *map(Path, self._outputs)]
            entries = []
            for path in files:
                if path.is_symlink():
                    return
                sha256 = self._cache.sha256(path)
                place = self._cache.file(sha256)
                if not (place.is_file() and file_sha256(place) == sha256):
                    copy(path, place)
                executable = bool(path.stat().st_mode & 0o100)
                entries.append({"name": str(path), "sha256": sha256, "executable": executable})
            write_json(self._path, {"files": entries, "check": _check(entries)})
        except (OSError, KilnError) as error:
            self._cache.warn(error)

    def _inside(self, name: str) -> bool:
        return self._folder is not None and Path(self._folder) in Path(name).parents

    def _read(self) -> dict[str, dict[str, Any]]:
        """The entry's files by name: all expected outputs, and none outside of the stage's folder.

        Raises _DamagedError where the entry is missing or damaged.
        """
        try:
            entry = json.loads(self._path.read_text(encoding="utf-8"))
            whole = entry["check"] == _check(entry["files"])
            files = {str(file["name"]): file for file in entry["files"]}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise _DamagedError from error
        elsewhere = [name for name in files if not self._inside(name) and name not in self._outputs]
        if not whole or elsewhere or any(".." in Path(name).parts for name in files):
            raise _DamagedError
        if not set(self._outputs) <= set(files):
            raise _DamagedError
        return files

    def _verify(self, file: dict[str, Any]) -> None:
        """Raise _DamagedError where the content of an output is missing or has another SHA-256."""
        kept = self._cache.file(file["sha256"])
        try:
            if file_sha256(kept) == file["sha256"]:
                return
            kept.unlink()
        except OSError as error:
            raise _DamagedError from error
        raise _DamagedError

    def _put(self, file: dict[str, Any], out: Path) -> None:
        copy(self._cache.file(file["sha256"]), out)
        out.chmod(0o755 if file["executable"] else 0o644)


def _relative(text: str, outside: dict[str, str]) -> str:
    for path in sorted(outside, key=len, reverse=True):
        text = text.replace(path, outside[path])
    return text


def _files(path: Path) -> list[Path]:
    """`path` itself for a file, or all files of a folder, sorted by name; empty where it does not exist."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def _check(entries: Sequence[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


@functools.cache
def _compiler(target: str) -> str:
    """The `--version` output of a target.json's C compiler.

    Empty for zig, which is in every stage's digest.
    """
    chosen = Target.model_validate_json(target)
    if chosen.c_compiler.kind == "zig" and chosen.c_compiler.command is None:
        return ""
    command = [*compiler_command(chosen)[:1], "--version"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout
