"""Dynamic dimensions of an archive of torch.export as those of a model's configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln.config import sizes
from kiln.config.c_words import can_name_variable
from kiln.config.library import identifier
from kiln.errors import KilnError
from kiln.sources.torch_archive import Archive

Shape = tuple[Any, ...]


def fill(
    path: Path, archive: Archive, shapes: Mapping[str, Sequence[Any]], ranges: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, list[Any]], dict[str, tuple[int, int]]]:
    """The shapes of all inputs, and the ranges of the dimensions that the configuration lacks.

    `shapes`: by input, its shape in the configuration: sizes and names of dimensions, or expressions of
    these; `ranges`: the least and greatest size of each dimension of the configuration.

    A symbol of the archive is called as the configuration names an axis that is this symbol, else as
    torch.export.Dim did, else after the first input and axis that have it: `x_0`. Raises KilnError for an
    input that does not exist, for a range wider than the archive's, and for a dimension without a greatest
    size.
    """
    unknown = [name for name in shapes if name not in archive.inputs]
    if unknown:
        raise KilnError(
            f"{path}: inputs.{unknown[0]}: the model has no such input, it has: {', '.join(archive.inputs)}"
        )
    values = _values(path, archive, shapes)
    filled = {
        name: list(shapes[name]) if name in shapes else [_substitute(size, values) for size in shape]
        for name, shape in archive.inputs.items()
    }
    missing: dict[str, tuple[int, int]] = {}
    for symbol, value in values.items():
        least, most = archive.ranges.get(symbol, (0, None))
        shown = f"{least}..{'' if most is None else most}"
        if isinstance(value, int):
            if value < least or (most is not None and value > most):
                raise KilnError(f"{path}: size {value} is outside of {shown}, the range of its export")
        elif value in ranges:
            low, high = ranges[value]
            if low < least or (most is not None and high > most):
                raise KilnError(
                    f"{path}: dims.{value}: {low}..{high} is wider than {shown}, the range of its export"
                )
        elif most is None:
            raise KilnError(
                f"{path}: dimension '{value}' ({_where(archive, symbol)}) has no greatest size; give it "
                f"with 'dims: {{{value}: {{min: {max(least, 1)}, max: …}}}}' in a YAML file, or with "
                f"torch.export.Dim(…, max=…)"
            )
        else:
            missing[value] = (max(least, 1), most)
    return filled, missing


def _values(path: Path, archive: Archive, shapes: Mapping[str, Sequence[Any]]) -> dict[str, int | str]:
    """By symbol of the inputs' shapes, the name of its dimension, or its size in the configuration."""
    values: dict[str, int | str] = {}
    for name, given in shapes.items():
        declared = archive.inputs[name]
        if len(given) != len(declared):
            raise KilnError(
                f"{path}: input '{name}' has {len(declared)} axes, but inputs.{name}.shape gives {len(given)}"
            )
        for axis, (size, entry) in enumerate(zip(declared, given, strict=True)):
            named = isinstance(size, str) and isinstance(entry, (int, str))
            if named and values.setdefault(size, entry) != entry:
                raise KilnError(
                    f"{path}: inputs.{name}.shape: axis {axis} is {entry}, but an axis that is always of "
                    f"the same size is {values[size]}"
                )
    for name, shape in archive.inputs.items():
        for axis, size in enumerate(shape):
            for symbol in sorted(sizes.names(size)):
                if symbol not in values:
                    called = _dimension_name(archive.names.get(symbol) or f"{name}_{axis}")
                    while called in values.values():
                        called += "_"
                    values[symbol] = called
    return values


def _dimension_name(text: str) -> str:
    name = identifier(text)
    return name if can_name_variable(name) else f"{name}_"


def _substitute(size: sizes.SizeExpr, values: Mapping[str, int | str]) -> Any:
    """`size` with its symbols replaced by `values`; a number where it is constant."""
    if isinstance(size, str):
        return values[size]
    if isinstance(size, int):
        return size
    result = [size[0], _substitute(size[1], values), _substitute(size[2], values)]
    return result if sizes.names(result) else sizes.evaluate(result, {})


def _where(archive: Archive, symbol: str) -> str:
    """The first input and axis with the symbol, for errors."""
    return next(
        f"input '{name}' axis {axis}"
        for name, shape in archive.inputs.items()
        for axis, size in enumerate(shape)
        if symbol in sizes.names(size)
    )
