"""ONNX graphs as text, compiled into one library, whose runs are compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from kiln.emit.objects import missing_symbols
from kiln.frontend.importer import import_model
from kiln.frontend.options import from_config
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.steps import Steps
from symbolic import configuration, dynamic

from .lowered import loaded, runnable_alone
from .programs import compile_unoptimised, execute

Array = npt.NDArray[Any]
HEADER = '<ir_version: 8, opset_import: ["" : {opset}]>\n'
BATCH = {"b": (1, 4)}


@dataclass(frozen=True)
class TextGraph:
    """An ONNX graph as text. `dims`: ranges of its dynamic dimensions; `bounds`: as in a model's YAML."""

    text: str
    weights: Mapping[str, Any] = field(default_factory=dict)
    dims: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    opset: int = 17


class CompiledGraphs:
    """All of `graphs`, imported and lowered, and their kernels in one library."""

    def __init__(self, folder: Path, graphs: Mapping[str, TextGraph]) -> None:
        self.folder, self.steps = folder, dict[str, Steps]()
        target = runnable_alone("x86_64")
        functions: dict[str, Any] = {}
        for name, graph in graphs.items():
            text = HEADER.format(opset=graph.opset) + graph.text
            model = onnx.parser.parse_model(text)
            for key, value in graph.weights.items():
                model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), key))
            onnx.save(model, folder / f"{name}.onnx")
            options = from_config(
                configuration(graph.dims).model_copy(update={"bounds": dict(graph.bounds)}),
                dynamic(graph.dims) if graph.dims else None,
            )
            module, _ = import_model(folder / f"{name}.onnx", options)
            self.steps[name] = lower(simplify(module), Lowering("m", target, "pthread"))
            functions |= self.steps[name].functions
        compile_unoptimised(functions, folder / "all.o")
        assert not missing_symbols(folder / "all.o", target)
        self.library = loaded(folder / "all.o")
        self._sessions: dict[str, Any] = {}

    def check(self, name: str, *inputs: Array, absolute: float = 1e-6, **dims: int) -> list[Array]:
        """Compare a run with ONNX Runtime: shapes, types and elements; returns the outputs."""
        if name not in self._sessions:
            self._sessions[name] = onnxruntime.InferenceSession(self.folder / f"{name}.onnx")
        session = self._sessions[name]
        names = [value.name for value in session.get_inputs()]
        expected = session.run(None, dict(zip(names, inputs, strict=True)))
        outputs = execute(self.steps[name], self.library, inputs, dims)
        for ours, theirs in zip(outputs, expected, strict=True):
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            if ours.dtype.kind == "f":
                np.testing.assert_allclose(ours, theirs, atol=absolute, rtol=1e-5)
            else:
                np.testing.assert_array_equal(ours, theirs)
        return outputs
