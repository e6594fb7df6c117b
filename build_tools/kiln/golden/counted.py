"""Finds the sizes that a run counts, such as a number of boxes, in the shapes of the reference's outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kiln.config import sizes
from kiln.config.interface import Interface
from kiln.errors import KilnError

_MOST_TRIED = 64  # sizes of one dimension in a sum of several


def counted_sizes(
    source: Path, name: str, interface: Interface, dims: Mapping[str, int],
    results: Sequence[npt.NDArray[Any]],
) -> dict[str, int]:  # fmt: skip
    """The size of each counted dimension in `results`, the reference's outputs at sizes `dims`.

    `name`: of the golden vector, for errors. A size that no output has as an axis of its own follows from the
    axes whose expressions contain it, or is one of several that these axes allow; one that is in no output is
    0. Raises KilnError where the reference finds more elements than the bound allows.
    """
    counted = {counted_dim.name: counted_dim for counted_dim in interface.counted}
    limits = dict[str, int]()
    for key, counted_dim in counted.items():  # a bound may be a size that is counted before
        limits[key] = sizes.evaluate(counted_dim.bound, {**dims, **limits})
    axes = [
        (expr, size)
        for entry, result in zip(interface.outputs, results, strict=False)
        for expr, size in zip(entry.shape, np.shape(result), strict=False)
        if sizes.names(expr) & counted.keys()
    ]
    found: dict[str, int] = {}
    while axes:  # the axes with the fewest unknown sizes first, as they determine sizes of others
        axes.sort(key=lambda axis: len(sizes.names(axis[0]) & (counted.keys() - found.keys())))
        expr, size = axes.pop(0)
        unknown = sorted(sizes.names(expr) & (counted.keys() - found.keys()))
        if unknown:
            found |= _solved(expr, size, {**dims, **found}, unknown, limits) or dict.fromkeys(unknown, size)
    for key, size in found.items():
        if size > limits[key]:
            tensor = counted[key].tensor
            raise KilnError(
                f"{source}: tensor '{tensor}' has {size} elements in the reference for {name}, allowed: "
                f"{limits[key]}; raise bounds.{tensor}, or name other golden.inputs"
            )
    return {**dict.fromkeys(counted, 0), **found}


def _solved(
    expr: Any, size: int, known: Mapping[str, int], unknown: Sequence[str], limits: Mapping[str, int]
) -> dict[str, int]:
    """Sizes of the dimensions `unknown`, each up to its limit, at which `expr` is `size`; or nothing.

    An axis such as that of two joined lists does not tell the size of each: the first ones are as large as
    they can be.
    """
    if isinstance(expr, str) or not sizes.names(expr) <= {*known, *unknown}:
        return {}
    first, *others = unknown
    rest = dict.fromkeys(others, 0)
    values = ((n, sizes.evaluate(expr, {**known, **rest, first: n})) for n in range(limits[first] + 1))
    if not others:
        return next(({first: n} for n, value in values if value == size), {})
    for n in [n for n, value in values if value <= size][: -_MOST_TRIED - 1 : -1]:
        found = _solved(expr, size, {**known, first: n}, others, limits)
        if found:
            return {first: n, **found}
    return {}
