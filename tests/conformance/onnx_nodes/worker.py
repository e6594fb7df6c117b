"""Runs node tests in child processes, many in one compiled program, and tells what became of each."""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from kiln.emit.objects import compile_all, compile_object, missing_symbols
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import lower
from kiln.lower.steps import Steps

from ..lowered import loaded, runnable_alone
from ..programs import execute
from .cases import DATA, Array, Case

PASS, REFUSED, WRONG, CRASH = "pass", "refused", "wrong", "crash"
# Operators with sizes that follow from no other: as data, they need a bound.
_BOUNDED = ("CenterCropPad", "ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Reshape", "Tile")
BATCH = 48  # cases in one compiled program
# (case, folder) → model file and options; (case, results) → how they differ, empty if they agree.
Load = Callable[[Any, Path], tuple[Path, ImportOptions]]
Compare = Callable[[Any, Sequence[Array]], str]
_SECONDS = 120  # processor time that one case may take; more is a crash


@dataclass(frozen=True)
class Result:
    """What became of a case; detail: the reason, in one line."""

    name: str
    outcome: str
    detail: str = ""


def run_all(
    cases: Sequence[Any], jobs: int = 1, load: Load | None = None, compare: Compare | None = None
) -> Iterator[Result]:
    """The results of all cases; a crash ends the child process of its batch, and the rest goes on.

    load, compare: how a case of another kind than ONNX's node tests becomes a module, and is compared.
    """
    how = load or load_node, compare or compare_node
    batches = [list(cases[start : start + BATCH]) for start in range(0, len(cases), BATCH)][::-1]
    running: dict[int, _Child] = {}
    while batches or running:
        while batches and len(running) < jobs:
            child = _Child(batches.pop(), how)
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

    def __init__(self, cases: Sequence[Any], how: tuple[Load, Compare]) -> None:
        self._cases = {case.name: case for case in cases}
        self._left, self._current, self._buffer = dict(self._cases), "", b""
        self.ended = False
        self.pipe, write = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            os.close(self.pipe)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # TVM and LLVM write warnings
            try:
                with os.fdopen(write, "w", buffering=1) as out:
                    _Batch(cases, out, how).run()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(write)

    def read(self) -> Iterator[Result]:
        """The results in what the process has written."""
        content = os.read(self.pipe, 1 << 16)
        self.ended = not content
        self._buffer += content
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            event = json.loads(line)
            self._current = event["name"] if "outcome" not in event else ""
            if "outcome" in event:
                self._left.pop(event["name"])
                yield Result(event["name"], event["outcome"], event["detail"])

    def rest(self) -> tuple[list[Result], list[Case]]:
        """After the end: a crash of the case that was running, and the cases that did not run."""
        os.close(self.pipe)
        _, status = os.waitpid(self._process, 0)
        if not self._left:
            return [], []
        name = self._current or next(iter(self._left))
        self._left.pop(name)
        signalled = os.WIFSIGNALED(status)
        how = (
            signal.Signals(os.WTERMSIG(status)).name if signalled else f"exit status {os.WEXITSTATUS(status)}"
        )
        return [Result(name, CRASH, how)], list(self._left.values())


class _Batch:
    """The cases of one process: each is imported and lowered, all are compiled at once, then each runs."""

    def __init__(self, cases: Sequence[Any], out: Any, how: tuple[Load, Compare]) -> None:
        self._cases, self._out, self._target = cases, out, runnable_alone("x86_64")
        self._load, self._compare = how

    def run(self) -> None:
        """Report the result of every case."""
        with tempfile.TemporaryDirectory(prefix="kiln-nodes-") as name:
            folder = Path(name)
            lowered = {}
            for case in self._cases:
                self._begin(case)
                steps = self._lower(case, folder)
                if steps is not None:
                    lowered[case.name] = (case, steps)
            self._compile(list(lowered.values()), folder)

    def _begin(self, case: Any) -> None:
        spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        resource.setrlimit(resource.RLIMIT_CPU, (int(spent) + _SECONDS, resource.RLIM_INFINITY))
        self._out.write(json.dumps({"name": case.name}) + "\n")

    def _end(self, case: Any, outcome: str, detail: str = "") -> None:
        self._out.write(json.dumps({"name": case.name, "outcome": outcome, "detail": detail}) + "\n")

    def _fail(self, case: Any, error: BaseException, path: Path | None = None) -> None:
        """Report an exception: a KilnError of one line is a refusal, all else a traceback."""
        text = str(error).replace(f"{path}: ", "").replace("m: ", "", 1)
        if isinstance(error, KilnError) and "\n" not in text:
            self._end(case, REFUSED, text)
            return
        last = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}: {str(error)[:200]!r}"
        self._end(case, CRASH, f"traceback: {line}")

    def _lower(self, case: Any, folder: Path) -> Steps | None:
        path: Path | None = None
        try:
            path, options = self._load(case, folder)
            module, _ = import_model(path, options)
            return lower(simplify(module), "m", self._target, "pthread")
        except Exception as error:
            self._fail(case, error, path)
            return None

    def _compile(self, lowered: Sequence[tuple[Any, Steps]], folder: Path) -> None:
        """Compile all kernels into one program, or, if that fails, those of each half, and run the cases."""
        if not lowered:
            return
        functions = {name: f for _, steps in lowered for name, f in steps.functions.items()}
        target, failed = folder / f"{lowered[0][0].name.replace('/', '-')}-{len(lowered)}.o", False
        self._begin(lowered[0][0])
        if len(lowered) > 1:
            try:
                if functions:
                    compile_object(functions, self._target, target)
                    failed = bool(missing_symbols(target, self._target))
            except Exception:
                failed = True
            if failed:
                self._compile(lowered[: len(lowered) // 2], folder)
                self._compile(lowered[len(lowered) // 2 :], folder)
                return
        else:
            case, steps = lowered[0]
            try:
                if functions:
                    compile_all(functions, self._target, target, "m", steps.kernels)
            except Exception as error:
                self._fail(case, error)
                return
        library = None
        if functions:
            library = loaded(target)
        for case, steps in lowered:
            self._begin(case)
            self._check(case, steps, library)

    def _check(self, case: Any, steps: Steps, library: Any) -> None:
        try:
            given = [stored(value) for value in case.inputs if value is not None]
            found = execute(steps, library, given)
        except Exception as error:
            self._fail(case, error)
            return
        reason = self._compare(case, found)
        self._end(case, WRONG if reason else PASS, reason)


def load_node(case: Case, folder: Path) -> tuple[Path, ImportOptions]:
    """Write the file of a node test; returns its path and the options of the import."""
    onnx.save(case.model, folder / "m.onnx")
    return folder / "m.onnx", ImportOptions("m", shapes=_shapes(case), bounds=_bounds(case))


def stored(value: Array) -> Array:
    """An array in the type in which Kiln stores its elements: bytes for types of fewer than 9 bits."""
    if value.dtype.name == "bfloat16":
        return value.view("uint16")
    if value.dtype.itemsize > 1 or value.dtype.name in ("bool", "int8", "uint8"):
        return value
    if "int" in value.dtype.name:
        return value.astype("uint8" if value.dtype.name.startswith("u") else "int8")
    return value.view("uint8")


def compare_node(case: Case, found: Sequence[Array]) -> str:
    """How the results of a node test differ from the expected ones; empty if they agree."""
    for index, (ours, theirs) in enumerate(zip(found, case.outputs, strict=True)):
        reason = difference(ours, theirs, case)
        if reason:
            return f"output {index}: {reason}"
    return ""


def _shapes(case: Case) -> dict[str, tuple[int | str, ...]]:
    """The shapes of the inputs whose sizes the file leaves open."""
    weights = {tensor.name for tensor in case.model.graph.initializer}
    inputs = [value for value in case.model.graph.input if value.name not in weights]
    shapes: dict[str, tuple[int | str, ...]] = {}
    for value, array in zip(inputs, case.inputs, strict=True):
        tensor = value.type.tensor_type
        fixed = tensor.HasField("shape") and all(dim.dim_value > 0 for dim in tensor.shape.dim)
        if array is not None and not fixed:
            shapes[value.name] = tuple(array.shape)
    return shapes


def _bounds(case: Case) -> dict[str, int]:
    """The bound of a size that is data, which its user has to give: the greatest of the expected sizes."""
    (node, *others), wanted = case.model.graph.node, case.outputs[0]
    if others or node.op_type not in _BOUNDED or wanted is None or not wanted.ndim:
        return {}
    if (not case.name.endswith(f"/{DATA}") and node.op_type != "Range") or not case.inputs:
        return {}
    return {node.output[0]: max(*wanted.shape, 1)}


def _has_halves(case: Case) -> bool:
    """Whether an input or a constant of the file is float16."""
    weights = case.model.graph.initializer
    given = any(value is not None and value.dtype == np.float16 for value in case.inputs)
    return given or any(weight.data_type == onnx.TensorProto.FLOAT16 for weight in weights)


def difference(ours: Array, theirs: Array | None, case: Case) -> str:
    """How a result differs from the expected one; empty if it agrees, within the tolerance of ONNX's test."""
    if theirs is None:
        return "no tensor is expected"
    is_bfloat16 = theirs.dtype.name == "bfloat16"
    theirs = stored(theirs)
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{ours.dtype}{list(ours.shape)}, expected {theirs.dtype}{list(theirs.shape)}"
    if is_bfloat16:
        ours, theirs = (value.view(ml_dtypes.bfloat16) for value in (ours, theirs))
    if ours.dtype.kind in "iu" and ours.dtype.itemsize == 1 and _has_halves(case):
        differ = np.abs(ours.astype("int32") - theirs.astype("int32")) > 1  # scales were multiplied in halves
    elif ours.dtype.kind in "biu":
        differ = ours != theirs
    else:
        a, b = ours.astype("float64"), theirs.astype("float64")
        # Half floats: a few units in the last place, as functions round each of their steps.
        relative = case.relative if ours.dtype.itemsize > 2 else 2.0 ** (-6 if ours.dtype.kind == "V" else -8)
        # Expected values are rounded too: zeros among large ones are noise.
        finite = np.abs(b[np.isfinite(b)])
        absolute = max(case.absolute, 2.0**-22 * float(finite.max(initial=0.0)))
        differ = ~np.isclose(a, b, rtol=relative, atol=absolute, equal_nan=True)
    if not differ.any():
        return ""
    where = tuple(int(axis[0]) for axis in np.nonzero(np.atleast_1d(differ)))
    got, want = np.atleast_1d(ours)[where], np.atleast_1d(theirs)[where]
    return f"{int(differ.sum())} of {differ.size} elements, at {list(where)} {got}, expected {want}"


# What varies between refusals for one reason: nodes, tensors, numbers.
_VARIES = (
    (re.compile(r"operators that cannot be imported: "), ""),
    (re.compile(r"; an operator of your own .*"), ""),
    (re.compile(r" \(node [^)]*\)| \(input '[^']*'\)| \('[^']*'\)"), ""),
    (re.compile(r" '[^']*'"), ""),
    (re.compile(r"R\.Tensor\(.*"), "…"),
    (re.compile(r", allowed: bfloat16, bool.*"), ""),
    (re.compile(r"-?\b\d+(\.\d+)?\b"), "N"),
)


def reason_of(result: Result) -> str:
    """The reason of a refusal, without the names and numbers of its case."""
    text = result.detail
    for pattern, replacement in _VARIES:
        text = pattern.sub(replacement, text)
    return text[:110]


def counts(results: Mapping[str, Result], variant: str) -> dict[str, int]:
    """The number of cases of a variant by outcome."""
    chosen = [result for name, result in results.items() if name.endswith(f"/{variant}")]
    return {kind: sum(r.outcome == kind for r in chosen) for kind in (PASS, REFUSED, WRONG, CRASH)}
