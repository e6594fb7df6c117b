"""What the import stage may be told about a model: fixed sizes for its open dimensions, and layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kiln.errors import KilnError


@dataclass(frozen=True)
class Dim:
    """A named dimension: every size in [minimum, maximum] that `multiple` divides may come at run time."""

    name: str
    minimum: int
    maximum: int
    multiple: int = 1


@dataclass(frozen=True)
class ImportOptions:
    """The slice of a model's YAML that decides what is imported.

    shapes: per input, one entry an axis: a size or the name of a dimension in `dims`.
    layouts: per input or output, axis letters such as "NHWC".
    """

    name: str
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, Dim] = field(default_factory=dict)


def from_config(config: Mapping[str, Any]) -> ImportOptions:
    """Read the slice of a checked model configuration; what is absent or null is as the file says."""
    dims = {}
    for name, value in (config.get("dims") or {}).items():
        minimum = int(value.get("min") or 1)
        maximum = int(value.get("max") or minimum)
        dims[name] = Dim(name, minimum, maximum, int(value.get("multiple") or 1))
    shapes: dict[str, tuple[int | str, ...]] = {}
    layouts: dict[str, str] = {}
    for side in ("inputs", "outputs"):
        for name, value in (config.get(side) or {}).items():
            if side == "inputs" and value.get("shape") is not None:
                shapes[name] = tuple(value["shape"])
            if value.get("layout"):
                layouts[name] = str(value["layout"])
    return ImportOptions(str(config.get("name") or "model"), shapes, layouts, dims)


def bind_shape(
    where: str, name: str, declared: tuple[int | str | None, ...] | None, options: ImportOptions
) -> tuple[int, ...]:
    """The fixed shape of the input `name`.

    `declared` is what the file says: per axis a size, the name of a symbol, or None where the file gives
    neither; None altogether when even the rank is open. Raises KilnError, prefixed with `where`, that names
    the input, the axis and how to give its size.
    """
    given = options.shapes.get(name)
    if declared is None and given is None:
        raise KilnError(
            f"{where}: input '{name}' has no shape; give it with 'inputs: {{{name}: {{shape: […]}}}}'"
        )
    if declared is None:
        declared = (None,) * len(given or ())
    if given is not None and len(given) != len(declared):
        raise KilnError(
            f"{where}: input '{name}' has {len(declared)} axes, but inputs.{name}.shape gives {len(given)}"
        )
    sizes = []
    for axis, found in enumerate(declared):
        wanted = given[axis] if given is not None else found
        size = wanted if isinstance(wanted, int) else _dim_size(where, name, axis, wanted, options)
        if isinstance(found, int) and size != found:
            raise KilnError(
                f"{where}: input '{name}' axis {axis} is {found} in the file, "
                f"but inputs.{name}.shape says {size}"
            )
        sizes.append(size)
    return tuple(sizes)


def _dim_size(where: str, name: str, axis: int, symbol: str | None, options: ImportOptions) -> int:
    """The one size of the dimension that is `axis` of input `name`."""
    shown = f" ('{symbol}')" if symbol else ""
    dim = options.dims.get(symbol) if symbol else None
    if dim is None:
        raise KilnError(
            f"{where}: input '{name}' axis {axis}{shown} is dynamic and has no range; give its size with "
            f"'inputs: {{{name}: {{shape: […]}}}}'"
            + (f" or its range with 'dims: {{{symbol}: {{min: 1, max: 1}}}}'" if symbol else "")
        )
    if dim.minimum != dim.maximum:
        raise KilnError(
            f"{where}: input '{name}' axis {axis}{shown} ranges over {dim.minimum}..{dim.maximum}; "
            f"only one size is supported: give dims.{dim.name} equal min and max"
        )
    if dim.minimum % dim.multiple:
        raise KilnError(f"{where}: dims.{dim.name}: {dim.minimum} is not a multiple of {dim.multiple}")
    return dim.minimum
