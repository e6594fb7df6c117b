"""Parameters in several regions of memory: the most read parameters go into the cheapest regions.

The parameters are one sequence of bytes whose parts follow one another; each part is an image of its own, in
the linker section of its region. The runtime reads the first values of the state, and the tensors that inputs
are compared with; these are in the first part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kiln.config import Target
from kiln.config.memory import Region, regions_of
from kiln.errors import KilnError
from kiln.plan.lifetimes import aligned
from kiln.plan.schema import (
    InputContent,
    MemoryArgument,
    ParameterBytes,
    PlacedRegion,
    PlacedState,
    PlannedBucket,
    PlannedCondition,
    PlannedStep,
    StoredTensor,
)

_HEADER = 128  # bytes of an image before its parameters


@dataclass(frozen=True)
class ParameterImage:
    """The parameters of model `model` as bytes, and where they are: `storage` and `section` of its file."""

    model: str
    content: bytes
    tensors: Sequence[StoredTensor]
    storage: str
    section: str


def split_parameters(
    parameters: ParameterImage, buckets: list[PlannedBucket], states: list[PlacedState], target: Target
) -> tuple[bytes, list[StoredTensor], list[PlacedRegion]]:
    """The parameters in the order of their parts, their locations, and the parts.

    Changes `buckets` and `states`. With one region for parameters, nothing changes and there are no parts.
    Raises KilnError for parameters in a file, and for regions that are too small.
    """
    regions = regions_of(target.memory, "parameters")
    payload, stored = parameters.content, parameters.tensors
    if len(regions) < 2 or not payload:
        return payload, list(stored), []
    if parameters.storage == "file":
        raise KilnError(
            f"memory: target '{target.name}' has {len(regions)} regions that hold parameters, which a file "
            "cannot be split over: params.storage must be embedded or section"
        )
    held = _fill(stored, _reads(buckets), _pinned(buckets, states), regions)
    moved: dict[int, int] = {}
    content, tensors, parts = bytearray(), [], []
    for region, items in zip(regions, held, strict=True):
        begin = len(content)
        for tensor in sorted(items, key=lambda tensor: tensor.offset):
            moved[tensor.offset] = len(content)
            tensors.append(tensor.model_copy(update={"offset": len(content)}))
            content += payload[tensor.offset : tensor.offset + tensor.bytes]
            content += bytes(aligned(len(content)) - len(content))
        size, section = len(content) - begin, region.section or _section_of(parameters, region)
        parts.append(PlacedRegion(name=region.name, bytes=size, section=section))
    buckets[:] = moved_buckets(buckets, moved)
    states[:] = moved_states(states, moved)
    return bytes(content), tensors, parts


def _section_of(parameters: ParameterImage, region: Region) -> str:
    """The linker section of the part in a `region` that does not name a section."""
    if parameters.storage == "section":
        return f"{parameters.section}_{region.name}"
    return f".rodata.{parameters.model}_params_{region.name}"


def moved_buckets(buckets: Sequence[PlannedBucket], moved: Mapping[int, int]) -> list[PlannedBucket]:
    """The buckets, with parameters at other offsets; `moved`: new offsets by the old ones."""
    moved_list = []
    for bucket in buckets:
        steps = [_moved(step, moved) for step in bucket.steps]
        when = bucket.when
        if when is not None:
            when = when.model_copy(
                update={"all": [_moved_condition(part_condition, moved) for part_condition in when.all]}
            )
        moved_list.append(bucket.model_copy(update={"steps": steps, "when": when}))
    return moved_list


def moved_states(states: Sequence[PlacedState], moved: Mapping[int, int]) -> list[PlacedState]:
    """The values of the state, with first values at other offsets of the parameters."""
    return [
        state if state.initial is None else state.model_copy(update={"initial": moved[state.initial]})
        for state in states
    ]


def _moved_condition(condition: PlannedCondition, moved: Mapping[int, int]) -> PlannedCondition:
    if not isinstance(condition, InputContent) or not isinstance(condition.value, ParameterBytes):
        return condition
    value = condition.value.model_copy(update={"offset": moved[condition.value.offset]})
    return condition.model_copy(update={"value": value})


def _moved(step: PlannedStep, moved: Mapping[int, int]) -> PlannedStep:
    def place(args: Sequence[object]) -> list[object]:
        return [
            arg.model_copy(update={"offset": moved[arg.offset]})
            if isinstance(arg, MemoryArgument) and arg.at == "params"
            else arg
            for arg in args
        ]

    calls = {name: call.model_copy(update={"args": place(call.args)}) for name, call in step.variants.items()}
    return step.model_copy(update={"args": place(step.args), "variants": calls})


def _reads(buckets: Sequence[PlannedBucket]) -> dict[int, int]:
    """By offset of a parameter, the bytes that all steps read of it.

    A step reads its size, or as many bytes as the step has multiply-adds if these are more.
    """
    reads: dict[int, int] = {}
    for bucket in buckets:
        for step in bucket.steps:
            for arg in step.args:
                if isinstance(arg, MemoryArgument) and arg.at == "params":
                    reads[arg.offset] = reads.get(arg.offset, 0) + max(arg.bytes, step.macs or 0)
    return reads


def _pinned(buckets: Sequence[PlannedBucket], states: Sequence[PlacedState]) -> set[int]:
    """Offsets of the parameters that the runtime reads."""
    offsets = {state.initial for state in states if state.initial is not None}
    for bucket in buckets:
        for condition in bucket.when.all if bucket.when is not None else ():
            if isinstance(condition, InputContent) and isinstance(condition.value, ParameterBytes):
                offsets.add(condition.value.offset)
    return offsets


def _fill(
    stored: Sequence[StoredTensor], reads: dict[int, int], pinned: set[int], regions: Sequence[Region]
) -> list[list[StoredTensor]]:
    """The parameters of each region. Raises KilnError where the regions are too small."""
    held: list[list[StoredTensor]] = [[] for _ in regions]
    free = [region.room - _HEADER for region in regions]
    bytes_left = 0
    for tensor in sorted(
        stored,
        key=lambda tensor: (
            tensor.offset not in pinned,
            -reads.get(tensor.offset, 0) / max(1, tensor.bytes),
            tensor.offset,
        ),
    ):
        size = aligned(tensor.bytes)
        allowed = range(1 if tensor.offset in pinned else len(regions))
        index = next((index for index in allowed if free[index] >= size), None)
        if index is None:
            bytes_left += size
            continue
        held[index].append(tensor)
        free[index] -= size
    if bytes_left:
        shown = ", ".join(f"{region.name} {region.room}" for region in regions)
        raise KilnError(
            f"memory: {bytes_left} of {sum(aligned(tensor.bytes) for tensor in stored)} bytes of parameters "
            f"do not fit into the target's regions that hold them ({shown} bytes): add or enlarge a region"
        )
    return held
