"""Options of the import stage: sizes of a model's dynamic dimensions, and layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kiln.config.dims import Segment
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

    shapes: by input, one entry per axis: a size or the name of a dimension in `dims`.
    layouts: by input or output, axis letters such as "NHWC".
    bucket: by dimension, the sizes that this bucket covers; None for a model whose sizes are all fixed.
    every_node: whether attribute kiln.nodes lists all nodes of the file in order, or only a few per operator.
    """

    name: str
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, DimRange] = field(default_factory=dict)
    bucket: Mapping[str, Segment] | None = None
    every_node: bool = False

    def size(self, entry: int | str) -> int | None:
        """The size of an axis in the imported graph; None if it is symbolic.

        `entry`: entry of a shape, a size or the name of a dimension.
        """
        if isinstance(entry, int):
            return entry
        return self.bucket[entry].size if self.bucket else self.dims[entry].minimum


def from_config(config: Mapping[str, Any], bucket: Mapping[str, Any] | None = None) -> ImportOptions:
    """The import options of a checked model configuration.

    Settings that are absent or null leave the decision to the model file. `bucket`: the content of
    bucket.json, one entry of buckets.json (see kiln.config.buckets).
    """
    dims = {}
    for name, value in (config.get("dims") or {}).items():
        minimum = 1 if value.get("min") is None else int(value["min"])
        maximum = minimum if value.get("max") is None else int(value["max"])
        dims[name] = DimRange(name, minimum, maximum, int(value.get("multiple") or 1))
    shapes: dict[str, tuple[int | str, ...]] = {}
    layouts: dict[str, str] = {}
    for side in ("inputs", "outputs"):
        for name, value in (config.get(side) or {}).items():
            if side == "inputs" and value.get("shape") is not None:
                shapes[name] = tuple(value["shape"])
            if value.get("layout"):
                layouts[name] = str(value["layout"])
    segments = None
    if bucket is not None:
        segments = {name: Segment.model_validate(part) for name, part in bucket["dims"].items()}
    return ImportOptions(str(config.get("name") or "model"), shapes, layouts, dims, segments)


def bind_shape(
    where: str, name: str, declared: tuple[int | str | None, ...] | None, options: ImportOptions
) -> tuple[int | str, ...]:
    """The shape of input `name`: per axis a size, or, when importing for a bucket, the name of a dimension.

    `declared`: shape in the model file: per axis a size, the name of a symbol, or None where the file gives
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
    sizes = []
    for axis, declared_size in enumerate(declared):
        wanted = configured[axis] if configured is not None else declared_size
        entry = wanted if isinstance(wanted, int) else _dim(where, name, axis, wanted, options)
        if isinstance(declared_size, int) and options.size(entry) != declared_size:
            raise KilnError(
                f"{where}: input '{name}' axis {axis} is {declared_size} in the file, "
                f"but inputs.{name}.shape says {entry}"
            )
        sizes.append(entry)
    _check_elements(where, name, sizes, options)
    return tuple(sizes)


def _check_elements(where: str, name: str, sizes: Sequence[int | str], options: ImportOptions) -> None:
    """Raise KilnError where input `name` of shape `sizes` can have more than MOST_ELEMENTS elements."""
    greatest = [entry if isinstance(entry, int) else options.dims[entry].maximum for entry in sizes]
    elements = math.prod(greatest)
    if elements > MOST_ELEMENTS:
        raise KilnError(
            f"{where}: input '{name}' of {greatest} has {elements} elements, allowed: at most "
            f"{MOST_ELEMENTS} in one tensor"
        )


def _dim(where: str, name: str, axis: int, symbol: str | None, options: ImportOptions) -> int | str:
    """The entry for `axis` of input `name`: the dimension's name when importing for a bucket, else its size.

    Raises KilnError for a symbol without a dimension, and for a dimension that has no single size.
    """
    shown = f" ('{symbol}')" if symbol else ""
    dim = options.dims.get(symbol) if symbol else None
    if dim is None:
        raise KilnError(
            f"{where}: input '{name}' axis {axis}{shown} is dynamic and has no range; give its size with "
            f"'inputs: {{{name}: {{shape: […]}}}}'"
            + (f" or its range with 'dims: {{{symbol}: {{min: 1, max: 1}}}}'" if symbol else "")
        )
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
