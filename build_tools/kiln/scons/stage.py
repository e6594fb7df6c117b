"""Every stage is a process: `python -m kiln <stage> …`, declared to SCons with its inputs and outputs.

A build starts stages as forks of one process that has imported the libraries, see `kiln.stage_server`.

A stage runs again when the content of an input, its command line, its slice of the configuration, its own
source or the version of a library has changed. It ends with all of its outputs, or with one line on stderr
and no output.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from SCons.Script import GetOption

from kiln import limits, unforeseen
from kiln.config.model import StageLimits
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.scons import digest, listing
from kiln.scons.failure import StageFailed
from kiln.scons.server import stage_environment
from kiln.scons.session import session
from kiln.stages import STAGES


@dataclass(frozen=True)
class Stage:
    """One run of a stage's program.

    `flags` is the command line, `outputs` the paths of the output files; `inputs` are SCons nodes or paths.
    With `listing`, the stage chooses the files in `folder`, and the declared output is a list of them, at the
    path `listing`. `scons -c` removes `folder`. `speaks`: stdout is for the user. `silent_flags` do not
    change the outputs, so a change of them does not make the stage run again. `foretold` returns the text
    that `scons -n` prints for the stage. `extra_outputs` are empty marker files, written when the stage has
    ended.
    """

    name: str
    subject: str
    flags: Sequence[str]
    inputs: Sequence[Any]
    outputs: Sequence[str]
    folder: str | None = None
    listing: str | None = None
    speaks: bool = False
    silent_flags: Sequence[str] = ()
    foretold: Callable[[], str] | None = None
    extra_outputs: Sequence[str] = field(default=())


def declare(stage: Stage) -> list[Any]:
    """Declare a stage to SCons; returns its outputs as nodes. Declaring it again returns the same nodes."""
    current = session()
    outputs = [*stage.outputs, *([stage.listing] if stage.listing else []), *stage.extra_outputs]
    known = current.declared.get(outputs[0])
    if known is not None:
        return known
    if stage.listing and stage.folder:
        listing.check(Path(stage.folder), Path(stage.listing))
    env = current.env
    recipe = env.Value(" ".join([stage.name, *stage.flags, digest.of_stage(stage.name)]))
    nodes = env.Command(
        [current.file(output) for output in outputs],
        [*stage.inputs, recipe],
        env.Action(_execute, strfunction=_foretell, varlist=[]),
        KILN_STAGE=stage,
    )
    env.NoCache(nodes)  # SCons would restore the declared files of a folder and no others
    if stage.folder:
        env.Clean(nodes[0], current.folder(stage.folder))
    current.declared[outputs[0]] = list(nodes)
    return list(nodes)


def text_file(path: str, text: str) -> Any:
    """A file that contains `text`, as an SCons node: passes a slice of the configuration to a stage."""
    current = session()
    if path not in current.declared:
        action = current.env.Action(_write, strfunction=None)
        nodes = current.env.Command(current.file(path), current.env.Value(text), action)
        current.declared[path] = list(current.env.NoCache(nodes))
    return current.declared[path][0]


def _write(target: Sequence[Any], source: Sequence[Any], env: Any) -> None:
    try:
        session().journal.begin([str(target[0])])
        atomic_write(str(target[0]), source[0].read())
        session().journal.end([str(target[0])])
    except (KilnError, OSError) as error:
        raise StageFailed(f"kiln: error: {error}", target) from None


def _foretell(target: Sequence[Any], source: Sequence[Any], env: Any, executor: Any = None) -> str | None:
    stage: Stage = env["KILN_STAGE"]
    return stage.foretold() if stage.foretold and GetOption("no_exec") else None


def _execute(target: Sequence[Any], source: Sequence[Any], env: Any) -> None:
    stage: Stage = env["KILN_STAGE"]
    current = session()
    title = f"{stage.subject}: {stage.name}"
    kept = current.cache.entry(stage) if current.cache is not None else None
    run, done = None, False
    try:
        made = [str(node) for node in target] + ([stage.folder] if stage.folder else [])
        current.journal.begin(made)
        restored = kept is not None and kept.restore()
        run = current.console.start(f"{title}, from the cache" if restored else title)
        if not restored:
            status, said = _process(stage, run)
            if status:
                raise StageFailed(*_explain(stage, title, status, said, target))
        if stage.listing and stage.folder:
            listing.write(Path(stage.folder), Path(stage.listing))
        for output in stage.extra_outputs:
            atomic_write(output, "")
        missing = [str(node) for node in target if not Path(str(node)).exists()]
        if missing:
            raise StageFailed(f"kiln: error: {title}: ended without writing {missing[0]}", target)
        if kept is not None and not restored:
            kept.store()
        current.journal.end(made)
        done = True
    except KilnError as error:  # a list of files cannot be written, or the stage exceeds its time limit
        raise StageFailed(f"kiln: error: {error}", target) from None
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise StageFailed(f"kiln: error: {title}: {place}{error.strerror or error}", target) from None
    finally:
        if run is not None:
            current.console.finish(run, done)


def _process(stage: Stage, run: Any) -> tuple[int, list[str]]:
    """Run a stage's program; returns its exit status and the lines of output not shown to the user."""
    current = session()
    allowed = _limits(stage)
    columns = str(shutil.get_terminal_size().columns)
    environment = stage_environment(**{"COLUMNS": columns, unforeseen.VARIABLE: "1"})
    if allowed is not None:
        environment[limits.MEMORY] = str(allowed.memory)
    flags, lock = [*stage.flags, *stage.silent_flags], current.journal.lock
    process = current.server.start(stage.name, flags, environment, keep=[lock])
    said: list[str] = []
    kept: list[str] = []  # printed at the end, so that lines of stages that run at the same time do not mix

    def follow(stream: Any, shown: bool) -> None:
        for line in stream:
            if not shown:
                said.append(line.rstrip("\n"))
            elif current.parallel:
                kept.append(line.rstrip("\n"))
            else:
                current.console.line(line.rstrip("\n"))

    readers = [
        threading.Thread(target=follow, args=(process.stdout, stage.speaks)),
        threading.Thread(target=follow, args=(process.stderr, False)),
    ]
    for reader in readers:
        reader.start()
    begin = time.monotonic()
    try:
        while (status := process.wait(1)) is None:
            current.console.alive(run)
            if allowed is not None and time.monotonic() - begin > allowed.seconds:
                late = f"ended, as it was not done after {allowed.seconds} seconds"
                more = "allow more with the model's key 'limits.seconds'"
                raise KilnError(f"{stage.subject}: {stage.name}: {late}; {more}")
    finally:
        process.kill()
        for reader in readers:
            reader.join()
    if kept:
        current.console.line("\n".join(kept))
    return status, said


def _limits(stage: Stage) -> StageLimits | None:
    """Limits for a stage: those of its model, the defaults where it has no model; None where none apply."""
    if not STAGES[stage.name].spec.limited:
        return None
    name = stage.subject.split("[")[0].rsplit("/", 1)[-1]
    return session().limits.get(name) or StageLimits()


def _explain(
    stage: Stage, title: str, status: int, said: Sequence[str], target: Sequence[Any]
) -> tuple[str, Any, int]:
    """Error line, nodes and exit status of a failed stage: its own error line, or the path of a crash log."""
    allowed = _limits(stage)
    if allowed is not None and limits.ran_out(said):
        needed = f"needs more than {limits.shown(allowed.memory)} of memory"
        return f"kiln: error: {title}: {needed}; allow more with the model's key 'limits.memory'", target, 2
    own = [line for line in said if line.startswith(("kiln: error:", "kiln: test failed:"))]
    if own and not any(line.startswith("Traceback ") for line in said):
        return own[-1], target, status if status > 0 else 2
    if status in (-signal.SIGINT, 130) or any("KeyboardInterrupt" in line for line in said[-1:]):
        return f"kiln: error: {title}: interrupted", target, 2
    log = Path(str(target[0])).parent / f"{stage.name}.log"
    atomic_write(log, "\n".join([*said, ""]))
    reason = (
        f"killed by {signal.Signals(-status).name}"
        if status < 0
        else ([line for line in said if line not in own][-1:] or ["no reason given"])[0]
    )
    return f"kiln: error: {title}: crashed: {' '.join(reason.split())[:300]} (all of it: {log})", target, 2
