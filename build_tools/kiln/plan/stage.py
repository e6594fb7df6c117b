"""plan: stage that finds order of steps, arena offsets and layout of parameters of every bucket."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kiln.config import Target, read_target, sizes
from kiln.config.boxes import STATIC_BOX, Box, BoxList
from kiln.config.interface import CountedDimension, Interface, PortRecord
from kiln.config.library_choices import LibraryChoices
from kiln.config.memory import Region, regions_of
from kiln.config.records import read
from kiln.config.slice_records import PlanConfig
from kiln.files import atomic_dir, atomic_write, write_json
from kiln.lower.schema import (
    ConstantName,
    InputEquals,
    KernelRecord,
    LoweredBucket,
    LoweredCondition,
)
from kiln.params import tensors
from kiln.plan.bucket import plan_function
from kiln.plan.effects import check_effects, check_libraries
from kiln.plan.params import ParameterStore
from kiln.plan.regions import placed_regions
from kiln.plan.schema import (
    AcceptedSizes,
    CpuVariants,
    InputContent,
    ParameterBytes,
    Parameters,
    PlacedState,
    Plan,
    PlannedBucket,
    PlannedCase,
    PlannedCondition,
    PlannedPort,
)
from kiln.plan.split import ParameterImage, split_parameters
from kiln.plan.states import place_states
from kiln.plan.transforms import Origin, transforms
from kiln.plan.variants import distinct, symbols_of
from kiln.stages.target import PlanStage

Values = Mapping[str, npt.NDArray[Any]]


# Origin of a constant that an input is compared with.
_COMPARED = Origin("for a special case")


@dataclass(frozen=True)
class LowerResult:
    """Result of the lower stage for one bucket: content of steps.json, parameters of all special cases."""

    bucket: LoweredBucket
    values: Values


def run(args: PlanStage) -> None:
    """Read the results of the lower stage; write plan.json and params.raw into the folder args.out."""
    config = read(PlanConfig, args.config)
    target = read_target(args.target)
    buckets = read(BoxList, args.buckets).buckets if args.buckets else [STATIC_BOX]
    lowered = [
        LowerResult(
            read(LoweredBucket, folder / "steps.json"),
            tensors.load(folder / "params.safetensors"),
        )
        for folder in args.sources
    ]
    check_effects(config, target, [result.bucket for result in lowered])
    if args.byoc:
        check_libraries(
            config.name, target.name, read(LibraryChoices, args.byoc), [result.bucket for result in lowered]
        )
    plan, payload = make_plan(lowered, buckets, read(Interface, args.interface), config, target)
    hashed = plan.model_dump(exclude={"model_hash", "untuned"})
    digest = hashlib.sha256(json.dumps(hashed, sort_keys=True).encode() + b"\0")
    for folder in args.sources:
        digest.update((folder / "functions.json").read_bytes() + b"\0")
    digest.update(payload)
    plan = plan.model_copy(update={"model_hash": digest.hexdigest()})
    with atomic_dir(args.out) as folder:
        write_json(folder / "plan.json", plan.model_dump())
        atomic_write(folder / "params.raw", payload)


def make_plan(
    lowered: Sequence[LowerResult],
    buckets: Sequence[Box],
    interface: Interface,
    config: PlanConfig,
    target: Target,
) -> tuple[Plan, bytes]:
    """The plan, without its `model_hash`, and the bytes of the parameters.

    `lowered`: one result of the lower stage for each, in order.
    """
    parameters = ParameterStore()
    states, state_bytes = place_states(interface.states, parameters)
    planned: list[PlannedBucket] = []
    arenas = regions_of(target.memory, "arena")
    for bucket, bucket_functions in zip(buckets, lowered, strict=True):
        planned += _cases(bucket, bucket_functions, parameters, len(planned), states, arenas)
    storage, section = config.params.storage or target.params_storage, config.params.section
    dims = {dim.name: (dim.min, dim.max) for dim in interface.dims}
    for counted in interface.counted:  # a bound may be a size that is counted before
        dims[counted.name] = 0, sizes.bounds(counted.bound, dims)[1]
    image = ParameterImage(config.name, parameters.content(), parameters.stored, storage, section)
    payload, stored, parts = split_parameters(image, planned, states, target)
    planned, variants = distinct(planned, lowered[0].bucket.variants)
    plan = Plan(
        format=2,
        name=config.name,
        target=target.name,
        threads=lowered[0].bucket.threads,
        cpu=CpuVariants(arch=target.arch, variants=variants),
        inputs=[_with_bytes(port, dims) for port in interface.inputs],
        outputs=[_with_bytes(port, dims) for port in interface.outputs],
        dims=interface.dims,
        counted=_counted(interface.counted, planned),
        states=states,
        state_bytes=state_bytes,
        params=Parameters(
            bytes=len(payload),
            storage=storage,
            section=section if storage == "section" else None,
            tensors=stored,
            lifted=transforms(
                [c for lowered_bucket in lowered for c in lowered_bucket.bucket.cases], parameters.stored
            ),
            parts=parts,
        ),
        kernels=_kernels(lowered, symbols_of(planned)),
        buckets=planned,
        cuda=target.cuda,
        untuned=sorted({key for lowered_bucket in lowered for key in lowered_bucket.bucket.untuned or ()})
        or None,
        regions=placed_regions(planned, arenas),
        model_hash="0" * 64,
    )
    return plan, payload


def _cases(
    bucket: Box, lowered: LowerResult, parameters: ParameterStore, first: int,
    states: Sequence[PlacedState], arenas: Sequence[Region],
) -> list[PlannedBucket]:  # fmt: skip
    """Plans of the functions of one bucket: the general function, then one for each special case.

    `first`: index of the general function in the plan's buckets. `states`, `arenas`: see `plan_function`.
    """
    strategies = {segment.strategy for segment in bucket.dims.values()}
    strategy = next((s for s in ("dynamic", "range", "pad") if s in strategies), "exact")
    dims = {
        name: AcceptedSizes(min=segment.min, max=segment.max, multiple=segment.multiple)
        for name, segment in bucket.dims.items()
    }
    planned = []
    for case in lowered.bucket.cases:
        values = {
            name.removeprefix(case.params): value
            for name, value in lowered.values.items()
            if name.startswith(case.params)
        }
        when = None
        if case.when is not None:
            conditions = [_condition(part_condition, values, parameters) for part_condition in case.when.all]
            when = PlannedCase(bucket=first, all=conditions)
        function = plan_function(case, values, parameters, states, arenas)
        planned.append(
            PlannedBucket(
                name=bucket.name + (f"_{case.name}" if case.name else ""),
                strategy=strategy,
                dims=dims,
                when=when,
                arena_bytes=function.arena_bytes[0],
                more_arenas=function.arena_bytes[1:],
                lower_bound_bytes=function.lower_bound_bytes,
                steps=function.steps,
                tensors=function.tensors,
                patches=case.patches,
            )
        )
    # Which function runs is known only when the data is: the arena must be large enough for each.
    greatest = max(entry.arena_bytes for entry in planned)
    return [planned[0].model_copy(update={"arena_bytes": greatest}), *planned[1:]]


def _counted(
    declared: Sequence[CountedDimension], planned: Sequence[PlannedBucket]
) -> list[CountedDimension]:
    """The counted sizes that a step or a bound still uses: their operators may have become dead code."""
    steps = [step for bucket in planned for step in bucket.steps]
    used = {step.counts.dim for step in steps if step.counts is not None}
    for counted_dim in reversed(declared):
        if counted_dim.name in used:
            used |= sizes.names(counted_dim.bound)
    return [counted_dim for counted_dim in declared if counted_dim.name in used]


def _condition(condition: LoweredCondition, values: Values, parameters: ParameterStore) -> PlannedCondition:
    """A condition of a special case, with the offset of the constant that an input is compared with."""
    if not isinstance(condition, InputEquals):
        return condition
    value = condition.value
    if not isinstance(value, ConstantName):
        return InputContent(input=condition.input, value=value)
    constant = values[value.param]
    offset = parameters.add(value.param, constant, _COMPARED)
    compared = ParameterBytes(offset=offset, bytes=constant.nbytes)
    return InputContent(input=condition.input, value=compared)


def _kernels(lowered: Sequence[LowerResult], called: set[str]) -> list[KernelRecord]:
    """The kernels that steps call, `called`, each once: equal kernels have the same symbol."""
    by_symbol: dict[str, KernelRecord] = {}
    for result in lowered:
        for case in result.bucket.cases:
            for kernel in case.kernels:
                if kernel.symbol in called:
                    by_symbol.setdefault(kernel.symbol, kernel)
    return list(by_symbol.values())


def _with_bytes(port: PortRecord, dims: Mapping[str, tuple[int, int]]) -> PlannedPort:
    """`port` with the greatest size of its tensor as `bytes`; `dims`: range of each dynamic dimension."""
    dtype = "uint8" if port.dtype == "bool" else port.dtype
    elements = 1
    for size in port.shape:
        elements *= sizes.bounds(size, dims)[1]
    return PlannedPort(**port.model_dump(), bytes=elements * np.dtype(dtype).itemsize)
