"""Random graphs with inputs and the outputs that ONNX Runtime computes without optimising."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from kiln.frontend.options import ImportOptions

from ..onnx_nodes.cases import DATA
from . import elementwise, movement, products
from .graph import Array, Graph

_MAKERS = (*elementwise.ALL, *movement.ALL, *products.ALL)


@dataclass(frozen=True)
class Case:
    """A graph, its inputs, and the outputs of ONNX Runtime."""

    name: str
    model: onnx.ModelProto
    inputs: Sequence[Array]
    outputs: Sequence[Array]


def made(seed: int, nodes: int) -> Case | None:
    """The case of a seed, with at least so many nodes; None where ONNX Runtime cannot run it."""
    graph = Graph(seed)
    while len(graph.nodes) < nodes:
        graph.choice.choice(_MAKERS)(graph)
    model = graph.model()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        outputs = session.run(None, {value.name: array for value, array in graph.inputs})
    except Exception:  # ONNX Runtime raises exception types of its own
        return None
    return Case(f"{seed}/{DATA}", model, [array for _, array in graph.inputs], outputs)


def load(case: Case, folder: Path) -> tuple[Path, ImportOptions]:
    """Write the file of a case."""
    path = folder / "m.onnx"
    onnx.save(case.model, path)
    return path, ImportOptions("m")


def compare(case: Case, found: Sequence[Array]) -> str:
    """How the results of a case differ; empty if they agree."""
    for index, (ours, theirs) in enumerate(zip(found, case.outputs, strict=True)):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return (
                f"output {index}: {ours.dtype}{list(ours.shape)}, expected {theirs.dtype}{list(theirs.shape)}"
            )
        if ours.dtype.kind == "f":
            finite = np.abs(theirs[np.isfinite(theirs)])
            limit = 1e-4 * max(1.0, float(finite.max(initial=0.0)))
            differ = ~np.isclose(ours, theirs, rtol=1e-3, atol=limit, equal_nan=True)
        else:
            differ = ours != theirs
        if differ.any():
            at = tuple(int(axis[0]) for axis in np.nonzero(np.atleast_1d(differ)))
            got, want = np.atleast_1d(ours)[at], np.atleast_1d(theirs)[at]
            count = f"{int(differ.sum())} of {differ.size}"
            return f"output {index}: {count} differ, at {list(at)} {got}, expected {want}"
    return ""
