"""Which vectors are made: which sizes, which input set, and whether the mask ends in zeros.

Every bucket is tried at its points (`kiln.golden.points`), and the input sets that can be drawn in any shape
take turns, so that the number of vectors grows with the buckets alone. A photograph or a given tensor brings
its own sizes, and is one vector more. A model that masks has one vector in each bucket whose mask ends in
zeros, as a caller's own shorter sequences do; and each special content of an input has one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kiln.config import sizes
from kiln.config.special import conditions_of, holds
from kiln.errors import KilnError
from kiln.golden import inputs as input_sets
from kiln.golden.points import Bucket, Sizes, name_of, points, serving

Array = npt.NDArray[Any]
Entry = Mapping[str, Any]


# Sizes of one dimension that are tried for a special case, and how many steps away they may be.
_MOST_SIZES, _FARTHEST = 100, 1 << 14


@dataclass(frozen=True)
class Try:
    """One vector to be made: its name, the input set, the sizes, and the index of the bucket they reach.

    `shortened`: its masks end in zeros. `case`: the entry of special_cases that it is about.
    """

    name: str
    spec: Entry
    sizes: Sizes
    bucket: int
    shortened: bool = False
    case: Entry | None = None


def concrete(entries: Iterable[Entry], chosen: Mapping[str, int]) -> list[dict[str, Any]]:
    """Ports of interface.json with numbers for shapes."""
    return [{**e, "shape": [sizes.evaluate(size, chosen) for size in e["shape"]]} for e in entries]


def tries(
    specs: Sequence[Entry],
    buckets: Sequence[Bucket],
    interface: Mapping[str, Any],
    masks: Collection[str],
    preprocess: Entry | None,
    cases: Sequence[Entry] = (),
) -> list[Try]:
    """The vectors of a model with these buckets. Raises KilnError for a set whose sizes no bucket serves."""
    pairs = list(zip(specs, input_sets.set_names(specs), strict=True))
    if len(buckets) == 1 and not buckets[0]["dims"]:
        return _with_cases([Try(stem, spec, {}, 0) for spec, stem in pairs], buckets, masks, cases)
    fixed = [pair for pair in pairs if pair[0]["kind"] not in input_sets.DRAWN]
    drawn = [pair for pair in pairs if pair not in fixed]
    if not drawn:
        drawn = [(input_sets.DEFAULT_SETS[0], "random_1")]
    places = [(index, at) for index in range(len(buckets)) for at in points(buckets, index)]
    if not places:
        raise KilnError("buckets.json: no size reaches a bucket")
    found: list[Try] = []
    for number in range(max(len(places), len(drawn))):
        index, at = places[number % len(places)]
        spec, stem = drawn[number % len(drawn)]
        found.append(_try(stem, spec, at, index))
    for spec, stem in fixed:
        at = fixed_sizes(spec, interface, preprocess)
        reached = serving(buckets, at)
        if reached is None:
            raise KilnError(f"golden.inputs: {stem} has {name_of(at)}, and no bucket takes it")
        found.append(_try(stem, spec, at, reached))
    if masks:
        found = _with_short_masks(found, len(buckets))
    return _with_cases(found, buckets, masks, cases)


def _try(stem: str, spec: Entry, at: Sizes, index: int) -> Try:
    return Try("_".join(part for part in (name_of(at), stem) if part), spec, at, index)


def _with_short_masks(found: Sequence[Try], buckets: int) -> list[Try]:
    """In each bucket the middle vector with a mask that ends in zeros; one more where there is only one."""
    chosen = {}
    for index in range(buckets):
        own = [one for one in found if one.bucket == index]
        if own:
            chosen[own[(len(own) - 1) // 2].name] = len(own) == 1
    result = []
    for one in found:
        if one.name not in chosen or chosen[one.name]:
            result.append(one)
        if one.name in chosen:
            result.append(Try(f"{one.name}_masked", one.spec, one.sizes, one.bucket, True))
    return result


def _with_cases(
    found: list[Try], buckets: Sequence[Bucket], masks: Collection[str], cases: Sequence[Entry]
) -> list[Try]:
    """In each bucket one vector more for every special case; masks of ones have theirs already."""
    more = []
    for index in range(len(buckets)):
        own = [one for one in found if one.bucket == index]
        for number, case in enumerate(cases, start=1):
            if not own or _is_tried(case, masks):
                continue
            base = own[len(own) // 2]
            at = _sizes_of(case, buckets, index, base.sizes)
            if at != base.sizes:  # a photograph, or a given tensor, has its own
                base = next((one for one in own if one.spec["kind"] in input_sets.DRAWN), base)
            if at is None or (at != base.sizes and base.spec["kind"] not in input_sets.DRAWN):
                continue
            stem = base.name.removesuffix("_masked").removeprefix(name_of(base.sizes)).removeprefix("_")
            name = "_".join(part for part in (name_of(at), stem, f"case{number}") if part)
            more.append(replace(base, name=name, sizes=at, shortened=False, case=case))
    return found + more


def _is_tried(case: Entry, masks: Collection[str]) -> bool:
    conditions = conditions_of(case)
    return len(conditions) == 1 and case.get("input") in masks and case.get("value") == "ones"


def _sizes_of(case: Entry, buckets: Sequence[Bucket], index: int, at: Sizes) -> Sizes | None:
    """Sizes of bucket `index` that meet a special case, those of `at` where they do; None: there are none."""
    parts = buckets[index]["dims"]
    if not parts:
        return dict(at)

    def meeting(name: str) -> list[int]:
        """Sizes that meet the case, from the nearest to that of `at` on: it is one that the bucket serves."""
        part = parts[name]
        wanted = [one for one in conditions_of(case) if one.get("dim") == name]
        edges = [one["range"] if one.get("range") else [one["exact"]] * 2 for one in wanted if _edges(one)]
        low = max([part["min"], *(least for least, _ in edges)])
        high = min([part["max"], *(greatest for _, greatest in edges)])
        first = min(max(at[name], low), high) // part["multiple"] * part["multiple"]
        around = (first + sign * step * part["multiple"] for step in range(_FARTHEST) for sign in (1, -1))
        met = (size for size in around if low <= size <= high and all(holds(one, size) for one in wanted))
        return list(dict.fromkeys(itertools.islice(met, _MOST_SIZES)))

    names = list(dict.fromkeys(one["dim"] for one in conditions_of(case) if one.get("dim") in parts))
    for sizes_of_names in itertools.product(*(meeting(name) for name in names)):
        found = {**at, **dict(zip(names, sizes_of_names, strict=True))}
        if serving(buckets, found) == index:  # others may come first
            return found
    return None


def _edges(condition: Entry) -> bool:
    return condition.get("range") is not None or condition.get("exact") is not None


def fixed_sizes(spec: Entry, interface: Mapping[str, Any], preprocess: Entry | None) -> Sizes:
    """The dimensions that a photograph or a given tensor decides; the others are at their least.

    Raises KilnError where two axes disagree, or a size is out of range.
    """
    found: Sizes = {}
    by_name = {entry["name"]: entry for entry in interface["inputs"]}
    for name, shape in input_sets.fixed_shapes(spec, interface["inputs"], preprocess).items():
        match_sizes(by_name[name], shape, found)
    for dim in interface.get("dims", []):
        size = found.setdefault(dim["name"], dim["min"])
        check_size(dim, size, f"golden.inputs: kind '{spec['kind']}'")
    return found


def match_sizes(entry: Entry, shape: Sequence[int], found: Sizes) -> None:
    """Read into `found` the dimensions that the port `entry` has where a tensor has `shape`.

    Axes that do not fit are left alone: whoever compares the shapes tells of them.
    """
    if len(shape) != len(entry["shape"]):
        return
    for axis, (want, size) in enumerate(zip(entry["shape"], shape, strict=True)):
        if isinstance(want, str) and found.setdefault(want, size) != size:
            raise KilnError(
                f"input '{entry['name']}' axis {axis}: {size}, but elsewhere '{want}' is {found[want]}"
            )


def check_size(dim: Entry, size: int, what: str) -> None:
    """Raise KilnError unless `size` is one that the dimension allows."""
    if not dim["min"] <= size <= dim["max"] or size % dim["multiple"]:
        multiple = f", multiples of {dim['multiple']}" if dim["multiple"] > 1 else ""
        raise KilnError(f"{what}: {dim['name']} is {size}, allowed {dim['min']}..{dim['max']}{multiple}")


def shorten(tensor: Array, entry: Entry, bucket: Bucket, at: Mapping[str, int]) -> Array:
    """The mask `tensor` with its last quarter zero, along the padded axis or else the last one that may move.

    A mask without such an axis longer than 1 stays as it is.
    """
    moving = [
        (axis, size) for axis, size in enumerate(entry["shape"]) if isinstance(size, str) and at[size] > 1
    ]
    padded = [pair for pair in moving if bucket["dims"][pair[1]]["strategy"] == "pad"]
    if not moving:
        return tensor
    axis, name = (padded or moving)[-1]
    cut: Array = tensor.copy()
    np.moveaxis(cut, axis, 0)[-max(at[name] // 4, 1) :] = 0
    return cut
