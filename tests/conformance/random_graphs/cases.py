"""Random graphs with inputs and the outputs that ONNX Runtime computes without optimising."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from kiln.frontend.options import ImportOptions, from_config
from symbolic import Dims, configuration, dynamic

from ..onnx_nodes.cases import DATA
from . import elementwise, movement, products
from .graph import Array, Graph

_MAKERS = (*elementwise.ALL, *movement.ALL, *products.ALL)


@dataclass(frozen=True)
class Case:
    """A graph, and runs of it.

    runs: the sizes of the dimensions, which have the ranges `dims`, and the inputs. outputs: those of ONNX
    Runtime, of one run after the other.
    """

    name: str
    model: onnx.ModelProto
    runs: Sequence[tuple[dict[str, int] | None, Sequence[Array]]]
    outputs: Sequence[Array]
    dims: Dims

    @property
    def inputs(self) -> Sequence[Array]:
        """The inputs of the first run."""
        return self.runs[0][1]


def made(seed: int, nodes: int, is_open: bool = False) -> Case | None:
    """The case of a seed, with at least so many nodes; None where ONNX Runtime cannot run it.

    is_open: an axis of an input has a size of the run; None where no axis may have another size.
    """
    graph = Graph(seed)
    while len(graph.nodes) < nodes:
        graph.choice.choice(_MAKERS)(graph)
    model, inputs = graph.model(), [array for _, array in graph.inputs]
    if is_open:
        return _opened(graph, seed, model, inputs)
    outputs = _reference(model, inputs)
    return None if outputs is None else Case(f"{seed}/{DATA}", model, [(None, inputs)], outputs, {})


def _opened(graph: Graph, seed: int, model: onnx.ModelProto, inputs: Sequence[Array]) -> Case | None:
    """The case with one open axis, at three sizes."""
    axes = [(at, axis) for at, array in enumerate(inputs) for axis in range(array.ndim)]
    graph.choice.shuffle(axes)
    for at, axis in axes:
        opened, size = onnx.ModelProto(), inputs[at].shape[axis]
        opened.CopyFrom(model)
        opened.graph.input[at].type.tensor_type.shape.dim[axis].dim_param = "n"
        for value in opened.graph.output:
            value.type.tensor_type.ClearField("shape")
        least, greatest = max(size - 2, 1), size + 3
        runs = []
        for n in (least, size, greatest):
            shape = (*inputs[at].shape[:axis], n, *inputs[at].shape[axis + 1 :])
            data = graph.array(shape, str(inputs[at].dtype), 2.0 if inputs[at].dtype.kind == "f" else 9.0)
            runs.append(({"n": n}, [*inputs[:at], data, *inputs[at + 1 :]]))
        found = [_reference(opened, given) for _, given in runs]
        if all(found):
            outputs = [array for one in found for array in one or ()]
            return Case(f"{seed}/open", opened, runs, outputs, {"n": (least, greatest)})
    return None


def _reference(model: onnx.ModelProto, inputs: Sequence[Array]) -> list[Array] | None:
    """The outputs that ONNX Runtime computes; None where it fails."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        names = [value.name for value in model.graph.input]
        found: list[Array] = session.run(None, dict(zip(names, inputs, strict=True)))
    except Exception:  # ONNX Runtime raises exception types of its own
        return None
    return found


def load(case: Case, folder: Path) -> tuple[Path, ImportOptions]:
    """Write the file of a case."""
    path = folder / "m.onnx"
    onnx.save(case.model, path)
    return path, from_config(configuration(case.dims), dynamic(case.dims)) if case.dims else ImportOptions(
        "m"
    )


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
