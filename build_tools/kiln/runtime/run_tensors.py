"""The C tensors of a network's runs, which are made once for all runs on inputs of the same shapes and types.

Making them, and asking the C library for the shapes of the outputs, takes longer than a small model runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kiln.runtime.arrays import Tensor, of_shape, tensors_over
from kiln.runtime.library import BundleLibrary
from kiln.runtime.structs import CDetail, CPlanResult, CSession, DLTensor, address_of

_MOST = 64  # shapes that are kept; a program with more of them would fill the memory


@dataclass(frozen=True)
class RunTensors:
    """Arrays of DLTensor for the inputs and outputs of a run, whose addresses `point_to` sets.

    `sizes`: the run's free dimensions. `shapes` and `dtypes`: of the outputs, with the greatest size along an
    axis whose elements a run counts. `each`: the inputs' tensors, then the outputs'.
    """

    inputs: Any
    outputs: Any
    sizes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[np.generic], ...]
    each: tuple[DLTensor, ...]

    def new_outputs(self) -> list[Tensor]:
        """Arrays for the outputs, whose elements have no values yet."""
        return [np.empty(shape, dtype) for shape, dtype in zip(self.shapes, self.dtypes, strict=True)]

    def point_to(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Use the memory of these arrays, which have the shapes and types of the tensors."""
        for tensor, array in zip(self.each, (*inputs, *outputs), strict=False):
            tensor.data = address_of(array)


class TensorsByShapes:
    """The tensors of a model's runs, by the shapes and types of the inputs; `dtypes`: of the outputs."""

    def __init__(self, library: BundleLibrary, dtypes: Sequence[np.dtype[np.generic]]) -> None:
        self._library, self._dtypes = library, tuple(dtypes)
        self._made: dict[tuple[Any, ...], RunTensors] = {}

    def of(self, arrays: Sequence[Tensor]) -> RunTensors:
        """The tensors for a run on inputs of the shapes and types of these arrays.

        Raises KilnError for arrays that the model does not allow.
        """
        key = tuple([(array.shape, array.dtype) for array in arrays])
        made = self._made.get(key)
        if made is None:
            made = self._make(arrays)
            if len(self._made) >= _MOST:
                self._made.clear()
            self._made[key] = made
        return made

    def _make(self, arrays: Sequence[Tensor]) -> RunTensors:
        inputs, library = tensors_over(arrays), self._library
        result = plan_of_run(library, inputs)
        shapes = output_shapes(library, result)
        pairs = zip(shapes, self._dtypes, strict=True)
        outputs = tensors_over([of_shape(shape, dtype, "an output") for shape, dtype in pairs])
        each = (*(inputs[i] for i in range(len(arrays))), *(outputs[i] for i in range(len(shapes))))
        sizes = tuple(result.dims[: library.model.dims_count])
        return RunTensors(inputs, outputs, sizes, shapes, self._dtypes, each)


def plan_of_run(library: BundleLibrary, inputs: Any) -> CPlanResult:
    """The plan of a run on a C array of tensors. Raises KilnError where the model does not allow them."""
    result, detail = CPlanResult(), CDetail()
    model = ctypes.byref(library.model)
    library.check(library.c.kiln_plan(model, inputs, ctypes.byref(result), ctypes.byref(detail)), detail)
    return result


def output_shapes(library: BundleLibrary, result: CPlanResult | CSession) -> tuple[tuple[int, ...], ...]:
    """The shapes of a model's outputs in a run with the dimensions of a plan, or in a session's last run."""
    shapes = []
    for tensor in library.model.outputs[: library.model.outputs_count]:
        shape = (ctypes.c_int64 * max(tensor.rank, 1))()
        library.c.kiln_tensor_shape(ctypes.byref(tensor), result.dims, shape)
        shapes.append(tuple(shape[: tensor.rank]))
    return tuple(shapes)
