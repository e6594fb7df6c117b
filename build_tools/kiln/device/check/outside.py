"""Inputs that a model with buckets must refuse: sizes one step outside of each dimension's range.

The shapes are made here from golden.json and run by programs/check_shapes.c; the results are checked here
too. So the expected ranges do not come from the bundle's own C code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kiln.config import sizes
from kiln.config.boxes import Box
from kiln.config.interface import Dimension
from kiln.device.check.execute import Check, Refused
from kiln.golden.sample_sizes import refusals
from kiln.golden.schema import GoldenFile, SymbolicInput

Shapes = list[list[int]]


@dataclass(frozen=True)
class Outside:
    """A test case: inputs with `shapes` must give `status` and an error text that contains all `words`."""

    name: str
    shapes: Shapes
    status: str
    words: tuple[str, ...]


def outside(golden: GoldenFile) -> list[Outside]:
    """Test cases that the bundle of this golden.json must refuse; empty for a model without buckets."""
    inputs = golden.inputs or []
    axes_of_dims = _axes(inputs)
    dims = [dim for dim in golden.dims or [] if dim.name in axes_of_dims]
    if not dims or not golden.buckets:
        return []
    buckets, around = golden.buckets, golden.vectors[0].dims
    cases = []
    for refusal in refusals(golden.dims or [], buckets, around):
        if refusal.dim not in axes_of_dims:
            continue
        shapes = [[sizes.evaluate(size, refusal.sizes) for size in entry.shape] for entry in inputs]
        value = refusal.sizes[refusal.dim]
        first, axis = axes_of_dims[refusal.dim][0]
        words = [f"{inputs[first].name} axis {axis}", str(value)]
        if refusal.status == "KILN_NO_BUCKET":
            words = _unserved([dim.name for dim in dims], buckets, refusal.sizes)
        else:
            dim = next(dim for dim in dims if dim.name == refusal.dim)
            words.append(f"{dim.min}..{dim.max}" if dim.min < dim.max else str(dim.min))
        shown = " ".join(f"{name}={size}" for name, size in refusal.sizes.items())
        cases.append(Outside(f"{refusal.dim} {value} ({shown})", shapes, refusal.status, tuple(words)))
    return cases + list(_disagreements(inputs, dims, axes_of_dims, around))


def judge(cases: Sequence[Outside], answers: Sequence[Refused]) -> list[Check]:
    """A check for each test case: it was refused with the right status and text.

    A case without an answer fails.
    """
    checks = []
    for index, case in enumerate(cases):
        name = f"refuses {case.name}"
        if index >= len(answers):
            checks.append(Check(name, False, "it was not tried"))
            continue
        answer = answers[index]
        missing = [word for word in case.words if word not in answer.text]
        if answer.status != case.status:
            checks.append(Check(name, False, f"gave {answer.status}, not {case.status}: {answer.text}"))
        elif answer.fault:
            checks.append(Check(name, False, answer.fault))
        elif missing:
            checks.append(Check(name, False, f"'{answer.text}' does not contain {missing[0]}"))
        else:
            checks.append(Check(name, True, f"{answer.status}: {answer.text}"))
    return checks


def _unserved(dims: Sequence[str], buckets: Sequence[Box], refused: Mapping[str, int]) -> list[str]:
    """Words that the error message must contain for sizes that no bucket accepts.

    The message blames the first dimension whose size no bucket accepts; if some bucket accepts each size and
    only the combination is refused, the first dimension. It lists the nearest accepted sizes of that
    dimension; in the second case, those of the buckets that accept the sizes of all other dimensions.
    """

    def accepts(bucket: Box, name: str) -> bool:
        return bucket.dims[name].min <= refused[name] <= bucket.dims[name].max

    alone = [name for name in dims if not any(accepts(bucket, name) for bucket in buckets)]
    name = (alone or dims)[0]
    others = [] if alone else [other for other in dims if other != name]
    near = [b.dims[name] for b in buckets if all(accepts(b, other) for other in others)]
    below = max((segment.max for segment in near if segment.max < refused[name]), default=None)
    above = min((segment.min for segment in near if segment.min > refused[name]), default=None)
    nearest = ", ".join(str(size) for size in (below, above) if size is not None)
    return [f"{name}: {refused[name]}", f"served: {nearest}" if nearest else "the other dimensions"]


def _axes(inputs: Sequence[SymbolicInput]) -> dict[str, list[tuple[int, int]]]:
    """The (input, axis) pairs of each dimension, whose size it is, in the order of the checks."""
    axes_of_dims: dict[str, list[tuple[int, int]]] = {}
    for index, entry in enumerate(inputs):
        for axis, size in enumerate(entry.shape):
            if isinstance(size, str):
                axes_of_dims.setdefault(size, []).append((index, axis))
    return axes_of_dims


def _disagreements(
    inputs: Sequence[SymbolicInput],
    dims: Sequence[Dimension],
    axes_of_dims: Mapping[str, Sequence[tuple[int, int]]],
    allowed: Mapping[str, int],
) -> Iterator[Outside]:
    """Test cases where the last axis of a shared dimension has another allowed size than its first axis."""
    for dim in dims:
        name = dim.name
        size = allowed[name]
        others = [s for s in (size + dim.multiple, size - dim.multiple) if dim.min <= s <= dim.max]
        if len(axes_of_dims[name]) < 2 or not others:
            continue
        shapes = [[sizes.evaluate(s, allowed) for s in entry.shape] for entry in inputs]
        index, axis = axes_of_dims[name][-1]
        shapes[index][axis] = others[0]
        words = (f"{inputs[index].name} axis {axis}", str(others[0]), str(size))
        yield Outside(f"{name} {size} and {others[0]} at once", shapes, "KILN_DIM_MISMATCH", words)
