"""The test cases of a model, one for each golden vector: sizes, input set, and masks that end in zeros.

Every bucket is tested at its sample sizes (`kiln.golden.sample_sizes`), with the input sets that can be drawn
in any shape in turn, so that the number of vectors depends on the buckets alone. A photograph or a tensor
from a file has sizes of its own, and is one more vector. A model with mask inputs has one vector in each
bucket whose masks end in zeros, as for sequences that the caller has padded; and each special case has one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kiln.arrays import Array
from kiln.config.boxes import Box
from kiln.config.data import GoldenInput, Preprocess, RandomInput
from kiln.config.interface import Dimension, Interface, PortRecord
from kiln.config.special import SpecialCase
from kiln.errors import KilnError
from kiln.golden import inputs as input_sets
from kiln.golden.sample_sizes import Sizes, name_of, sample_sizes, serving_bucket

# For a special case: the most sizes of one dimension that are tested, and their greatest distance in steps.
_MOST_SIZES, _FARTHEST = 100, 1 << 14


@dataclass(frozen=True)
class GoldenCase:
    """One test case, from which a golden vector is made.

    `spec`: the input set. `bucket`: index of the bucket that serves `sizes`. `shortened`: masks end in zeros.
    `case`: the entry of special_cases that is tested. `run`: for a model with state, how many runs of the
    same sequence come before.
    """

    name: str
    spec: GoldenInput
    sizes: Sizes
    bucket: int
    shortened: bool = False
    case: SpecialCase | None = None
    run: int = 0


def golden_cases(
    specs: Sequence[GoldenInput],
    buckets: Sequence[Box],
    interface: Interface,
    masks: Collection[str],
    preprocess: Preprocess | None,
    cases: Sequence[SpecialCase] = (),
) -> list[GoldenCase]:
    """The test cases of a model with `buckets`. Raises KilnError for an input set that no bucket serves."""
    pairs = list(zip(specs, input_sets.set_names(specs), strict=True))
    if len(buckets) == 1 and not buckets[0].dims:
        return _with_special_cases(
            [GoldenCase(stem, spec, {}, 0) for spec, stem in pairs], buckets, masks, cases
        )
    fixed = [pair for pair in pairs if not isinstance(pair[0], input_sets.DRAWN)]
    drawn = [pair for pair in pairs if pair not in fixed]
    if not drawn:
        drawn = [(RandomInput(kind="random", seed=1), "random_1")]
    samples = [(index, sizes) for index in range(len(buckets)) for sizes in sample_sizes(buckets, index)]
    if not samples:
        raise KilnError("buckets.json: no size reaches a bucket")
    tests: list[GoldenCase] = []
    for number in range(max(len(samples), len(drawn))):
        index, sizes = samples[number % len(samples)]
        spec, stem = drawn[number % len(drawn)]
        tests.append(_case_at(stem, spec, sizes, index))
    for spec, stem in fixed:
        sizes = fixed_sizes(spec, interface, preprocess)
        reached = serving_bucket(buckets, sizes)
        if reached is None:
            raise KilnError(f"golden.inputs: {stem} has {name_of(sizes)}, which no bucket serves")
        tests.append(_case_at(stem, spec, sizes, reached))
    if masks:
        tests = _with_shortened_masks(tests, len(buckets))
    return _with_special_cases(tests, buckets, masks, cases)


def _case_at(stem: str, spec: GoldenInput, sizes: Sizes, index: int) -> GoldenCase:
    return GoldenCase("_".join(word for word in (name_of(sizes), stem) if word), spec, sizes, index)


def _with_shortened_masks(tests: Sequence[GoldenCase], buckets: int) -> list[GoldenCase]:
    """Replace each bucket's middle test case by one whose masks end in zeros; keep a bucket's only case."""
    masked = {}
    for index in range(buckets):
        in_bucket = [test for test in tests if test.bucket == index]
        if in_bucket:
            masked[in_bucket[(len(in_bucket) - 1) // 2].name] = len(in_bucket) == 1
    result = []
    for test in tests:
        if test.name not in masked or masked[test.name]:
            result.append(test)
        if test.name in masked:
            result.append(GoldenCase(f"{test.name}_masked", test.spec, test.sizes, test.bucket, True))
    return result


def _with_special_cases(
    tests: list[GoldenCase], buckets: Sequence[Box], masks: Collection[str], cases: Sequence[SpecialCase]
) -> list[GoldenCase]:
    """Add a test case for each bucket and special case, except masks of ones, which other cases have."""
    added = []
    for index in range(len(buckets)):
        in_bucket = [test for test in tests if test.bucket == index]
        for number, case in enumerate(cases, start=1):
            if not in_bucket or _is_tested(case, masks):
                continue
            base = in_bucket[len(in_bucket) // 2]
            sizes = _sizes_meeting(case, buckets, index, base.sizes)
            if sizes != base.sizes:  # a photograph or a tensor from a file has fixed sizes
                base = next((test for test in in_bucket if isinstance(test.spec, input_sets.DRAWN)), base)
            if sizes is None or (sizes != base.sizes and not isinstance(base.spec, input_sets.DRAWN)):
                continue
            stem = base.name.removesuffix("_masked").removeprefix(name_of(base.sizes)).removeprefix("_")
            name = "_".join(word for word in (name_of(sizes), stem, f"case{number}") if word)
            added.append(replace(base, name=name, sizes=sizes, shortened=False, case=case))
    return tests + added


def _is_tested(case: SpecialCase, masks: Collection[str]) -> bool:
    """Whether the special case is a mask of ones, as every test case that is not shortened has."""
    conditions = case.conditions
    return len(conditions) == 1 and conditions[0].input in masks and conditions[0].value == "ones"


def _sizes_meeting(case: SpecialCase, buckets: Sequence[Box], index: int, preferred: Sizes) -> Sizes | None:
    """Sizes of bucket `index` that meet a special case, the nearest to `preferred`; None if none does."""
    segments = buckets[index].dims
    if not segments:
        return dict(preferred)

    def meeting(name: str) -> list[int]:
        """Sizes of dimension `name` that meet the case, the nearest to that of `preferred` first."""
        segment = segments[name]
        conditions = [condition for condition in case.conditions if condition.dim == name]
        edges = [ends for condition in conditions if (ends := condition.ends)]
        low = max([segment.min, *(least for least, _ in edges)])
        high = min([segment.max, *(greatest for _, greatest in edges)])
        first = min(max(preferred[name], low), high) // segment.multiple * segment.multiple
        candidates = (first + sign * step * segment.multiple for step in range(_FARTHEST) for sign in (1, -1))
        meeting_sizes = (
            size
            for size in candidates
            if low <= size <= high and all(condition.holds(size) for condition in conditions)
        )
        return list(dict.fromkeys(itertools.islice(meeting_sizes, _MOST_SIZES)))

    names = [
        name for name in dict.fromkeys(condition.dim for condition in case.conditions) if name in segments
    ]
    for sizes_of_names in itertools.product(*(meeting(name) for name in names)):
        candidate = {**preferred, **dict(zip(names, sizes_of_names, strict=True))}
        if serving_bucket(buckets, candidate) == index:  # an earlier bucket may serve these sizes
            return candidate
    return None


def fixed_sizes(spec: GoldenInput, interface: Interface, preprocess: Preprocess | None) -> Sizes:
    """Sizes of all dimensions for a photograph or tensors from files; other dimensions are at their least.

    Raises KilnError where two axes disagree, or a size is out of range.
    """
    sizes: Sizes = {}
    by_name = {port.name: port for port in interface.inputs}
    for name, shape in input_sets.fixed_shapes(spec, interface.inputs, preprocess).items():
        match_sizes(by_name[name], shape, sizes)
    for dim in interface.dims:
        size = sizes.setdefault(dim.name, dim.min)
        check_size(dim, size, f"golden.inputs: kind '{spec.kind}'")
    return sizes


def match_sizes(port: PortRecord, shape: Sequence[int], sizes: Sizes) -> None:
    """Add to `sizes` the dimensions of `port` that a tensor of `shape` determines.

    A shape of another rank, or another size of a static axis, is ignored: the caller compares shapes. Raises
    KilnError where two axes give one dimension different sizes.
    """
    if len(shape) != len(port.shape):
        return
    for axis, (name, size) in enumerate(zip(port.shape, shape, strict=True)):
        if isinstance(name, str) and sizes.setdefault(name, size) != size:
            raise KilnError(
                f"input '{port.name}' axis {axis}: {size}, but elsewhere '{name}' is {sizes[name]}"
            )


def check_size(dim: Dimension, size: int, source: str) -> None:
    """Raise KilnError unless `size` is one that the dimension allows."""
    if not dim.min <= size <= dim.max or size % dim.multiple:
        multiple = f", multiples of {dim.multiple}" if dim.multiple > 1 else ""
        raise KilnError(f"{source}: {dim.name} is {size}, allowed {dim.min}..{dim.max}{multiple}")


def shorten(tensor: Array, port: PortRecord, bucket: Box, sizes: Mapping[str, int]) -> Array:
    """The mask `tensor` with its last quarter zero, along the last padded axis or else the last dynamic axis.

    A mask without such an axis longer than 1 stays as it is.
    """
    dynamic = [
        (axis, size) for axis, size in enumerate(port.shape) if isinstance(size, str) and sizes[size] > 1
    ]
    padded = [pair for pair in dynamic if pair[1] in bucket.padded]
    if not dynamic:
        return tensor
    axis, name = (padded or dynamic)[-1]
    shortened: Array = tensor.copy()
    np.moveaxis(shortened, axis, 0)[-max(sizes[name] // 4, 1) :] = 0
    return shortened
