"""Runs a model with state on a sequence of inputs: the reference gets the same sequence as the bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kiln.arrays import Array
from kiln.config.data import GoldenInput
from kiln.config.interface import StateRecord
from kiln.golden.cases import GoldenCase
from kiln.golden.inputs import DRAWN
from kiln.golden.reference_base import Reference
from kiln.params.states import initial_value

_SEEDS = 1000  # between the seeds of a set and of its later runs


class StatefulReference(Reference):
    """A reference whose inputs and outputs are those of the interface: it passes the state itself.

    `states`: of the model's interface. A run starts from the state that `keep` stored last, so that it can be
    repeated, and stores the state after it in `left`. If the model's file has variables, every run changes
    them, and the next run starts from the changed values.
    """

    def __init__(self, reference: Reference, states: Sequence[StateRecord]) -> None:
        self._reference, self._states = reference, states
        self.path, self.about, self.precision = reference.path, reference.about, reference.precision
        self.graph, self.has_levels = reference.graph, reference.has_levels
        self._state: list[Array] = []
        self.left: list[Array] = []
        self.reset()

    def reset(self) -> None:
        """Begin a new sequence."""
        self._reference.reset()
        self._state = [initial_value(state) for state in self._states]

    def like(self, variant: Reference) -> Reference:
        """`variant` of the model, in the present state."""
        stepped = StatefulReference(variant, self._states)
        stepped.keep(self._state)
        return stepped

    def moved(self, factor: float, generator: np.random.Generator | None) -> Reference | None:
        """As for every reference."""
        return self._reference.moved(factor, generator)

    @property
    def now(self) -> list[Array]:
        """The state from which the next run starts."""
        return self._state

    def keep(self, state: list[Array]) -> None:
        """Let the next run start from `state`, which a run has left."""
        self._state = state

    def _run(self, inputs: Sequence[Array]) -> list[Array]:
        return self.run(inputs)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs of a run, without the state, for `inputs`; both in the interface's order.

        Raises KilnError if the run fails.
        """
        state_values = {
            state.input: value
            for state, value in zip(self._states, self._state, strict=True)
            if state.input is not None
        }
        remaining_inputs = iter(inputs)
        count = len(inputs) + len(state_values)
        results = self._reference.run(
            [state_values[i] if i in state_values else next(remaining_inputs) for i in range(count)]
        )
        state_outputs = [state.output for state in self._states if state.output is not None]
        self.left = (
            [np.asarray(results[position]) for position in state_outputs] if state_outputs else self._state
        )
        return [value for index, value in enumerate(results) if index not in state_outputs]


class SequenceReference(StatefulReference):
    """A reference with state, whose runs each start from the state after the run before."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs of the next run, as StatefulReference.run returns them."""
        outputs = super().run(inputs)
        self.keep(self.left)
        return outputs


def file_input_shapes(shapes: Sequence[Sequence[int]], states: Sequence[StateRecord]) -> list[Sequence[int]]:
    """Shapes of all inputs of the model's file; `shapes`: the shapes of the interface's inputs."""
    state_shapes = {state.input: state.shape for state in states if state.input is not None}
    remaining = iter(shapes)
    return [
        state_shapes[index] if index in state_shapes else next(remaining)
        for index in range(len(shapes) + len(state_shapes))
    ]


def later_seed(seed: int, run: int) -> int:
    """The seed of the input set of a run that follows `run` others in a sequence."""
    return seed + _SEEDS * run


def input_set_of_run(spec: GoldenInput, run: int) -> GoldenInput:
    """The input set of a run that follows `run` others in a sequence: random values have another seed."""
    return spec.model_copy(update={"seed": later_seed(spec.seed, run)}) if isinstance(spec, DRAWN) else spec


def with_later_runs(cases: Sequence[GoldenCase], runs: int) -> list[GoldenCase]:
    """Each test case as `runs` consecutive runs; runs after the first have other inputs."""
    tests = []
    for case in cases:
        tests.append(case)
        for run in range(1, runs):
            tests.append(
                replace(
                    case, name=f"{case.name}_run{run + 1}", spec=input_set_of_run(case.spec, run), run=run
                )
            )
    return tests
