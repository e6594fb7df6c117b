"""One node of a user's operator, computed by the NumPy function in the operator's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.operators.declaration import OwnTensor
from kiln.operators.registry import LoadedOperator, check_inputs, takes_quants


@dataclass(frozen=True)
class OwnStep:
    """One node of a user's operator: names of its tensors, and the attributes that its file declares.

    quants: of the inputs and then of the outputs, for a TFLite file.
    """

    loaded: LoadedOperator
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Any]
    quants: Sequence[Any] = ()

    def run(self, values: dict[str, Array]) -> None:
        """Add the results to `values`. Raises KilnError for other results than the shape rule declares."""
        loaded = self.loaded
        arguments = [values[name] if name else None for name in self.inputs]
        check_inputs(loaded, arguments)
        arguments += [None] * ((loaded.most_inputs or 0) - len(arguments))
        reference = loaded.operator.reference
        keywords = {"quants": list(self.quants)} if takes_quants(reference) else {}
        call_results = loaded.call("reference", reference, *arguments, **self.attributes, **keywords)
        results = list(call_results) if isinstance(call_results, (list, tuple)) else [call_results]
        if len(results) < len(self.outputs):
            raise loaded.error(
                f"reference returns {len(results)} outputs, the model uses {len(self.outputs)}"
            )
        for result in results:
            if not isinstance(result, (np.ndarray, np.generic)):
                raise loaded.error(f"reference returns {type(result).__name__}, allowed: NumPy arrays")
        arrays = [np.asarray(result) for result in results]
        self._check(arguments, arrays)
        values.update((name, array) for name, array in zip(self.outputs, arrays, strict=False) if name)

    def _check(self, arguments: Sequence[Array | None], arrays: Sequence[Array]) -> None:
        """Raise KilnError unless the shape rule declares as many results of these types and shapes.

        What it declares may depend on the elements of constants. Which arguments are constants is not known
        here: results are right if they fit with all elements or without any.
        """
        declared = [self._declared(arguments, with_elements) for with_elements in (False, True)]
        faults = [_fault(of_rule, arrays) for of_rule in declared if of_rule is not None]
        if faults and "" not in faults:
            raise self.loaded.error(faults[0])

    def _declared(
        self, arguments: Sequence[Array | None], with_elements: bool
    ) -> list[tuple[str, list[int]]] | None:
        """Type and shape of the results by the shape rule; None where it needs other facts of its inputs.

        A rule that is wrong for every input ends the stage that imports the model.
        """
        tensors = [
            None
            if array is None
            else OwnTensor(
                array.shape,
                array.dtype.name,
                array if with_elements else None,
                self.quants[index] if index < len(self.quants) else None,
            )
            for index, array in enumerate(arguments)
        ]
        try:
            outputs = self.loaded.operator.result(*tensors, **self.attributes)
            results = outputs if isinstance(outputs, (list, tuple)) else [outputs]
            return [(str(one.dtype), [int(size) for size in one.shape]) for one in results]
        except Exception:  # anything may be wrong in a user's file
            return None


def _fault(declared: Sequence[tuple[str, list[int]]], arrays: Sequence[Array]) -> str:
    """The fault of the results of a reference, in words; empty if they are as declared."""
    if len(arrays) != len(declared):
        return f"reference returns {len(arrays)} outputs, result declares {len(declared)}"
    for index, ((dtype, shape), array) in enumerate(zip(declared, arrays, strict=True)):
        if dtype != array.dtype.name or shape != list(array.shape):
            return (
                f"reference: output {index} is {array.dtype.name}{list(array.shape)}, its declared result is "
                f"{dtype}{shape}"
            )
    return ""
