"""Sensitivity of a quantised TFLite model's outputs: the tolerance that this justifies.

LiteRT runs three times with each input moved up or down by one level, and once more with its other kernel
set, which rounds twice where the first one rounds once: a second right implementation of the same file. The
greatest change of an output over these runs is its sensitivity, in levels where the output is quantised.

Each of these runs is an interpreter of its own, which makes the same steps as the reference: variables of the
file are then in the state that the same inputs have left. Random signs come from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tflite

from kiln.arrays import Array
from kiln.config.interface import StateRecord
from kiln.errors import KilnError
from kiln.frontend.tflite.files import input_scales, rounds_to_levels
from kiln.golden.moved_values import perturbed
from kiln.golden.reference_base import Reference
from kiln.golden.schema import OTHER_KERNELS
from kiln.golden.sensitivity import greatest_changes
from kiln.golden.sequence import StatefulReference

_PERTURBED_RUNS = 3


class TfliteSensitivity:
    """Measures the sensitivity of the outputs of the TFLite model that `reference` runs.

    `open_variant`: opens the model once more with a kernel set, as a StatefulReference if it has state.
    `states`: of the interface.
    """

    def __init__(
        self,
        reference: Reference,
        open_variant: Callable[[str], Reference],
        states: Sequence[StateRecord] = (),
    ) -> None:
        model = tflite.Model.GetRootAsModel(reference.path.read_bytes(), 0)
        self.applies = rounds_to_levels(model)
        self._reference, self._generator = reference, np.random.default_rng(0)
        self._variants: list[Reference | None] = []
        if not self.applies:
            return
        kernels = str(reference.about["settings"]["op_resolver"])
        state_inputs = {state.input for state in states}
        self._steps = [
            step for position, step in enumerate(input_scales(model)) if position not in state_inputs
        ]
        kernel_sets = [kernels] * _PERTURBED_RUNS + [OTHER_KERNELS[kernels]]
        self._variants = [_open(open_variant, name.lower()) for name in kernel_sets]

    def reset(self) -> None:
        """Begin a new sequence of a model with state."""
        for variant in self._variants:
            if variant is not None:
                variant.reset()

    def measure(self, names: Sequence[str], inputs: Sequence[Array], outputs: Sequence[Array]) -> list[float]:
        """The greatest change of each output, in its own unit."""
        runs = []
        for number, variant in enumerate(self._variants):
            run_inputs = self._perturbed(inputs) if number < _PERTURBED_RUNS else inputs
            results = None if variant is None else self._run(variant, run_inputs)
            if results is None:
                self._variants[number] = None
            else:
                runs.append(results)
        return greatest_changes(runs, outputs)

    def _run(self, variant: Reference, inputs: Sequence[Array]) -> list[Array] | None:
        """The outputs in the reference's present state; None if these kernels cannot compute the model."""
        if isinstance(variant, StatefulReference) and isinstance(self._reference, StatefulReference):
            variant.keep(self._reference.now)
        try:
            return variant.run(inputs)
        except KilnError:
            return None

    def _perturbed(self, inputs: Sequence[Array]) -> list[Array]:
        """Inputs with each element moved by one level; integers without a scale stay as they are."""
        results = []
        for value, step in zip(inputs, self._steps, strict=True):
            if value.dtype.kind in "iu" and value.dtype.itemsize <= 2 and step is not None:
                signs = self._generator.integers(0, 2, value.shape) * 2 - 1
                ends = np.iinfo(value.dtype)
                results.append(
                    np.clip(value.astype(np.int64) + signs, ends.min, ends.max).astype(value.dtype)
                )
            else:
                results.append(perturbed(value, step, self._generator))
        return results


def _open(open_variant: Callable[[str], Reference], kernels: str) -> Reference | None:
    """The model with a kernel set; None if this set cannot open it."""
    try:
        return open_variant(kernels)
    except KilnError:
        return None
