"""ONNX's evaluator for models that ONNX Runtime lacks: optimisers, and ports of types such as bfloat16.

A bundle takes and returns the bits of such elements, or integers of 4 bits as int8
(kiln.frontend.onnx.narrow_types); ONNX Runtime's Python interface has no arrays of these types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

from kiln.arrays import Array
from kiln.config.data import NormalInput, RandomInput
from kiln.frontend.onnx.narrow_types import NARROW_TYPES, is_integer, stored_as
from kiln.onnx_domains import TRAINING

_STORED = NARROW_TYPES | {TensorProto.BFLOAT16}


def needs_evaluator(model: onnx.ModelProto) -> bool:
    """Whether ONNX Runtime cannot run a model for its optimisers, or for ports of a type that NumPy lacks."""
    stored_port = any(_kind(value) in _STORED for value in (*model.graph.input, *model.graph.output))
    return stored_port or any(node.domain == TRAINING for node in model.graph.node)


def evaluator(model: onnx.ModelProto) -> Callable[[Sequence[Array]], list[Array]]:
    """A function from the inputs of `model` to its outputs, both as bundles have them."""
    from onnx.reference import ReferenceEvaluator

    run = ReferenceEvaluator(model, new_ops=[_grid_sample()])
    weights = {weight.name for weight in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]

    def evaluate(tensors: Sequence[Array]) -> list[Array]:
        pairs = zip(inputs, tensors, strict=True)
        outputs = run.run(
            None, {value.name: _element(np.asarray(array), _kind(value)) for value, array in pairs}
        )
        results = zip(model.graph.output, outputs, strict=True)
        return [stored(np.asarray(array), _kind(value)) for value, array in results]

    return evaluate


def _grid_sample() -> Any:
    """ONNX's GridSample, which of integers computes the weights in integers, and so only zeros, in floats."""
    from onnx.reference.ops.op_grid_sample import GridSample as Floats

    class GridSample(Floats):  # type: ignore[misc]  # its name is the operator's
        op_domain = ""

        def _run(self, X: Array, grid: Array, **attributes: Any) -> tuple[Array]:  # noqa: N803
            if X.dtype.kind not in "biu":
                return (np.asarray(super()._run(X, grid, **attributes)[0]),)
            samples = super()._run(X.astype(np.float64), grid, **attributes)[0]
            return (np.asarray(samples).astype(X.dtype),)

    return GridSample


def _kind(value: onnx.ValueInfoProto) -> int:
    return int(value.type.tensor_type.elem_type)


def kind_of(name: str) -> int:
    """The element type of ONNX with a name in lower case."""
    return int(TensorProto.DataType.Value(name.upper()))


def bounded(kind: int, spec: RandomInput | NormalInput) -> RandomInput | NormalInput:
    """`spec`, whose missing bounds become the least and greatest number of an integer type."""
    if not is_integer(kind) or not isinstance(spec, RandomInput):
        return spec
    iinfo: Any = ml_dtypes.iinfo
    info = iinfo(helper.tensor_dtype_to_np_dtype(kind))
    ends = {"low": float(int(info.min)), "high": float(int(info.max))}
    return spec.model_copy(update={**ends, **spec.model_dump(include={"low", "high"}, exclude_none=True)})


def element(array: Array, kind: int) -> Array:
    """Numbers in the type `kind`: integers rounded, floats to the nearest."""
    numbers = np.rint(array) if is_integer(kind) else array
    elements: Array = numbers.astype(helper.tensor_dtype_to_np_dtype(kind))
    return elements


def _element(array: Array, kind: int) -> Array:
    """Stored elements, converted to the type `kind`."""
    if kind not in _STORED:
        return array
    dtype: Any = helper.tensor_dtype_to_np_dtype(kind)
    return array.astype(dtype) if is_integer(kind) else array.view(dtype)


def stored(array: Array, kind: int) -> Array:
    """Elements of the type `kind` as a bundle stores them."""
    if kind not in _STORED:
        return array
    if is_integer(kind):
        return array.astype(stored_as(kind))
    return np.asarray(array, order="C").view("uint16" if kind == TensorProto.BFLOAT16 else "uint8")
