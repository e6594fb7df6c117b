"""A cache of stage outputs that builds in other folders, on other machines and in CI may share.

SCons's own cache stores single files, and only declared ones; most stages fill a folder. So Kiln's nodes are
excluded from SCons's cache, and all outputs of a stage are stored together: an entry lists them, and their
contents are stored by SHA-256. `kiln.scons.storage` reads and writes both.

The key of an entry is a digest of the stage's name, its flags, the contents of all files that it reads, its
own source and the versions of the libraries and of the C compiler. Only paths relative to the build are part
of the key. A damaged or missing file is detected by its SHA-256: the stage then runs as if there were no
cache, and the file is replaced. A stage also runs where the cache cannot be reached, after one warning.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import SCons.Defaults
import SCons.Node.Python
from SCons.Script import GetOption

from kiln.errors import KilnError
from kiln.files import atomic_dir, set_mode
from kiln.scons import digest
from kiln.scons.stage_node import StageNode
from kiln.scons.storage import DamagedError, Storage, StorageError, open_storage
from kiln.scons.storage.requests import for_each
from kiln.sources.cache import file_sha256
from kiln.stage import Input

_FORMAT = 2  # version of the entries; part of every key, so a new version invalidates all entries
_MOST_FAILURES = 3  # one output may be too large, or the disk full for it
_CONFIG_BYTES = 1 << 20  # larger JSON files are data, which is not searched for paths

_chosen: list[str | None] = []


def choose(text: str) -> None:
    """Use the folder or URL `text` instead of KILN_CACHE; no cache if it is "none".

    Raises KilnError for a folder that cannot be created, a wrong URL, and a package that is missing.
    """
    if text != "none":
        open_storage(text)
    _chosen[:] = [None if text == "none" else text]


def cache_of_build() -> StageCache | None:
    """The cache of this build: from the option `cache`, else KILN_CACHE, else in SCons's own CacheDir.

    None where none of the three is set, or with SCons's --cache-disable.
    """
    text: str | None
    if _chosen:
        text = _chosen[0]
    elif os.environ.get("KILN_CACHE"):
        text = None if os.environ["KILN_CACHE"] == "none" else os.environ["KILN_CACHE"]
    else:
        # Read from the private attribute: a public call would create the default environment, which searches
        # for compilers.
        scons = getattr(SCons.Defaults._default_env, "_CacheDir_path", None)
        text = str(Path(scons).absolute() / "kiln") if scons else None
    return StageCache(open_storage(text)) if text is not None and not GetOption("cache_disable") else None


class StageCache:
    """The cache in `storage`. Safe to use from several threads and by several builds."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._lock = threading.Lock()
        self._digests: dict[str, tuple[tuple[int, ...], str]] = {}
        self._failures = 0  # of outputs that could not be stored
        self.unreadable = False  # after the first failure, this build does not use the cache any more

    def entry(self, stage: StageNode) -> Entry | None:
        """The entry for the outputs of this run of a stage; None for a stage that always runs."""
        if self.unreadable or not stage.stage.spec.cached or stage.markers:
            return None
        try:
            return Entry(self, stage, self._key(stage))
        except OSError:  # the stage reports an unreadable input with a better message
            return None

    @property
    def unwritable(self) -> bool:
        """Whether this build stores nothing more: each output would wait for a server that takes none."""
        return self._failures >= _MOST_FAILURES

    def warn(self, error: Exception) -> None:
        """Warn that outputs cannot be stored, once in a build."""
        with self._lock:
            self._failures += 1
            is_first = self._failures == 1
        if is_first:
            print(f"kiln: warning: the cache cannot be written: {error}", file=sys.stderr, flush=True)

    def fail(self, error: Exception) -> None:
        """Warn that the cache cannot be read; it is not used any more in this build."""
        with self._lock:
            unreadable, self.unreadable = self.unreadable, True
        if not unreadable:
            print(f"kiln: warning: the cache cannot be read: {error}", file=sys.stderr, flush=True)

    def put(self, path: Path) -> dict[str, Any]:
        """Store the content of a file, if it is not there yet; returns the file as an entry lists it."""
        sha256 = self.sha256(path)
        if not self.storage.has(sha256):
            self.storage.put(path, sha256)
        status = path.stat()
        return {
            "name": str(path),
            "sha256": sha256,
            "bytes": status.st_size,
            "executable": bool(status.st_mode & 0o100),
        }

    def sha256(self, path: Path) -> str:
        """SHA-256 of a file; read again only when its inode, size or times have changed."""
        status = path.stat()
        state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        with self._lock:
            cached = self._digests.get(str(path))
        if cached is None or cached[0] != state:
            cached = (state, file_sha256(path))
            with self._lock:
                self._digests[str(path)] = cached
        return cached[1]

    def _key(self, stage: StageNode) -> str:
        words = [f"{_FORMAT}", stage.name, digest.of_stage(stage.name), platform.machine()]
        words.append("{}.{}".format(*sys.version_info[:2]))
        words += [
            node.get_text_contents() for node in stage.inputs if isinstance(node, SCons.Node.Python.Value)
        ]
        files = files_of(stage)
        replacements = {f"{Path.cwd()}/": ""}
        replacements |= {str(path): self.sha256(path) for path in files if path.is_absolute()}
        words += [_with_replacements(word, replacements) for word in stage.stage.words(silent=False)]
        words += [self._content(path, replacements) for path in files]
        target = getattr(stage.stage, "target", None)
        if target is not None:
            words.append(digest.of_compiler(target.read_text(encoding="utf-8")))
        return hashlib.sha256("\0".join(words).encode()).hexdigest()

    def _content(self, path: Path, replacements: dict[str, str]) -> str:
        """A digest of a file.

        In JSON configuration, each path in `replacements` is replaced by its content's hash.
        """
        name = "" if path.is_absolute() else str(path)
        if path.suffix == ".json" and path.stat().st_size <= _CONFIG_BYTES:
            text = _with_replacements(path.read_text(encoding="utf-8"), replacements)
            return f"{name} {hashlib.sha256(text.encode()).hexdigest()}"
        return f"{name} {self.sha256(path)}"


class Entry:
    """The cache entry for the outputs of one run of a stage; it may not exist yet."""

    def __init__(self, cache: StageCache, stage: StageNode, key: str) -> None:
        self._cache = cache
        self._key = key
        self._stage = stage

    def restore(self) -> bool:
        """Copy the outputs from the cache into the build folder; returns whether this succeeded.

        False, with nothing changed, where an output is missing or damaged in the cache, or the cache cannot
        be read. Raises KilnError where an output cannot be written.
        """
        try:
            files = self._cache.storage.entry(self._key)
            place_outputs(self._cache.storage, self._stage, files)
        except DamagedError:
            return False
        except StorageError as error:
            self._cache.fail(error)
            return False
        self._cache.storage.used(self._key, files)
        return True

    def store(self) -> None:
        """Store the outputs in the cache. On failure, print a warning and continue the build."""
        if self._cache.unreadable or self._cache.unwritable:
            return
        try:
            folder = Path(self._stage.folder) if self._stage.folder is not None else None
            in_folder = [] if folder is None else _files(folder)
            outputs = [name for name in self._stage.outputs if not _is_in_folder(self._stage, name)]
            files = [*in_folder, *map(Path, outputs)]
            if any(path.is_symlink() for path in files):
                return
            self.record(for_each(self._cache.put, files))
        except (OSError, KilnError, StorageError) as error:
            self._cache.warn(error)

    def record(self, files: Sequence[Mapping[str, Any]]) -> None:
        """Store that these files, whose contents are stored, are the outputs. Raises StorageError."""
        self._cache.storage.put_entry(self._key, files)


def place_outputs(storage: Storage, stage: StageNode, files: Sequence[Mapping[str, Any]]) -> None:
    """Copy the outputs of a stage, which `files` lists, from `storage` into the build folder.

    Raises DamagedError, with nothing changed, where an output is missing or damaged, or where `files` has a
    file that is not an output; StorageError where the storage cannot be read; KilnError where an output
    cannot be written.
    """
    named = {str(file["name"]): file for file in files}
    expected = set(stage.outputs)
    if not expected <= set(named) or any(".." in Path(name).parts for name in named):
        raise DamagedError
    if any(name not in expected and not _is_in_folder(stage, name) for name in named):
        raise DamagedError
    out = Path(stage.folder or stage.outputs[0])
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # The journal removes such names after a killed build.
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as received:
            waiting = {name: Path(received, str(number)) for number, name in enumerate(named)}
            # Every file is read, also after a damaged one, so that `store` replaces all damaged files.
            intact = for_each(lambda item: _receive(storage, named[item[0]], item[1]), list(waiting.items()))
            if not all(intact):
                raise DamagedError
            if stage.folder is not None:
                with atomic_dir(stage.folder) as new_folder:
                    for name in [name for name in waiting if _is_in_folder(stage, name)]:
                        _move(waiting.pop(name), new_folder / Path(name).relative_to(stage.folder))
            for name, path in waiting.items():
                _move(path, Path(name))
    except OSError as error:
        raise KilnError(f"{error.filename or out}: cannot write: {error.strerror}") from error


def _receive(storage: Storage, file: Mapping[str, Any], path: Path) -> bool:
    """Copy a file of an entry from `storage` to `path`; returns False if it is missing or damaged."""
    try:
        storage.get(file["sha256"], path)
    except DamagedError:
        return False
    set_mode(path, file["executable"])
    return True


def files_of(stage: StageNode) -> list[Path]:
    """All files that a stage reads, without its own source."""
    files = [Path(str(node)) for node in stage.inputs if not isinstance(node, SCons.Node.Python.Value)]
    for field, values in stage.stage.values():
        if isinstance(field.kind, Input):
            files += [file for path in values for file in _files(path)]
    return list(dict.fromkeys(files))


def _is_in_folder(stage: StageNode, name: str) -> bool:
    return stage.folder is not None and Path(stage.folder) in Path(name).parents


def _move(path: Path, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    path.replace(out)


def _with_replacements(text: str, replacements: Mapping[str, str]) -> str:
    for path in sorted(replacements, key=len, reverse=True):
        text = text.replace(path, replacements[path])
    return text


def _files(path: Path) -> list[Path]:
    """`path` itself for a file, or all files of a folder, sorted by name; empty where it does not exist."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
