"""TFLite operators whose results have a size that is in the data, against LiteRT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.steps import Steps
from tflite_files import Node, Tensor, write_graph

from .lowered import loaded, runnable_alone
from .programs import compile_unoptimised, execute

Array = npt.NDArray[Any]
OP = schema.BuiltinOperator
FIRST = [-1]  # the signature of an axis whose size is not in the file


def where(path: Path) -> Path:
    """Positions of what is not zero, and the elements there."""
    tensors = [
        Tensor("x", [4, 6]), Tensor("at", [1, 2], "int64", signature=[-1, 2]),
        Tensor("found", [1], signature=FIRST), Tensor("y", [1], signature=FIRST),
    ]  # fmt: skip
    nodes = [
        Node(OP.WHERE, None, [0], [1]),
        Node(OP.GATHER_ND, None, [0, 1], [2]),
        Node(OP.EXP, None, [2], [3]),
    ]
    return write_graph(path, tensors, nodes, [0], [1, 3])


def masked(path: Path) -> Path:
    """The rows whose mask is set, as tf.boolean_mask selects them."""
    tensors = [
        Tensor("x", [8, 3]), Tensor("mask", [8], "bool"), Tensor("minus", [1], "int32", data=np.int32([-1])),
        Tensor("at", [1, 1], "int64", signature=[-1, 1]), Tensor("flat", [1], "int64", signature=FIRST),
        Tensor("y", [1, 3], signature=[-1, 3]),
    ]  # fmt: skip
    nodes = [
        Node(OP.WHERE, None, [1], [3]),
        Node(OP.RESHAPE, schema.ReshapeOptionsT(), [3, 2], [4]),
        Node(OP.GATHER, schema.GatherOptionsT(), [0, 4], [5]),
    ]
    return write_graph(path, tensors, nodes, [0, 1], [5])


def unique(path: Path) -> Path:
    """Distinct numbers, and which one each is."""
    options = schema.UniqueOptionsT()
    options.idxOutType = schema.TensorType.INT32
    tensors = [Tensor("x", [20]), Tensor("y", [1], signature=FIRST), Tensor("kinds", [20], "int32")]
    return write_graph(path, tensors, [Node(OP.UNIQUE, options, [0], [1, 2])], [0], [1, 2])


def span(path: Path, results: str = "y") -> Path:
    """Ranges with limits of the run, all with the same ones."""
    tensors = [Tensor(name, [], "int32") for name in "abs"]
    tensors += [Tensor(name, [1], "int32", signature=FIRST) for name in results]
    outputs = range(3, len(tensors))
    nodes = [Node(OP.RANGE, schema.RangeOptionsT(), [0, 1, 2], [output]) for output in outputs]
    return write_graph(path, tensors, nodes, [0, 1, 2], outputs)


def suppression(path: Path, sigma: float | None = None) -> Path:
    """Version 4, or 5 with `sigma`: at most 6 of 20 boxes.

    TensorFlow writes 4 as if the number of indices were not known.
    """
    numbers = {"most": np.array(6, np.int32), "overlap": np.float32(0.3), "least": np.float32(0.2)}
    if sigma is not None:
        numbers["sigma"] = np.float32(sigma)
    tensors = [Tensor("boxes", [20, 4]), Tensor("scores", [20])]
    tensors += [Tensor(key, [], str(value.dtype), data=np.asarray(value)) for key, value in numbers.items()]
    first = len(tensors)
    results = [Tensor("kept", [6], "int32"), Tensor("best", [6]), Tensor("count", [], "int32")]
    if sigma is None:
        results = [Tensor("kept", [1], "int32", signature=FIRST), results[2]]
    outputs = [first + number for number in range(len(results))]
    code = OP.NON_MAX_SUPPRESSION_V4 if sigma is None else OP.NON_MAX_SUPPRESSION_V5
    return write_graph(path, tensors + results, [Node(code, None, range(first), outputs)], [0, 1], outputs)


FILES: dict[str, Callable[[Path], Path]] = {
    "where": where,
    "masked": masked,
    "unique": unique,
    "span": span,
    "four": suppression,
    "five": lambda path: suppression(path, 0.0),
}


class BuiltFiles:
    """All of FILES, imported and lowered, and their kernels in one library."""

    def __init__(self, folder: Path) -> None:
        self.steps, self.paths = dict[str, Steps](), dict[str, Path]()
        target, functions = runnable_alone("x86_64"), dict[str, Any]()
        for name, make in FILES.items():
            self.paths[name] = make(folder / f"{name}.tflite")
            options = ImportOptions("m", bounds={"y": 30} if name == "span" else {})
            module, _ = import_model(self.paths[name], options)
            self.steps[name] = lower(simplify(module), Lowering("m", target, "pthread"))
            functions |= self.steps[name].functions
        compile_unoptimised(functions, folder / "all.o")
        self.library = loaded(folder / "all.o")

    def check(self, name: str, inputs: Sequence[Array]) -> None:
        """Compare a run with LiteRT."""
        expected = open_reference(self.paths[name], "builtin_ref").run(inputs)
        for ours, theirs in zip(execute(self.steps[name], self.library, inputs), expected, strict=True):
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltFiles:
    return BuiltFiles(tmp_path_factory.mktemp("counted"))


def test_positions_and_distinct_numbers(built: BuiltFiles) -> None:
    random = np.random.default_rng(0)
    for share in (0.0, 0.4, 1.0):
        x = np.where(random.random((4, 6)) < share, random.normal(size=(4, 6)), 0).astype(np.float32)
        built.check("where", [x])
        mask = random.random(8) < share
        built.check("masked", [random.normal(size=(8, 3)).astype(np.float32), mask])
    for kinds in (1, 4, 1000):
        built.check("unique", [random.integers(0, kinds, 20).astype(np.float32)])


def test_a_range_of_the_run(built: BuiltFiles) -> None:
    for limits in ((0, 9, 2), (4, -5, -3), (0, 30, 1)):
        built.check("span", [np.array(limit, np.int32) for limit in limits])


@pytest.mark.parametrize("name", ["four", "five"])
def test_boxes_that_are_kept(built: BuiltFiles, name: str) -> None:
    random = np.random.default_rng(1)
    for scale in (0.0, 0.3, 1.0):
        boxes = random.random((20, 4)).astype(np.float32)
        scores = random.permutation(20).astype(np.float32) / 20 * np.float32(scale)
        built.check(name, [boxes, scores])


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KilnError, match=r"RANGE .*no limit follows .*'bounds: \{y: N\}'"):
        import_model(span(tmp_path / "m.tflite"), ImportOptions("m"))
    every = r"RANGE \(output y\), RANGE \(output z\): .* each may have .*'bounds: \{y: N, z: N\}'"
    with pytest.raises(KilnError, match=every):
        import_model(span(tmp_path / "m.tflite", "yz"), ImportOptions("m"))
    with pytest.raises(KilnError, match=r"soft_nms_sigma is 0.5, allowed: 0"):
        import_model(suppression(tmp_path / "m.tflite", 0.5), ImportOptions("m"))
    tensors = [
        Tensor("x", [4, 6]), Tensor("at", [1, 2], "int64", signature=[-1, 2]),
        Tensor("y", [2, 1], "int64", signature=[2, -1]), Tensor("p", [2], "int32", data=np.int32([1, 0])),
    ]  # fmt: skip
    nodes = [
        Node(OP.WHERE, None, [0], [1]),
        Node(OP.TRANSPOSE, schema.TransposeOptionsT(), [1, 3], [2]),
    ]
    with pytest.raises(KilnError, match=r"TRANSPOSE .*its input 'at' has a size that is counted in the run"):
        import_model(write_graph(tmp_path / "m.tflite", tensors, nodes, [0], [2]), ImportOptions("m"))
