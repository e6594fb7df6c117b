"""Every stage is a process: `python -m kiln <stage> …`, a node of SCons with its inputs and outputs.

A build starts stages as forks of one process that has imported the libraries, see `kiln.stage_server`.

A stage runs again when the content of an input, its command line, its slice of the configuration, its own
source or the version of a library has changed. It ends with all of its outputs, or with one line on stderr
and no output.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from SCons.Script import GetOption

from kiln import doing, limits, unforeseen
from kiln.config.model import StageLimits
from kiln.errors import INTERRUPTED, KilnError
from kiln.files import atomic_write
from kiln.scons import digest, failure, listing, times, written
from kiln.scons.cache import Entry, files_of
from kiln.scons.failure import StageFailed
from kiln.scons.farm import stages as farm
from kiln.scons.server_process import stage_environment
from kiln.scons.session import session
from kiln.scons.stage_end import checked_status, failure_of
from kiln.scons.stage_node import StageNode
from kiln.stage import Input, Output, Stage, Unhashed

_Stage = TypeVar("_Stage", bound=Stage)


def declare(
    stage: _Stage,
    subject: str,
    *,
    model: str = "",
    more: Sequence[Any] = (),
    marker: Path | None = None,
    first: Path | None = None,
    always: bool = False,
    dry_run_text: Callable[[], str] | None = None,
) -> _Stage:
    """Declare a stage to SCons, once for each output; returns `stage`, whose output flags are paths.

    Inputs and outputs are the paths in its flags; `more` are inputs that no flag names, as SCons nodes.
    `subject` is its name on the console, `model` the model's name in names of outputs. `marker`: the path of
    an empty file, for a stage without outputs. `first`: a file that is made before the stage starts, and is
    not its input. `always`: it runs in every build that needs it. `dry_run_text`: makes the text that `-n`
    prints; None: the command.
    """
    current = session()
    outputs, folder, listed = _outputs(stage, model)
    dumps = [
        values[0] for field, values in stage.values() if isinstance(field.kind, Unhashed) and field.kind.dump
    ]
    markers = [*([str(marker)] if marker else []), *(f"{dump}.done" for dump in dumps)]
    output_paths = [*outputs, *([listed] if listed else []), *markers]
    if output_paths[0] in current.declared:
        return stage
    inputs = [node for path in _inputs(stage) for node in nodes(path)]
    node = StageNode(stage, subject, [*inputs, *more], outputs, folder, listed, markers, dry_run_text)
    # SCons removes damaged outputs before the run.
    node = replace(node, damaged=current.written.damaged(node.unsigned()))
    env = current.env
    recipe = env.Value(" ".join([node.name, *stage.words(silent=False), digest.of_stage(node.name)]))
    command_nodes = env.Command(
        [current.file(output) for output in output_paths],
        [*node.inputs, recipe],
        env.Action(_execute, strfunction=_dry_run, varlist=[]),
        KILN_STAGE=node,
    )
    env.NoCache(command_nodes)  # SCons would restore the declared files of a folder and no others
    if first is not None:
        env.Requires(command_nodes, nodes(first))
    lacks_files = listed and folder and not listing.is_complete(Path(folder), Path(listed))
    if always or node.damaged or lacks_files:
        env.AlwaysBuild(command_nodes)
    if folder:
        env.Clean(command_nodes[0], current.folder(folder))
        current.declared[folder] = [node for node in command_nodes if Path(folder) in Path(str(node)).parents]
    for path, command_node in zip(output_paths, command_nodes, strict=True):
        current.declared[path] = [command_node]
    if listed and folder:
        current.declared[folder] = current.declared[listed]
    return stage


def nodes(path: Path) -> list[Any]:
    """The SCons nodes of a file or folder that a declared stage writes, or of a file in such a folder.

    Raises LookupError for any other path, since a stage that read it would not run again when it changes.
    """
    declared = session().declared
    for folder in (path, *path.parents):
        if str(folder) in declared:
            return declared[str(folder)]
    raise LookupError(f"{path}: no stage writes it")


def existing(path: Path) -> Path | None:
    """`path` if a declared stage writes this file or an earlier build has written it, else None.

    A file of an earlier build becomes an input as it is, and is not made again.
    """
    current = session()
    if str(path) not in current.declared:
        if not path.is_file():
            return None
        current.declared[str(path)] = [current.file(str(path))]
    return path


def _inputs(stage: Stage) -> list[Path]:
    """The files and folders that a stage reads."""
    return [path for field, values in stage.values() if isinstance(field.kind, Input) for path in values]


def _outputs(stage: Stage, model: str) -> tuple[list[str], str | None, str | None]:
    """Paths of the files that a stage writes, of its folder, and of the list of the files in its folder."""
    files, folder, listed = [], None, None
    for field, values in stage.values():
        if isinstance(field.kind, Output):
            path = str(values[0])
            if field.kind.files or field.kind.listed:
                folder, listed = path, f"{path}.list.json" if field.kind.listed else None
                files += [f"{path}/{name.format(model=model)}" for name in field.kind.files]
            else:
                files.append(path)
    return files, folder, listed


# Seconds between two checks, while a stage runs, whether the build is interrupted.
_POLL = 0.2


def text_file(path: Path, text: str) -> Path:
    """Declare a file that contains `text`, such as a slice of the configuration; returns its path."""
    current = session()
    if str(path) not in current.declared:
        action = current.env.Action(_write, strfunction=None)
        damaged = current.written.damaged([str(path)])
        value = current.env.Value(text)
        file_nodes = current.env.Command(current.file(str(path)), value, action, KILN_DAMAGED=damaged)
        if damaged:
            current.env.AlwaysBuild(file_nodes)
        current.declared[str(path)] = list(current.env.NoCache(file_nodes))
    return path


def _write(target: Sequence[Any], source: Sequence[Any], env: Any) -> None:
    try:
        current, path = session(), str(target[0])
        current.journal.begin([path])
        written.warn(env["KILN_DAMAGED"])
        atomic_write(path, source[0].read())
        current.journal.end([path])
        current.written.add([path])
    except (KilnError, OSError) as error:
        raise StageFailed(f"kiln: error: {error}", target) from None


def _dry_run(target: Sequence[Any], source: Sequence[Any], env: Any, executor: Any = None) -> str | None:
    """The text that -n prints: the stage's commands on a device, or that the stage would run."""
    stage: StageNode = env["KILN_STAGE"]
    if not GetOption("no_exec"):
        return None
    return stage.dry_run_text() if stage.dry_run_text else f"kiln: would run {stage.subject}: {stage.name}"


def _execute(target: Sequence[Any], source: Sequence[Any], env: Any) -> None:
    stage: StageNode = env["KILN_STAGE"]
    current = session()
    title = f"{stage.subject}: {stage.name}"
    entry = current.cache.entry(stage) if current.cache is not None else None
    run, done = None, False
    if failure.interrupted():
        raise StageFailed(INTERRUPTED, target)
    try:
        output_paths = [str(node) for node in target] + ([stage.folder] if stage.folder else [])
        current.journal.begin(output_paths)
        written.warn(stage.damaged)
        restored, begun = entry is not None and entry.restore(), time.monotonic()
        run = current.console.start(f"{title}, from the cache" if restored else title)
        if not restored:
            status, lines = _run(stage, run, entry)
            if status:
                raise StageFailed(*failure_of(stage, title, status, lines, _limits(stage), target))
        if stage.listing and stage.folder:
            listing.write(Path(stage.folder), Path(stage.listing))
        for marker in stage.markers:
            atomic_write(marker, "")
        missing = [str(node) for node in target if not Path(str(node)).exists()]
        if missing:
            raise StageFailed(f"kiln: error: {title}: ended without writing {missing[0]}", target)
        if entry is not None and not restored:
            entry.store()
        current.journal.end(output_paths)
        current.written.add(stage.unsigned())
        if not restored:
            seconds = time.monotonic() - begun
            times.record(
                stage.name, stage.subject, seconds, stage.stage.spec.cached, files_of(stage), output_paths
            )
        done = True
    except KeyboardInterrupt:  # while a worker ran the stage
        raise StageFailed(INTERRUPTED, target) from None
    except KilnError as error:  # a list of files cannot be written, or the stage exceeds its time limit
        raise StageFailed(f"kiln: error: {error}", target) from None
    except OSError as error:
        # Files opened by descriptor, such as the journal, have no name.
        named = error.filename or f"{target[0]}: cannot write"
        raise StageFailed(f"kiln: error: {title}: {named}: {error.strerror or error}", target) from None
    finally:
        if run is not None:
            current.console.finish(run, done)


def _run(stage: StageNode, run: Any, entry: Entry | None) -> tuple[int, list[str]]:
    """Run a stage here or on a worker; returns its exit status and the lines of output not shown to the user.

    A worker stores the outputs in the cache too.
    """
    current = session()
    stage_limits = _limits(stage)
    columns = str(shutil.get_terminal_size().columns)
    environment = {"COLUMNS": columns, unforeseen.VARIABLE: "1", doing.VARIABLE: "1"}
    if stage_limits is not None:
        environment[limits.MEMORY] = str(stage_limits.memory)
    seconds = stage_limits.seconds if stage_limits is not None else None
    status: int | None
    if current.cluster is not None and current.cache is not None:
        resources = farm.resources(stage, current.cluster, stage_limits)
        if resources is not None:
            worker = farm.WorkerRun(current.cluster, current.cache, resources)
            status, shown, lines = worker.run(
                stage, entry, environment, seconds, lambda: current.console.alive(run), failure.interrupted
            )
            if shown and stage.stage.spec.prints:
                current.console.line("\n".join(shown))
            hidden = lines if stage.stage.spec.prints else [*shown, *lines]
            return checked_status(stage, status, seconds, lines), hidden
    with current.local_places.hold(alone=stage.stage.spec.measures):
        status, lines = _process(stage, run, environment, seconds)
    return checked_status(stage, status, seconds, lines), lines


def _process(
    stage: StageNode, run: Any, variables: Mapping[str, str], seconds: float | None
) -> tuple[int | None, list[str]]:
    """Run a stage on this machine; returns as `_run`, with the status None if the stage exceeded `seconds`.

    `variables`: for the stage's environment.
    """
    current = session()
    environment = stage_environment(**variables, **{limits.JOBS: str(current.local_places.processes)})
    process = current.server.start(
        stage.name,
        stage.stage.words(),
        environment,
        keep=[current.journal.lock],
        tokens=current.local_places.tokens,
    )
    lines: list[str] = []
    # Printed at the end, so that the lines of stages that run at the same time do not mix.
    later_lines: list[str] = []

    def follow(stream: Any, is_shown: bool) -> None:
        with stream:
            for line in stream:
                if not is_shown:
                    lines.append(line.rstrip("\n"))
                elif current.parallel:
                    later_lines.append(line.rstrip("\n"))
                else:
                    current.console.line(line.rstrip("\n"))

    readers = [
        threading.Thread(target=follow, args=(process.stdout, stage.stage.spec.prints)),
        threading.Thread(target=follow, args=(process.stderr, False)),
    ]
    for reader in readers:
        reader.start()
    begin = time.monotonic()
    try:
        while (status := process.wait(_POLL)) is None:
            if failure.interrupted():
                current.server.abort()
                raise KeyboardInterrupt
            current.console.alive(run)
            if seconds is not None and time.monotonic() - begin > seconds:
                return None, lines
    finally:
        process.kill()
        for reader in readers:
            reader.join(_POLL if failure.interrupted() else None)
    if later_lines:
        current.console.line("\n".join(later_lines))
    return status, lines


def _limits(stage: StageNode) -> StageLimits | None:
    """Limits for a stage: its model's, or the defaults without a model; None for an unlimited stage."""
    if not stage.stage.spec.limited:
        return None
    name = stage.subject.split("[")[0].rsplit("/", 1)[-1]
    return session().limits.get(name) or StageLimits()
