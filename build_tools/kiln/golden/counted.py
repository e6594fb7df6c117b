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


def counted_sizes(
    source: Path, name: str, interface: Interface, dims: Mapping[str, int],
    results: Sequence[npt.NDArray[Any]],
) -> dict[str, int]:  # fmt: skip
    """The size of each counted dimension in `results`, the reference's outputs at sizes `dims`.

    `name`: of the golden vector, for errors. A size that no output has as an axis of its own follows from the
    axes whose expressions contain it; one that is in no output is 0. Raises KilnError where the reference
    finds more elements than the bound allows.
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
    sizes_found: dict[str, int] = {}
    for expr, size in sorted(axes, key=lambda axis: len(list(sizes.parts(axis[0])))):
        unknown = [key for key in sorted(sizes.names(expr)) if key in counted and key not in sizes_found]
        if len(unknown) == 1:
            sizes_found[unknown[0]] = _solved(
                expr, size, {**dims, **sizes_found}, unknown[0], limits[unknown[0]]
            )
    for key, size in sizes_found.items():
        if size > limits[key]:
            tensor = counted[key].tensor
            raise KilnError(
                f"{source}: tensor '{tensor}' has {size} elements in the reference for {name}, allowed: "
                f"{limits[key]}; raise bounds.{tensor}, or name other golden.inputs"
            )
    return {**dict.fromkeys(counted, 0), **sizes_found}


def _solved(expr: Any, size: int, known_sizes: Mapping[str, int], name: str, limit: int) -> int:
    """The size of dimension `name`, 0..limit, for which `expr` is `size`; `size` itself if there is none."""
    if isinstance(expr, str) or not sizes.names(expr) <= {*known_sizes, name}:
        return size
    return next((n for n in range(limit + 1) if sizes.evaluate(expr, {**known_sizes, name: n}) == size), size)
