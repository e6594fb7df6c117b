"""Values that a run leaves for the next one: their places in the session's state.

A function reads the value of the run before from an input, and writes the value of the next run at its end,
by a copy. The copy is left out where the step that makes the new value may write it to the state directly:
where no step reads the old value later, or only that step itself, element by element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kiln.config.interface import StateRecord
from kiln.lower.schema import LoweredFunction, Step, TensorRecord
from kiln.params.states import initial_value
from kiln.plan.lifetimes import aligned, root_of
from kiln.plan.params import ParameterStore
from kiln.plan.schema import PlacedState
from kiln.plan.transforms import Origin

_INITIAL = Origin("initial value of the state")


def place_states(states: Sequence[StateRecord], parameters: ParameterStore) -> tuple[list[PlacedState], int]:
    """The place of each value in the session's state, and the bytes of the state.

    First values that are not zeros are stored as parameters.
    """
    placed, size = [], 0
    for state in states:
        value = initial_value(state)
        initial = parameters.add(state.name, value, _INITIAL) if any(value.tobytes()) else None
        placed.append(
            PlacedState(
                name=state.name, dtype=state.dtype, shape=state.shape, offset=size, bytes=value.nbytes,
                initial=initial,
            )
        )  # fmt: skip
        size += aligned(value.nbytes)
    return placed, size


@dataclass(frozen=True)
class Kept:
    """A value of the state in a function: names of the tensors that are read and written, and its place.

    `copy`: the step that writes the new value; `made`: the tensor that it copies; None: it copies none, or
    one whose memory is not its own.
    """

    before: str
    after: str
    place: PlacedState
    copy: Step | None
    made: str | None


def kept_values(
    lowered: LoweredFunction, tensors: Mapping[str, TensorRecord], placed_states: Sequence[PlacedState],
    elsewhere: set[str],
) -> list[Kept]:  # fmt: skip
    """The values of the state that the last inputs and outputs of `lowered` hold.

    `elsewhere`: tensors that are not in the arena: inputs, outputs and parameters.
    """
    count = len(placed_states)
    kept: list[Kept] = []
    ends = zip(lowered.inputs[-count:], lowered.outputs[-count:], placed_states, strict=True) if count else ()
    for before, after, placed_state in ends:
        copy = next((step for step in lowered.steps if after in step.writes), None)
        read = [name for name in copy.tensors if name not in copy.writes] if copy is not None else []
        source = root_of(tensors, read[0]) if len(read) == 1 else None
        alone = source is not None and tensors[source].kind == "activation" and source not in elsewhere
        if (
            not alone
            or tensors[source or after].bytes != placed_state.bytes
            or any(source == other.made for other in kept)
        ):
            source = None
        kept.append(Kept(root_of(tensors, before), root_of(tensors, after), placed_state, copy, source))
    return kept


def fits_in_place(state: Kept, tensors: Mapping[str, TensorRecord], steps: Sequence[Step]) -> bool:
    """Whether the steps, in this order, may make the new value where the old one is."""
    if state.made is None:
        return False
    first = next(index for index, step in enumerate(steps) if state.made in _written(tensors, step))
    for index, step in enumerate(steps):
        reads = [root_of(tensors, name) for name in step.tensors].count(state.before)
        if reads and (index > first or (index == first and not _element_wise(state, tensors, step, reads))):
            return False
    return True


def copies_in_place(state: Kept, tensors: Mapping[str, TensorRecord], step: Step) -> bool:
    """Whether `step` copies the old value to the new one, which `fits_in_place`: the memory is the same."""
    ends = step.tensors[:2]
    whole = all(tensors[name].bytes == state.place.bytes for name in ends)
    roots = [root_of(tensors, name) for name in ends]
    return bool(step.copies) and whole and roots == [state.before, state.made]


def _element_wise(state: Kept, tensors: Mapping[str, TensorRecord], step: Step, reads: int) -> bool:
    """Whether `step`, which makes the new value, may overwrite the old one that it reads."""
    operands = {root_of(tensors, name) for name in step.in_place}
    return reads == 1 and state.before in operands and _written(tensors, step) == {state.made}


def _written(tensors: Mapping[str, TensorRecord], step: Step) -> set[str]:
    return {root_of(tensors, name) for name in step.writes}
