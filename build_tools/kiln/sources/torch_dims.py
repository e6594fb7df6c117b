"""Dynamic dimensions of a torch.export archive, converted to `dims` of a model's configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln.config import sizes
from kiln.config.c_words import can_name_variable
from kiln.config.check import choices
from kiln.config.library import identifier
from kiln.errors import KilnError
from kiln.sources.torch_archive import Archive

Range = tuple[int, int, int]  # least and greatest size of a dimension, and a divisor of all sizes


def fill(
    path: Path, archive: Archive, shapes: Mapping[str, Sequence[Any]], ranges: Mapping[str, Range]
) -> tuple[dict[str, list[Any]], dict[str, Range]]:
    """The shapes of all inputs, and the ranges of the dimensions that the configuration lacks.

    `shapes`: by input, its shape in the configuration: sizes, names of dimensions, or expressions of
    names; `ranges`: the configuration's dimensions, by name.

    A symbol of the archive is called as the configuration names an axis that is this symbol, else as
    torch.export.Dim did, else after the first input and axis that have it: `x_0`. Raises KilnError for an
    input that does not exist, for a range wider than the archive's, and for a dimension without a greatest
    size.
    """
    unknown = [name for name in shapes if name not in archive.inputs]
    if unknown:
        known = choices(unknown[0], archive.inputs)
        raise KilnError(f"{path}: inputs.{unknown[0]}: the model has no such input{known}")
    archive, multiples = whole_axes(archive)
    values = _values(path, archive, shapes)
    filled = {
        name: list(shapes[name]) if name in shapes else [sizes.substituted(size, values) for size in shape]
        for name, shape in archive.inputs.items()
    }
    missing: dict[str, Range] = {}
    for symbol, value in values.items():
        least, most = archive.ranges.get(symbol, (0, None))
        multiple = multiples.get(symbol, 1)
        if isinstance(value, int) or value in ranges:
            export_range = least, most, multiple
            _check_range(path, value, None if isinstance(value, int) else ranges[value], export_range)
        elif most is None:
            raise KilnError(
                f"{path}: dimension '{value}' ({_first_axis_with(archive, symbol)}) has no greatest size; "
                f"give it with 'dims: {{{value}: {{min: {max(least, 1)}, max: …}}}}' in a YAML file, or with "
                f"torch.export.Dim(…, max=…)"
            )
        else:
            missing[value] = (max(least, multiple), most, multiple)
    return filled, missing


def _check_range(
    path: Path, value: int | str, declared: Range | None, export_range: tuple[int, int | None, int]
) -> None:
    """Raise KilnError unless a size, or the range `declared` of a dimension, is in the range of the export.

    `value`: the size, or the dimension's name. `export_range`: least and greatest size (None: no greatest),
    and the divisor of all sizes.
    """
    least, most, multiple = export_range
    text = f"{least}..{'' if most is None else most}"
    low, high, divisor = declared if declared is not None else (int(value), int(value), multiple)
    if declared is not None and divisor % multiple:
        raise KilnError(f"{path}: dims.{value}.multiple: {divisor}, allowed: multiples of {multiple}")
    is_outside = low < least or (most is not None and high > most)
    if declared is not None and is_outside:
        raise KilnError(f"{path}: dims.{value}: {low}..{high} is wider than {text}, the range of its export")
    if declared is None and (is_outside or low % multiple):
        steps = f" in steps of {multiple}" if multiple > 1 else ""
        raise KilnError(f"{path}: size {value} is outside of {text}{steps}, the range of its export")


def whole_axes(archive: Archive) -> tuple[Archive, dict[str, int]]:
    """The archive with each symbol the size of an axis, and by symbol a divisor of all its sizes.

    A symbol h that occurs only in expressions, such as 8*h, is replaced by a symbol for the whole axis,
    whose sizes are multiples of 8; the sizes of other axes with h become expressions of that symbol.
    """
    plain = {size for shape in archive.inputs.values() for size in shape if isinstance(size, str)}
    changes: dict[str, Any] = {}
    ranges, multiples = dict(archive.ranges), {}
    for shape in archive.inputs.values():
        for size in shape:
            if isinstance(size, list) and size[0] == "*" and isinstance(size[2], int) and size[2] > 0:
                symbol, factor = size[1], size[2]
                if isinstance(symbol, str) and symbol not in plain and symbol not in changes:
                    whole = f"{symbol} * {factor}"
                    changes[symbol], multiples[whole] = ["//", whole, factor], factor
                    least, most = archive.ranges.get(symbol, (0, None))
                    ranges[whole] = (least * factor, None if most is None else most * factor)

    def changed(size: sizes.SizeExpr) -> sizes.SizeExpr:
        whole = isinstance(size, list) and size[0] == "*" and size[1] in list(changes)
        if whole and f"{size[1]} * {size[2]}" in multiples:
            return f"{size[1]} * {size[2]}"
        return sizes.substituted(size, {name: changes.get(name, name) for name in sizes.names(size)})

    inputs = {name: tuple(changed(size) for size in shape) for name, shape in archive.inputs.items()}
    return Archive(inputs, ranges, archive.names), multiples


def _values(path: Path, archive: Archive, shapes: Mapping[str, Sequence[Any]]) -> dict[str, int | str]:
    """The dimension's name, or the size in the configuration, of each symbol in the inputs' shapes."""
    values: dict[str, int | str] = {}
    for name, configured in shapes.items():
        declared = archive.inputs[name]
        if len(configured) != len(declared):
            raise KilnError(
                f"{path}: input '{name}' has {len(declared)} axes, but inputs.{name}.shape gives "
                f"{len(configured)}"
            )
        for axis, (size, entry) in enumerate(zip(declared, configured, strict=True)):
            named = isinstance(size, str) and isinstance(entry, (int, str))
            if named and values.setdefault(size, entry) != entry:
                raise KilnError(
                    f"{path}: inputs.{name}.shape: axis {axis} is {entry}, but an axis that is always of "
                    f"the same size is {values[size]}"
                )
    axes = [
        (size, f"{name}_{axis}") for name, shape in archive.inputs.items() for axis, size in enumerate(shape)
    ]
    for size, axis_name in sorted(axes, key=lambda pair: not isinstance(pair[0], str)):
        for symbol in sorted(sizes.names(size) - values.keys()):
            dimension = _dimension_name(archive.names.get(symbol) or axis_name)
            while dimension in values.values():
                dimension += "_"
            values[symbol] = dimension
    return values


def _dimension_name(text: str) -> str:
    name = identifier(text)
    return name if can_name_variable(name) else f"{name}_"


def _first_axis_with(archive: Archive, symbol: str) -> str:
    """The first input and axis with the symbol, for errors."""
    return next(
        f"input '{name}' axis {axis}"
        for name, shape in archive.inputs.items()
        for axis, size in enumerate(shape)
        if symbol in sizes.names(size)
    )
