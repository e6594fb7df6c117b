"""Options of the import stage: sizes of a model's dynamic dimensions, and layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiln.config import sizes
from kiln.config.boxes import Box
from kiln.config.check import choices
from kiln.config.dims import Segment, key_of
from kiln.config.model import Tensor
from kiln.config.sizes import SizeExpr, substituted
from kiln.config.slice_records import ImportConfig
from kiln.config.state import KeptValue
from kiln.errors import KilnError

# Greatest number of elements of a tensor: 32-bit targets and external libraries count with 32-bit integers.
MOST_ELEMENTS = (1 << 31) - 1


@dataclass(frozen=True)
class DimRange:
    """A named dimension, whose size at run time is a multiple of `multiple` in [minimum, maximum]."""

    name: str
    minimum: int
    maximum: int
    multiple: int = 1


@dataclass(frozen=True)
class ImportOptions:
    """The settings of a model's YAML that affect the import, and the bucket to import for.

    shapes: the shape of each input, by name, one entry per axis: a size, the name of a dimension in `dims`,
    or a size expression.
    layouts: axis letters such as "NHWC" of inputs and outputs, by name.
    bucket: the sizes that this bucket covers, by dimension; None for a model whose sizes are all fixed.
    state: the output of the previous run that feeds an input, and the input's first value, by input.
    bounds: the most elements or rows of each tensor whose size is in the data, by tensor.
    declared: the entries of the configuration for inputs, and for outputs, by name.
    every_node: whether attribute kiln.nodes lists all nodes of the file in order, or only a few per operator.
    used: the dimensions that shapes of inputs have, which `bind_shape` adds.
    """

    name: str
    shapes: Mapping[str, tuple[SizeExpr, ...]] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, DimRange] = field(default_factory=dict)
    bucket: Mapping[str, Segment] | None = None
    state: Mapping[str, KeptValue] = field(default_factory=dict)
    every_node: bool = False
    bounds: Mapping[str, int] = field(default_factory=dict)
    declared: tuple[Mapping[str, Tensor], Mapping[str, Tensor]] = ({}, {})
    used: set[str] = field(default_factory=set)

    def check_inputs(self, path: Path, names: Sequence[str]) -> None:
        """Raise KilnError for a shape of an input that the file `path` does not have; `names`: its inputs."""
        for name in self.shapes:
            if name not in names:
                raise KilnError(f"{path}: inputs.{name}: the model has no such input{choices(name, names)}")

    def size(self, entry: SizeExpr) -> int | None:
        """The size of an axis in the imported graph; None if it is symbolic.

        `entry`: entry of a shape, a size, the name of a dimension, or an expression of these.
        """
        if isinstance(entry, int):
            return entry
        if not isinstance(entry, str):
            size_of_dim = {name: self.size(name) for name in sizes.names(entry)}
            if None in size_of_dim.values():
                return None
            return sizes.evaluate(entry, {name: size or 0 for name, size in size_of_dim.items()})
        return self.bucket[entry].size if self.bucket else self.dims[entry].minimum


def from_config(config: ImportConfig, bucket: Box | None = None) -> ImportOptions:
    """The import options of a model's configuration.

    Keys that are absent leave the decision to the model file. `bucket`: the bucket to import for; None for a
    model whose sizes are all fixed.
    """
    ports = [*config.inputs.items(), *config.outputs.items()]
    return ImportOptions(
        name=config.name,
        shapes={name: tuple(port.shape) for name, port in config.inputs.items() if port.shape is not None},
        layouts={name: port.layout for name, port in ports if port.layout},
        dims={name: DimRange(name, dim.min, dim.max, dim.multiple) for name, dim in config.dims.items()},
        bucket=None if bucket is None else bucket.dims,
        state=config.state,
        bounds=config.bounds,
        declared=(config.inputs, config.outputs),
    )


def bind_shape(
    where: str, name: str, declared: tuple[SizeExpr | None, ...] | None, options: ImportOptions
) -> tuple[SizeExpr, ...]:
    """The shape of input `name`: per axis a size, or, for a bucket, an expression of dimensions.

    `declared`: shape in the model file: per axis a size, an expression of symbols, or None where it gives
    neither; None for an unknown rank. Raises KilnError, prefixed with `where`, naming the input, the axis and
    the setting that gives its size.
    """
    configured = options.shapes.get(name)
    if declared is None and configured is None:
        raise KilnError(
            f"{where}: input '{name}' has no shape; give it with 'inputs: {{{name}: {{shape: […]}}}}'"
        )
    if declared is None:
        declared = (None,) * len(configured or ())
    if configured is not None and len(configured) != len(declared):
        raise KilnError(
            f"{where}: input '{name}' has {len(declared)} axes, but inputs.{name}.shape gives "
            f"{len(configured)}"
        )
    shape: list[SizeExpr] = []
    for axis, declared_size in enumerate(declared):
        requested = configured[axis] if configured is not None else declared_size
        if requested is None or isinstance(requested, (int, str)):
            entry = requested if isinstance(requested, int) else _dim(where, name, axis, requested, options)
        else:
            values = {symbol: _dim(where, name, axis, symbol, options) for symbol in sizes.names(requested)}
            entry = substituted(requested, values)
            _check_sizes(where, name, axis, entry, options)
        if isinstance(declared_size, int) and options.size(entry) != declared_size:
            raise KilnError(
                f"{where}: input '{name}' axis {axis} is {declared_size} in the file, "
                f"but inputs.{name}.shape is {entry}"
            )
        shape.append(entry)
    _check_elements(where, name, shape, options)
    return tuple(shape)


def check_own_axes(where: str, shapes: Mapping[str, Sequence[SizeExpr]]) -> None:
    """Raise KilnError for a dimension in expressions that is not an axis of its own on any input."""
    whole_axes = {size for shape in shapes.values() for size in shape if isinstance(size, str)}
    for name, shape in shapes.items():
        for size in shape:
            for dim in sorted(sizes.names(size) - whole_axes):
                shown = ", ".join(sizes.show(entry) for entry in shape)
                raise KilnError(
                    f"{where}: dims.{dim}: no axis is of this size itself; input '{name}' is ({shown}): make "
                    f"the whole axis a dimension with 'inputs: {{{name}: {{shape: […]}}}}', and its factor "
                    "that dimension's 'multiple'"
                )


def _check_sizes(where: str, name: str, axis: int, entry: SizeExpr, options: ImportOptions) -> None:
    """Raise KilnError where the size `entry` of an axis is below 0 for some sizes of the dimensions."""
    ranges = {dim.name: (dim.minimum, dim.maximum) for dim in options.dims.values()}
    least = sizes.bounds(entry, ranges)[0]
    if least < 0:
        raise KilnError(
            f"{where}: input '{name}' axis {axis} of size {sizes.show(entry)} is {least} for the least sizes "
            "of its dimensions, allowed: 0 and more; raise their min in 'dims'"
        )


def _check_elements(where: str, name: str, shape: Sequence[SizeExpr], options: ImportOptions) -> None:
    """Raise KilnError where input `name` of shape `shape` can have more than MOST_ELEMENTS elements."""
    ranges = {dim.name: (dim.minimum, dim.maximum) for dim in options.dims.values()}
    greatest = [sizes.bounds(entry, ranges)[1] for entry in shape]
    elements = math.prod(greatest)
    if elements > MOST_ELEMENTS:
        raise KilnError(
            f"{where}: input '{name}' of {greatest} has {elements} elements, allowed: at most "
            f"{MOST_ELEMENTS} in one tensor"
        )


def check_keys(where: str, shapes: Mapping[str, Sequence[SizeExpr | None] | None]) -> None:
    """Raise KilnError where two dimensions of a file, such as `N` and `n`, would have the same key in `dims`.

    `shapes`: by input, the shape in the file, of the inputs whose shapes the configuration does not give.
    """
    symbol_of_key: dict[str, tuple[str, str]] = {}
    for name, shape in shapes.items():
        for size in shape or ():
            for symbol in sorted(sizes.names(size)) if size is not None else ():
                key = key_of(symbol)
                namesake, first = symbol_of_key.setdefault(key, (symbol, name))
                if key and namesake != symbol:
                    raise KilnError(
                        f"{where}: dimensions '{namesake}' of input '{first}' and '{symbol}' of input "
                        f"'{name}' have the same key, dims.{key}; give one of them another name with "
                        f"'inputs: {{{name}: {{shape: […]}}}}'"
                    )


def check_ranges(
    where: str, shapes: Mapping[str, Sequence[SizeExpr | None] | None], options: ImportOptions
) -> None:
    """Raise KilnError that lists all dynamic sizes without a range where there are several.

    `shapes`: by input, the shape in the file. A single one is refused by `bind_shape`.
    """
    axes: dict[str, list[str]] = {}  # by input, those without a range
    keys: dict[str, None] = {}
    for name, declared in shapes.items():
        for axis, size in enumerate(options.shapes.get(name) or declared or ()):
            symbols = [None] if size is None else sorted(sizes.names(size))
            for symbol in symbols:
                key = unnamed(name, axis) if symbol is None else symbol
                if _dim_of(key, options) is None:
                    axes.setdefault(name, []).append(f"axis {axis}" + (f" ('{symbol}')" if symbol else ""))
                    keys[key_of(key)] = None
    count = sum(map(len, axes.values()))
    if count < 2:
        return
    listed = ", ".join(f"input '{name}' {' and '.join(axis_texts)}" for name, axis_texts in axes.items())
    shown = ", ".join(f"{name}: {{shape: […]}}" for name in axes)
    named = [key for key in keys if key]
    ranges = _ways(named) if named else ""
    raise KilnError(
        f"{where}: {count} sizes are dynamic and have no range: {listed}; give {ranges}all sizes with "
        f"'inputs: {{{shown}}}' in the model's YAML, models/{options.name}.yaml"
    )


def _ways(keys: Sequence[str]) -> str:
    """Two ways to give ranges for the dimensions `keys`, with a third to follow."""
    words = ",".join(f"{key}:1..8" for key in keys)
    entries = ", ".join(f"{key}: {{min: 1, max: 8}}" for key in keys)
    ranges = "ranges" if len(keys) > 1 else "a range"
    return f"{ranges} with dims={words} on the command line or 'dims: {{{entries}}}', or "


def unnamed(name: str, axis: int) -> str:
    """The key in `dims` for an axis of input `name` that the file gives no name: x_0 for the first of `x`."""
    return key_of(f"{name}_{axis}")


def _dim_of(symbol: str, options: ImportOptions) -> DimRange | None:
    """The dimension of a name in a model file; None where it has none."""
    return options.dims.get(symbol) or options.dims.get(key_of(symbol))


def _dim(where: str, name: str, axis: int, symbol: str | None, options: ImportOptions) -> int | str:
    """The entry for `axis` of input `name`: the dimension's name when importing for a bucket, else its size.

    Raises KilnError for a symbol without a dimension, and for a dimension that has no single size.
    """
    shown = f" ('{symbol}')" if symbol else ""
    key = key_of(symbol or unnamed(name, axis))
    dim = _dim_of(symbol or key, options)
    if dim is None:
        ranges = _ways([key]) if key else ""
        raise KilnError(
            f"{where}: input '{name}' axis {axis}{shown} is dynamic and has no range; give {ranges}its size "
            f"with 'inputs: {{{name}: {{shape: […]}}}}' in the model's YAML, models/{options.name}.yaml"
        )
    options.used.add(dim.name)
    if dim.minimum % dim.multiple:
        raise KilnError(f"{where}: dims.{dim.name}: {dim.minimum} is not a multiple of {dim.multiple}")
    if options.bucket is not None:
        if dim.name not in options.bucket:
            raise KilnError(f"{where}: the bucket has no entry for dims.{dim.name}")
        return dim.name
    if dim.minimum != dim.maximum:
        raise KilnError(
            f"{where}: input '{name}' axis {axis}{shown} ranges over {dim.minimum}..{dim.maximum}; without a "
            f"bucket only one size can be imported: give dims.{dim.name} equal min and max"
        )
    return dim.minimum
