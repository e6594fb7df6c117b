"""Random graphs as cases: a file, inputs, and the results of LiteRT's reference kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kiln.frontend.options import ImportOptions
from kiln.frontend.quiet import quiet_stderr

from ..onnx_nodes.cases import DATA
from ..random_graphs.drawing import FLOAT, Array
from ..tflite_operators.files import folder_of_cases, litert
from . import elementwise, movement, products
from .graph import Activation, TfliteGraph

_MAKERS = (*elementwise.ALL, *movement.ALL, *products.ALL)
_OF_FLOATS = (elementwise.exact_function, elementwise.of_positive)
_RELATIVE, _ABSOLUTE = 2e-4, 2e-5


@dataclass(frozen=True)
class GraphCase:
    """A graph as the bytes of its file. ends: its outputs, in their order. outputs: those of LiteRT."""

    name: str
    file: bytes
    inputs: Sequence[Array]
    ends: Sequence[Activation]
    outputs: Sequence[Array]


def made(seed: int, form: str, nodes: int) -> GraphCase | None:
    """The case of a seed, with at least so many operators; None where LiteRT cannot run it."""
    graph = TfliteGraph(seed, form)
    makers = [m for m in _MAKERS if FLOAT in graph.dtypes or m not in _OF_FLOATS]
    while len(graph.nodes) < nodes:
        graph.choice.choice(makers)(graph)
    with folder_of_cases() as folder:
        path, inputs = graph.write(Path(folder) / "m.tflite")
        reference, _ = graph.write(Path(folder) / "real.tflite", is_real=True)
        try:
            with quiet_stderr():
                outputs = _reference(reference, inputs)
        except (RuntimeError, ValueError):
            return None
        ends = graph.ends()
        for value, array in zip(ends, outputs, strict=True):
            assert value.shape == array.shape, (seed, form, value, array.shape)
        return GraphCase(f"{form}/{seed}/{DATA}", path.read_bytes(), inputs, ends, outputs)


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
    return path, ImportOptions("m")


def compare_graph(case: GraphCase, found: Sequence[Array]) -> str:
    """How results differ from LiteRT's by more than they may; empty if they agree."""
    for number, (ours, theirs, end) in enumerate(zip(found, case.outputs, case.ends, strict=True)):
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
