"""Runs of a model with state, one after the other: the reference steps the same sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kiln.arrays import Array
from kiln.config.data import GoldenInput
from kiln.config.interface import StateRecord
from kiln.golden.cases import GoldenCase
from kiln.golden.inputs import DRAWN
from kiln.golden.reference import Reference
from kiln.params.states import initial_value

_SEEDS = 1000  # between the seeds of a set and of its later runs


class Stepped(Reference):
    """A reference whose runs see and return no state.

    `states`: those of the model's interface. A run starts from the state that `keep` stored last, as often
    as it is repeated, and leaves its own in `left`; a model whose file keeps the state itself steps with
    every run.
    """

    def __init__(self, reference: Reference, states: Sequence[StateRecord]) -> None:
        self._reference, self._states = reference, states
        self.path, self.about, self.precision = reference.path, reference.about, reference.precision
        self.graph = reference.graph
        self._now: list[Array] = []
        self.left: list[Array] = []
        self.reset()

    def reset(self) -> None:
        """Begin a new sequence."""
        self._reference.reset()
        self._now = [initial_value(state) for state in self._states]

    def like(self, other: Reference) -> Reference:
        """`other`, a variant of the model, in the present state."""
        stepped = Stepped(other, self._states)
        stepped.keep(self._now)
        return stepped

    @property
    def now(self) -> list[Array]:
        """The state from which the next run starts."""
        return self._now

    def keep(self, state: list[Array]) -> None:
        """Let the next run start from `state`, which a run has left."""
        self._now = state

    def _run(self, inputs: Sequence[Array]) -> list[Array]:
        return self.run(inputs)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs of a run without the state; both in the interface's order. Raises KilnError."""
        given = {
            state.input: value
            for state, value in zip(self._states, self._now, strict=True)
            if state.input is not None
        }
        rest = iter(inputs)
        count = len(inputs) + len(given)
        results = self._reference.run([given[i] if i in given else next(rest) for i in range(count)])
        places = [state.output for state in self._states if state.output is not None]
        self.left = [np.asarray(results[place]) for place in places] if places else self._now
        return [value for index, value in enumerate(results) if index not in places]


class Following(Stepped):
    """A reference each of whose runs starts from the state that the run before has left."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs of the next run, as Stepped.run returns them."""
        found = super().run(inputs)
        self.keep(self.left)
        return found


def in_file_order(shapes: Sequence[Sequence[int]], states: Sequence[StateRecord]) -> list[Sequence[int]]:
    """Shapes of all inputs of the model's file; `shapes`: the shapes of the interface's inputs."""
    fed = {state.input: state.shape for state in states if state.input is not None}
    rest = iter(shapes)
    return [fed[index] if index in fed else next(rest) for index in range(len(shapes) + len(fed))]


def later_seed(seed: int, run: int) -> int:
    """The seed of the input set of a run that follows `run` others in a sequence."""
    return seed + _SEEDS * run


def of_run(spec: GoldenInput, run: int) -> GoldenInput:
    """The input set of a run that follows `run` others in a sequence: random values have another seed."""
    return spec.model_copy(update={"seed": later_seed(spec.seed, run)}) if isinstance(spec, DRAWN) else spec


def in_sequence(cases: Sequence[GoldenCase], runs: int) -> list[GoldenCase]:
    """Each test case as `runs` consecutive runs; runs after the first have other inputs."""
    found = []
    for case in cases:
        found.append(case)
        for run in range(1, runs):
            found.append(
                replace(case, name=f"{case.name}_run{run + 1}", spec=of_run(case.spec, run), run=run)
            )
    return found
