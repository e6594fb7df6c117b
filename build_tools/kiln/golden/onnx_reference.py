"""The reference of ONNX files: ONNX Runtime, and ONNX's own evaluator for what that cannot run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from kiln.arrays import Array
from kiln.errors import KilnError
from kiln.frontend.onnx.half_types import half_types
from kiln.frontend.onnx.plain_session import is_newer, plain_session
from kiln.golden.exact_graph import exact_content
from kiln.golden.own_reference import onnx_parts
from kiln.golden.reference_base import Reference, coarsest
from kiln.golden.stored_ports import evaluator, needs_evaluator
from kiln.onnx_domains import opset_of

LEAST_OPSET = 7  # that ONNX Runtime runs
_TYPE_LACKING = "Tensor type mismatch"  # its error where a kernel that it chose has no code for a type


class OnnxRuntime(Reference):
    """ONNX Runtime on one CPU thread, with every graph optimisation off.

    ONNX's own evaluator replaces it for a model with inputs or outputs of types that NumPy lacks, and for one
    with operators, or types of their operands, that ONNX Runtime has not implemented.
    """

    _evaluate: Callable[[Sequence[Array]], list[Array]]

    def __init__(self, path: Path) -> None:
        self.graph = onnx.load(path, load_external_data=False)
        self.has_dynamic_sizes = any(
            not dim.HasField("dim_value")
            for value in self.graph.graph.input
            for dim in value.type.tensor_type.shape.dim
        )
        self.precision = coarsest(half_types(self.graph))
        if not needs_evaluator(self.graph):
            try:
                self._open_session(path, self.graph)
                return
            except KilnError:
                raise
            except Exception as error:  # ONNX Runtime raises exception types of its own
                lacks_code = "NOT_IMPLEMENTED" in str(error) and opset_of(self.graph) >= LEAST_OPSET
                if not (lacks_code or is_newer(self.graph)):
                    raise
                with contextlib.suppress(Exception):  # it lacks operators too: the first error tells more
                    self._use_evaluator(path, error)
                    return
                raise
        self._use_evaluator(path)

    def _use_evaluator(self, path: Path, cause: Exception | None = None) -> None:
        """Use ONNX's evaluator; `cause`: why ONNX Runtime cannot, which tells more than its error."""
        evaluate = evaluator(onnx.load(path))

        def run(inputs: Sequence[Array]) -> list[Array]:
            try:
                return evaluate(inputs)
            except Exception:
                if cause is None:
                    raise
                self.about = _about_runtime()
                raise cause from None

        self._evaluate = run
        self.about = {"name": "onnx", "version": onnx.__version__, "settings": {"evaluator": "NumPy"}}

    def _open_session(self, path: Path, graph: onnx.ModelProto) -> None:
        own_parts = onnx_parts(path, graph, lambda content: _by_name(plain_session(content)))
        if own_parts is not None:
            self._evaluate = own_parts.run
        else:
            exact = exact_content(path, graph)
            session = plain_session(
                str(path) if exact is None else exact, folder=path.parent if exact else None
            )
            names = [value.name for value in session.get_inputs()]
            self._evaluate = lambda inputs: session.run(
                None, {name: np.asarray(value) for name, value in zip(names, inputs, strict=True)}
            )
        self.about = _about_runtime()

    def _run(self, inputs: Sequence[Array]) -> list[Array]:
        # NumPy's functions return plain numbers in place of tensors without axes.
        arrays = [np.asarray(value) for value in inputs]
        try:
            return [np.asarray(value) for value in self._evaluate(arrays)]
        except Exception as error:  # some types of operators are refused in the first run only
            if self.about["name"] == "onnx" or self.graph is None:
                raise
            if not is_newer(self.graph) and _TYPE_LACKING not in str(error):
                raise
            self._use_evaluator(self.path, error)
        return [np.asarray(value) for value in self._evaluate(arrays)]


def _about_runtime() -> dict[str, Any]:
    import onnxruntime

    return {
        "name": "onnxruntime",
        "version": onnxruntime.__version__,
        "settings": {"graph_optimization_level": "ORT_DISABLE_ALL", "provider": "CPU", "threads": 1},
    }


def _by_name(session: Any) -> Callable[[Mapping[str, Array]], list[Array]]:
    """A session as a function of its inputs by name."""
    return lambda tensors: [np.asarray(value) for value in session.run(None, dict(tensors))]
