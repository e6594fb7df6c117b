"""Random graphs as cases: a file, inputs, and the results of LiteRT's reference kernels."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kiln.config.dims import Segment
from kiln.frontend.options import DimRange, ImportOptions
from kiln.frontend.quiet import quiet_stderr

from ..onnx_nodes.cases import DATA
from ..random_graphs.drawing import FLOAT, Array
from ..tflite_operators.files import folder_of_cases, litert
from . import elementwise, movement, patterns, products
from .graph import Activation, TfliteGraph

_MAKERS = (*elementwise.ALL, *movement.ALL, *products.ALL, *patterns.ALL)
_OF_FLOATS = (elementwise.exact_function, elementwise.of_positive)
_RELATIVE, _ABSOLUTE = 2e-4, 2e-5


@dataclass(frozen=True)
class GraphCase:
    """A graph as the bytes of its file.

    opened: the input with a dynamic axis, n, and its shape. runs: for each run, the sizes of dimensions and
    the inputs. ends: the outputs of a run. outputs: those of LiteRT, of all runs, one after another.
    """

    name: str
    file: bytes
    opened: Mapping[str, tuple[int | str, ...]]
    runs: Sequence[tuple[dict[str, int], list[Array]]]
    ends: Sequence[Activation]
    outputs: Sequence[Array]

    @property
    def inputs(self) -> list[Array]:
        return self.runs[0][1]


def made(seed: int, form: str, nodes: int, is_open: bool = False) -> GraphCase | None:
    """The case of a seed, with at least so many operators; None where LiteRT cannot run it.

    is_open: an axis of an input has a size of the run; None where no axis may have another size.
    """
    graph = TfliteGraph(seed, form)
    makers = [m for m in _MAKERS if FLOAT in graph.dtypes or m not in _OF_FLOATS]
    while len(graph.nodes) < nodes:
        graph.choice.choice(makers)(graph)
    if not is_open:
        return _case(graph, f"{form}/{seed}/{DATA}", {}, [({}, [array for _, array in graph.used()])])
    axes = [(at, axis) for at, (_, array) in enumerate(graph.used()) for axis in range(array.ndim)]
    graph.choice.shuffle(axes)
    for at, axis in axes:
        value, runs = graph.used()[at][0], []
        for size in (max(value.shape[axis] - 2, 1), value.shape[axis], value.shape[axis] + 3):
            shape = (*value.shape[:axis], size, *value.shape[axis + 1 :])
            inputs = [array for _, array in graph.used()]
            inputs[at] = graph.contents(value.dtype, shape, value.most)
            runs.append(({"n": size}, inputs))
        opened = {value.name: (*value.shape[:axis], "n", *value.shape[axis + 1 :])}
        case = _case(graph, f"{form}/{seed}/open", opened, runs)
        if case is not None:
            return case
    return None


def _case(
    graph: TfliteGraph, name: str, opened: Mapping[str, tuple[int | str, ...]], runs: Any
) -> GraphCase | None:
    """A case with the results of LiteRT; None where it refuses the graph."""
    with folder_of_cases() as folder:
        path = graph.write(Path(folder) / "m.tflite", False, opened)
        real = graph.write(Path(folder) / "real.tflite", True, opened)
        if opened and not _survives(real, [inputs for _, inputs in runs]):
            return None
        try:
            with quiet_stderr():
                found = [array for _, inputs in runs for array in _reference(real, inputs)]
        except (RuntimeError, ValueError):
            return None
        ends = graph.ends()
        assert opened or [array.shape for array in found] == [value.shape for value in ends], name
        return GraphCase(name, path.read_bytes(), opened, runs, ends, found)


def _survives(path: Path, runs: Sequence[Sequence[Array]]) -> bool:
    """Whether LiteRT ends in no signal, as it does at some sizes that it does not check."""
    process = os.fork()
    if process == 0:
        with contextlib.suppress(Exception):
            for inputs in runs:
                _reference(path, inputs)
        os._exit(0)
    return os.waitpid(process, 0)[1] == 0


def _reference(path: Path, inputs: Sequence[Array]) -> list[Array]:
    """The results of the reference kernels; where an operator has none, of the others without delegates."""
    try:
        return litert(path, inputs, "BUILTIN_REF")
    except ValueError as error:
        if "Didn't find op" not in str(error):
            raise
        return litert(path, inputs, "BUILTIN_WITHOUT_DEFAULT_DELEGATES")


def save_graph(case: GraphCase, folder: Path) -> tuple[Path, ImportOptions]:
    """Write the file; returns its path and the options of its import."""
    path = folder / f"{case.name.replace('/', '-')}.tflite"
    path.write_bytes(case.file)
    if not case.opened:
        return path, ImportOptions("m")
    sizes = [dims["n"] for dims, _ in case.runs]
    segment = Segment(strategy="dynamic", min=min(sizes), max=max(sizes), multiple=1)
    dims = {"n": DimRange("n", min(sizes), max(sizes))}
    return path, ImportOptions("m", case.opened, dims=dims, bucket={"n": segment})


def compare_graph(case: GraphCase, found: Sequence[Array]) -> str:
    """How results differ from LiteRT's by more than they may; empty if they agree."""
    ends = [*case.ends] * len(case.runs)
    for number, (ours, theirs, end) in enumerate(zip(found, case.outputs, ends, strict=True)):
        if case.opened:  # where a size is 1, TFLite drops axes that it keeps at other sizes
            ours, theirs = ours.squeeze(), theirs.squeeze()
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return f"output {number}: {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
        a, b = ours.astype("float64"), theirs.astype("float64")
        if theirs.dtype.kind == "f":
            greatest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
            limit = _ABSOLUTE * max(1.0, greatest) + end.error
            near = np.isclose(a, b, _RELATIVE, limit, equal_nan=True)
        else:
            near = np.abs(a - b) <= end.levels
        if not near.all():
            where = tuple(int(axis[0]) for axis in np.nonzero(np.atleast_1d(~near)))
            got, want = np.atleast_1d(ours)[where], np.atleast_1d(theirs)[where]
            return (
                f"output {number} ({end.name}): {int((~near).sum())} of {near.size}, at {list(where)} {got}, "
                f"not {want}, up to {end.levels} levels"
            )
    return ""
