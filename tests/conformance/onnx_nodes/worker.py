"""Runs cases in child processes, many in one compiled program, and tells what became of each.

In this process each input is at the end of a page, or at its beginning, whose neighbours may not be read;
kernels of GPUs find it at the begin, aligned as in an arena.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tvm
from kiln.config import Target
from kiln.config.library import load_variant
from kiln.emit.objects import compile_all, compile_object, missing_symbols
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.steps import Steps
from kiln.scratch import locked_folder, remove

from ..emulated import Emulated, EndedError, memory_of, opened
from ..fenced import Fenced
from ..launched_kernels import LaunchedKernels, compile_launched
from ..programs import execute
from .cases import DATA, Array
from .compare import compare_node, stored
from .loading import load_node
from .results import CRASH, HOST, PASS, REFUSED, WRONG, Result, key_of

BATCH = 48  # cases in one compiled program
# (case, folder) → model file and options; (case, results) → how they differ, empty if they agree.
Load = Callable[[Any, Path], tuple[Path, ImportOptions]]
Compare = Callable[[Any, Sequence[Array]], str]
# Modules that the importer loads with the first file: here for all processes at once.
_LOADED = ("kiln.frontend.onnx.model", "kiln.frontend.tflite.model")
_Key = tuple[str, str]  # the names of a case and of a target
_SECONDS = 120  # processor time that one case may take; more is a crash


def run_all(
    cases: Sequence[Any],
    jobs: int = 1,
    load: Load | None = None,
    compare: Compare | None = None,
    targets: Sequence[str] = (HOST,),
    without: Collection[str] = (),
) -> Iterator[Result]:
    """The results of all cases on all targets; a crash ends the process of its batch, and the rest goes on.

    load, compare: how a case of another kind than ONNX's node tests becomes a module, and is compared.
    It may have `runs`, pairs of the sizes of its dimensions and inputs: the results of all are compared.
    targets: a graph is imported once for all of them. The kernels of those that this machine is not run in
    QEMU. without: keys of results that are not wanted. Raises KilnError where a target is unknown.
    """
    how = load or load_node, compare or compare_node
    for module in _LOADED:
        importlib.import_module(module)
    chosen = {name: load_variant(name) for name in targets}
    wanted = [(case, [name for name in targets if key_of(case.name, name) not in without]) for case in cases]
    wanted = [(case, names) for case, names in wanted if names]
    parts = [wanted[start : start + BATCH] for start in range(0, len(wanted), BATCH)][::-1]
    batches = [[(case, name) for case, names in part for name in names] for part in parts]
    running: dict[int, _Child] = {}
    gc.collect()
    gc.freeze()  # the importer collects garbage, and need not look at the cases each time
    while batches or running:
        while batches and len(running) < jobs:
            child = _Child(batches.pop(), how, chosen)
            running[child.pipe] = child
        for pipe in select.select(list(running), [], [])[0]:
            child = running[pipe]
            yield from child.read()
            if child.ended:
                del running[pipe]
                crashed, rest = child.rest()
                yield from crashed
                if rest:
                    batches.append(rest)


class _Child:
    """A forked process that runs the cases of one batch and reports a line of JSON for each event."""

    def __init__(
        self, batch: Sequence[tuple[Any, str]], how: tuple[Load, Compare], targets: dict[str, Target]
    ) -> None:
        self._left: dict[_Key, Any] = {(case.name, target): case for case, target in batch}
        self._current: _Key | None = None
        self._buffer, self.ended = b"", False
        self.pipe, write = os.pipe()
        self._folder, self._lock = locked_folder("nodes")  # outlives a crash of the process
        self._process = os.fork()
        if self._process == 0:
            os.close(self.pipe)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # TVM and LLVM write warnings
            try:
                with os.fdopen(write, "w", buffering=1) as out:
                    _Batch(batch, out, how, targets).run(self._folder)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(write)

    def read(self) -> Iterator[Result]:
        """The results in the output of the process."""
        content = os.read(self.pipe, 1 << 16)
        self.ended = not content
        self._buffer += content
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            event = json.loads(line)
            key = event["name"], event["target"]
            self._current = key if "outcome" not in event else None
            if "outcome" in event:
                self._left.pop(key)
                yield Result(event["name"], event["outcome"], event["detail"], event["target"])

    def rest(self) -> tuple[list[Result], list[tuple[Any, str]]]:
        """After the end: a crash of the case that was running, and the cases that did not run."""
        os.close(self.pipe)
        _, status = os.waitpid(self._process, 0)
        remove(self._folder)
        os.close(self._lock)
        if not self._left:
            return [], []
        name, target = self._current or next(iter(self._left))
        self._left.pop((name, target))
        signalled = os.WIFSIGNALED(status)
        how = (
            signal.Signals(os.WTERMSIG(status)).name if signalled else f"exit status {os.WEXITSTATUS(status)}"
        )
        left = [(case, target) for (_, target), case in self._left.items()]
        return [Result(name, CRASH, how, target)], left


class _Batch:
    """The cases of one process: each is imported and lowered, all are compiled at once, then each runs."""

    def __init__(
        self,
        batch: Sequence[tuple[Any, str]],
        out: Any,
        how: tuple[Load, Compare],
        targets: dict[str, Target],
    ) -> None:
        self._batch, self._out, self._targets = batch, out, targets
        self._load, self._compare = how
        self._target = HOST  # the name of the target of the current case
        self._last: tuple[str, tvm.IRModule | Exception] = "", tvm.IRModule()

    def run(self, folder: Path) -> None:
        """Report the result of every case. `folder`: for temporary files."""
        lowered: dict[str, list[tuple[Any, Steps]]] = {}
        for case, target in self._batch:
            self._target = target
            self._begin(case)
            steps = self._lower(case, folder)
            if steps is not None:
                lowered.setdefault(target, []).append((case, steps))
        for target, ready in lowered.items():
            self._target = target
            self._compile(ready, folder)

    def _begin(self, case: Any) -> None:
        spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        resource.setrlimit(resource.RLIMIT_CPU, (int(spent) + _SECONDS, resource.RLIM_INFINITY))
        self._say(case)

    def _end(self, case: Any, outcome: str, detail: str = "") -> None:
        self._say(case, outcome=outcome, detail=detail)

    def _say(self, case: Any, **event: str) -> None:
        self._out.write(json.dumps({"name": case.name, "target": self._target, **event}) + "\n")

    def _fail(self, case: Any, error: BaseException) -> None:
        """Report an exception: a KilnError of one line is a refusal, all else a traceback."""
        text = str(error)
        if isinstance(error, KilnError) and "\n" not in text:
            self._end(case, REFUSED, text)
            return
        last = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}: {text[:200]!r}"
        self._end(case, CRASH, f"traceback: {line}")

    def _lower(self, case: Any, folder: Path) -> Steps | None:
        if self._last[0] != case.name:
            self._last = case.name, self._imported(case, folder)
        module = self._last[1]
        try:
            if isinstance(module, Exception):
                raise module
            return lower(module, Lowering("m", self._targets[self._target], "pthread"))
        except Exception as error:
            self._fail(case, error)
            return None

    def _imported(self, case: Any, folder: Path) -> tvm.IRModule | Exception:
        """The canonical graph of a case, or why there is none."""
        path: Path | None = None
        try:
            path, options = self._load(case, folder)
            return simplify(import_model(path, options)[0])
        except KilnError as error:
            return KilnError(str(error).replace(f"{path}: ", "").replace("m: ", "", 1))
        except Exception as error:
            return error

    def _compile(self, lowered: Sequence[tuple[Any, Steps]], folder: Path) -> None:
        """Compile all kernels into one program, or if that fails the kernels of each half; run the cases."""
        functions = {name: f for _, steps in lowered for name, f in steps.functions.items()}
        path, failed = folder / f"{lowered[0][0].name.replace('/', '-')}-{len(lowered)}.o", False
        target = self._targets[self._target]
        self._begin(lowered[0][0])
        if len(lowered) > 1:
            try:
                if functions and target.cuda is None:
                    compile_object(functions, target, path)
                    failed = bool(missing_symbols(path, target))
                elif functions:
                    compile_launched(functions, target, path)
            except Exception:
                failed = True
            if failed:
                self._compile(lowered[: len(lowered) // 2], folder)
                self._compile(lowered[len(lowered) // 2 :], folder)
                return
        else:
            case, steps = lowered[0]
            try:
                if functions and target.cuda is None:
                    compile_all(functions, target, path, "m", steps.kernels)
                elif functions:
                    compile_launched(functions, target, path)
            except Exception as error:
                self._fail(case, error)
                return
        made = opened(target, path, (steps for _, steps in lowered), folder)
        with made if functions else contextlib.nullcontext() as library:
            for case, steps in lowered:
                self._begin(case)
                self._check(case, steps, library)

    def _check(self, case: Any, steps: Steps, library: Any) -> None:
        try:
            at_end = case.name.endswith(DATA) and not isinstance(library, LaunchedKernels)
            fenced = None if isinstance(library, Emulated) else partial(Fenced, at_end=at_end)
            outputs = []
            for dims, inputs in getattr(case, "runs", [(None, case.inputs)]):
                arrays = [stored(value) for value in inputs if value is not None]
                outputs += execute(steps, library, arrays, dims, fenced, memory_of(library))
        except EndedError as error:
            self._end(case, CRASH, str(error))
            return
        except Exception as error:
            self._fail(case, error)
            return
        reason = self._compare(case, outputs)
        self._end(case, WRONG if reason else PASS, reason)
