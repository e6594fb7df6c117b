"""Runs a stage on a worker: in a folder of its own, with inputs from the cache; its outputs go to the cache.

1. The task is plain data: the stage's command line, its input files by SHA-256, the cache, and the facts that
   the worker must have in common with the build.
2. A worker keeps the contents that it has fetched in a folder of its own, up to `_MOST_BYTES`, since most
   files are inputs of several stages. A stage's folder has links to them.
3. Absolute paths of the build's machine are replaced, on the command line and in JSON configurations: a path
   in the project by the same path in the stage's folder, any other by a path below `.outside` there.
4. The stage is a fork of the worker's own `kiln.stage_server`, with the same limits as in a local build. It
   is killed when Dask no longer waits for it: after Ctrl-C, or if the build or the scheduler is gone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln import limits
from kiln.errors import KilnError
from kiln.files import set_mode
from kiln.scons import digest
from kiln.scons.farm.facts import difference, facts
from kiln.scons.server import StageServer
from kiln.scons.server_process import stage_environment
from kiln.scons.storage import DamagedError, Storage, StorageError, open_storage
from kiln.scons.storage.requests import for_each
from kiln.sources.cache import file_sha256

CONFIG_BYTES = 1 << 20  # larger JSON files are data, in which no path is replaced
_OUTSIDE = ".outside"
_MOST_BYTES = 8 << 30
_lock = threading.Lock()
_storage = functools.cache(open_storage)


@functools.cache
def _server() -> StageServer:
    return StageServer()


def run(task: Mapping[str, Any]) -> dict[str, Any]:
    """Run the stage of a task.

    Returns `status`, `stdout`, `stderr` and `files` (the outputs, if the status is 0); or `late`, if the
    stage exceeded its time; or `error`, the reason why the stage could not run on this worker.
    """
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def is_awaited() -> bool:
        """Whether a client of the scheduler still waits for this task."""
        task_state = worker.state.tasks.get(key)
        return task_state is not None and task_state.state != "cancelled"

    try:
        return {
            **_run(task, Path(worker.local_directory), worker.state.nthreads, is_awaited),
            "worker": worker.address,
        }
    except (KilnError, StorageError, OSError) as error:
        return {"error": str(error), "worker": worker.address}


def _run(
    task: Mapping[str, Any], parent: Path, threads: int, is_awaited: Callable[[], bool]
) -> dict[str, Any]:
    fault = difference(facts(), task["facts"])
    if fault is None and task["compiler"] is not None:
        target, expected = task["compiler"]
        if digest.of_compiler(target) != expected:
            fault = "the target's C compiler has another version, or is missing"
    if fault is not None:
        raise KilnError(fault)
    storage = _storage(task["cache"])
    with tempfile.TemporaryDirectory(prefix="stage-", dir=parent) as name:
        folder = Path(name)
        translate = _path_translator(task, folder)
        contents = parent / "contents"

        def add(file: Mapping[str, Any]) -> None:
            _add_input(storage, file, contents, folder / _path_in_folder(file["name"]), translate)

        for_each(add, task["files"])
        for name in task["outputs"]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        for name in task["scratch"]:
            _link_kept_folder(folder / name, parent / "scratch" / task["project"] / name)
        words = [translate(word) for word in task["words"]]
        cores = max(1, (os.cpu_count() or 1) // threads)
        environment = stage_environment(**{**task["environment"], limits.JOBS: str(cores)})
        result = _process(task["stage"], words, environment, folder, task["seconds"], is_awaited)
        if result.get("status") == 0:
            result["files"] = _outputs(storage, folder, task["outputs"])
    _remove_old(contents)
    return result


def _process(
    stage: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    seconds: float | None,
    is_awaited: Callable[[], bool],
) -> dict[str, Any]:
    process = _server().start(stage, words, environment, folder=folder)
    lines: dict[str, list[str]] = {"stdout": [], "stderr": []}

    def follow(name: str, stream: Any) -> None:
        lines[name] += [line.rstrip("\n") for line in stream]

    readers = [
        threading.Thread(target=follow, args=(name, getattr(process, name))) for name in ("stdout", "stderr")
    ]
    for reader in readers:
        reader.start()
    begin = time.monotonic()
    late, status = False, None
    try:
        while not late and (status := process.wait(1)) is None:
            late = seconds is not None and time.monotonic() - begin > seconds
            if not is_awaited():
                raise KilnError("the build that asked for this stage has ended")
    finally:
        process.kill()
        for reader in readers:
            reader.join()
    return {"late": True} if late else {"status": status, "seconds": time.monotonic() - begin, **lines}


def _path_in_folder(name: str) -> str:
    """The path of an input in the stage's folder."""
    return f"{_OUTSIDE}{name}" if name.startswith("/") else name


def _path_translator(task: Mapping[str, Any], folder: Path) -> Callable[[str], str]:
    """A function that replaces paths of the build's machine in a text by paths in the stage's folder."""
    paths = {path: str(folder / _path_in_folder(path)) for path in task["outside"]}
    paths[f"{task['folder']}/"] = f"{folder}/"
    pattern = re.compile("|".join(re.escape(path) for path in sorted(paths, key=len, reverse=True)))
    return lambda text: pattern.sub(lambda match: paths[match.group()], text)


def _add_input(
    storage: Storage, file: Mapping[str, Any], contents: Path, out: Path, translate: Callable[[str], str]
) -> None:
    """Create the input file `out` of the stage, as a link to its content in the folder `contents`.

    `translate` replaces paths in JSON configurations. Raises KilnError where the cache lacks the content.
    """
    stored_file = contents / file["sha256"]
    out.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(2):  # another thread of this worker may remove the content in between
        if not (stored_file.is_file() and stored_file.stat().st_size == file["bytes"]):
            try:
                storage.get(file["sha256"], stored_file)
            except DamagedError:
                raise KilnError(
                    f"the cache {storage.shown} lacks {file['name']} on the worker; "
                    "the build and all workers must use the same cache"
                ) from None
        with contextlib.suppress(FileNotFoundError):
            os.utime(stored_file)
            if file["executable"]:
                shutil.copy(stored_file, out)
                set_mode(out, executable=True)
            else:
                os.link(stored_file, out)
            break
    if out.suffix == ".json" and file["bytes"] <= CONFIG_BYTES:
        text = out.read_text(encoding="utf-8")
        if (translated := translate(text)) != text:
            out.unlink()  # a link to the content
            out.write_text(translated, encoding="utf-8")


def _link_kept_folder(link: Path, folder: Path) -> None:
    """Make `link` a link to a folder that stays on this worker."""
    folder.mkdir(parents=True, exist_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder, target_is_directory=True)


def _outputs(storage: Storage, folder: Path, outputs: Sequence[str]) -> list[dict[str, Any]]:
    """Store the files of the outputs, which are files and folders; returns them as an entry lists them."""
    paths: list[Path] = []
    for name in outputs:
        output = folder / name
        paths += sorted(output.rglob("*")) if output.is_dir() else [output]
    files = [path for path in paths if path.is_file()]  # the build's error names a missing output
    for path in files:
        if path.is_symlink():
            raise KilnError(f"{path.relative_to(folder)}: outputs must not be links")

    def stored(path: Path) -> dict[str, Any]:
        sha256, status = file_sha256(path), path.stat()
        if not storage.has(sha256):
            storage.put(path, sha256)
        return {
            "name": str(path.relative_to(folder)),
            "sha256": sha256,
            "bytes": status.st_size,
            "executable": bool(status.st_mode & 0o100),
        }

    return for_each(stored, files)


def _remove_old(contents: Path) -> None:
    """Remove the contents that were used least recently, until the rest has at most _MOST_BYTES."""
    with _lock, contextlib.suppress(OSError):
        stored_files = sorted(
            (path.stat().st_mtime_ns, path.stat().st_size, path) for path in contents.iterdir()
        )
        bytes_stored = sum(size for _, size, _ in stored_files)
        for _, size, path in stored_files:
            if bytes_stored <= _MOST_BYTES:
                break
            path.unlink()
            bytes_stored -= size
