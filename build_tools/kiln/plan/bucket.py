"""The plan of one function: the order of steps and the offset of every tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from kiln.config.memory import Region
from kiln.lower.schema import LoweredCase, SizeArgument, Step, TensorRecord
from kiln.plan.copies_in_place import without_copies_in_place
from kiln.plan.lifetimes import Lifetime, lifetimes, lower_bound, root_of
from kiln.plan.loops import has_control, without_invariants
from kiln.plan.order import reorder
from kiln.plan.params import ParameterStore
from kiln.plan.place import place
from kiln.plan.regions import place_in_regions, uses
from kiln.plan.schema import (
    ExpressionArgument,
    MemoryArgument,
    PlacedState,
    PlacedTensor,
    PlannedCall,
    PlannedStep,
    PortArgument,
    StepArgument,
)
from kiln.plan.states import Kept, copies_in_place, fits_in_place, kept_values
from kiln.plan.transforms import origin


@dataclass(frozen=True)
class PlannedFunction:
    """Arena, steps and tensors of a lowered function; bytes at the greatest sizes of its bucket."""

    arena_bytes: list[int]  # of each region
    lower_bound_bytes: int
    steps: list[PlannedStep]
    tensors: list[PlacedTensor]


def plan_function(
    lowered: LoweredCase, values: Mapping[str, npt.NDArray[Any]], parameters: ParameterStore,
    states: Sequence[PlacedState] = (), regions: Sequence[Region] = (),
) -> PlannedFunction:  # fmt: skip
    """Plan one lowered function; add its parameters, whose content is in `values`, to `parameters`.

    `states`: locations of the state that the last inputs and the last outputs are. `regions`: the regions of
    memory for the arena, cheapest first; empty: one arena of any size. Raises KilnError if they are full.
    """
    tensors = {tensor.name: tensor for tensor in lowered.tensors}
    # A tensor that an input is compared with is a parameter, but not an argument of any step.
    read = [name for name in values if name in tensors]
    placed = {root_of(tensors, name) for name in [*lowered.inputs, *lowered.outputs, *read]}
    kept_states = kept_values(lowered, tensors, states, placed)
    steps = _ordered(lowered, tensors, placed, kept_states)
    run = {id(step) for step in steps}
    in_place = [state for state in kept_states if id(state.copy) not in run]
    steps = [step for step in steps if not any(copies_in_place(state, tensors, step) for state in in_place)]
    placed |= {state.made for state in in_place if state.made is not None}
    parameter_offsets = parameters.place(tensors, steps, values, lambda name: origin(lowered, name))
    steps, alive = without_copies_in_place(tensors, steps, lifetimes(tensors, steps, placed))
    if regions:
        locations, arenas = place_in_regions(alive, uses(tensors, steps), regions)
    else:
        offsets, arena = place(alive) if alive else ({}, 0)
        locations, arenas = {name: (0, offset) for name, offset in offsets.items()}, [arena]
    locations |= {heir: locations[item.name] for item in alive for heir in item.shared}

    inputs = {root_of(tensors, name): index for index, name in enumerate(lowered.inputs)}
    outputs = {root_of(tensors, name): index for index, name in enumerate(lowered.outputs)}
    in_state = {name: state.place for state in kept_states for name in (state.before, state.after)}
    in_state |= {state.made: state.place for state in in_place if state.made is not None}

    def where(argument: str | SizeArgument) -> StepArgument:
        """A step's argument in the plan: a tensor's place in memory, or a size's expression."""
        if isinstance(argument, SizeArgument):
            return ExpressionArgument(at="dim", expr=argument.dim)
        root = root_of(tensors, argument)
        size, shape = tensors[root].bytes, tensors[argument].shape
        if root in in_state:
            return MemoryArgument(at="state", offset=in_state[root].offset, bytes=size, shape=shape)
        if root in inputs:
            return PortArgument(at="input", index=inputs[root], bytes=size, shape=shape)
        if root in outputs:
            return PortArgument(at="output", index=outputs[root], bytes=size, shape=shape)
        if root in parameter_offsets:
            return MemoryArgument(at="params", offset=parameter_offsets[root], bytes=size, shape=shape)
        region, offset = locations[root]
        return MemoryArgument(at="arena", offset=offset, bytes=size, shape=shape, region=region)

    return PlannedFunction(
        arenas,
        lower_bound(alive, len(steps)),
        [_planned(step, where) for step in steps],
        [
            _placed(item, locations[item.name], tensors[item.name].bytes)
            for item in sorted(alive, key=lambda item: (item.first, item.name))
        ],
    )


def _ordered(
    lowered: LoweredCase, tensors: Mapping[str, TensorRecord], placed: set[str], kept_states: Sequence[Kept]
) -> list[Step]:
    """The steps in the order in which they run, without the copies to the state that are not needed."""
    copies = {id(state.copy) for state in kept_states}
    computed = [step for step in lowered.steps if id(step) not in copies]
    replaced = {state.made: state.before for state in kept_states if state.made is not None}
    if has_control(computed):
        steps = without_invariants(tensors, computed)
    else:
        steps = reorder(tensors, computed, placed, replaced)
    return steps + [
        state.copy
        for state in kept_states
        if state.copy is not None and not fits_in_place(state, tensors, steps)
    ]


def _planned(step: Step, where: Callable[[str | SizeArgument], StepArgument]) -> PlannedStep:
    return PlannedStep(
        kernel=step.kernel,
        extent=step.extent,
        args=[where(argument) for argument in step.args],
        variants={
            name: PlannedCall(
                kernel=call.kernel, extent=call.extent, args=[where(argument) for argument in call.args]
            )
            for name, call in step.variants.items()
        },
        label=step.label,
        attrs=step.attrs,
        macs=step.macs,
        launch=step.launch,
        check=step.check,
        counts=step.counts,
        loop=step.loop,
        branch=step.branch,
        arithmetic=step.arithmetic,
    )


def _placed(item: Lifetime, location: tuple[int, int], size: int) -> PlacedTensor:
    return PlacedTensor(
        name=item.name,
        offset=location[1],
        bytes=size,
        first=item.first,
        last=item.last,
        kind=item.kind,
        shared=list(item.shared),
        region=location[0],
    )
