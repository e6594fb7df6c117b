"""interface.json: name, type, shape, layout and quantisation of a model's inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kiln.config import sizes
from kiln.config.c_words import can_name_variable
from kiln.config.check import choices
from kiln.config.interface import (
    CountedDimension,
    Dimension,
    Interface,
    PortRecord,
    Quantisation,
    StateRecord,
)
from kiln.config.sizes import SizeExpr
from kiln.errors import KilnError
from kiln.frontend.options import ImportOptions


@dataclass(frozen=True)
class Port:
    """The description of one input or output of a model.

    shape: per axis, a size expression in elements: a number, the name of a dimension, or an expression of
    these (kiln.config.sizes). layout: axis letters such as "NHWC". quant: (scale, zero_point), with
    real = scale * (q - zero_point); None if the tensor is not quantised. element: the name in ONNX of the
    element type where dtype is only its storage, such as bfloat16 in uint16.
    """

    name: str
    dtype: str
    shape: tuple[SizeExpr, ...]
    layout: str | None = None
    quant: tuple[float, int] | None = None
    element: str | None = None


def c_names(names: Iterable[str], fallback: str, used: set[str]) -> list[str]:
    """Lower-case C identifiers for `names`, unique, and neither reserved in C or C++ nor in `used`.

    The identifiers are added to `used`. "session" is excluded: it is the first parameter of every generated
    entry point. Names without a letter or digit become `fallback` with the index.
    """
    identifiers = []
    for index, name in enumerate(names):
        base = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or f"{fallback}_{index}"
        if base[0].isdigit() or base.startswith("kiln_"):  # the names of the runtime
            base = f"{fallback}_{base}"
        if base == "session" or not can_name_variable(base):
            base += "_"
        candidate, number = base, 1
        while candidate in used:
            number += 1
            candidate = f"{base.rstrip('_')}_{number}"
        used.add(candidate)
        identifiers.append(candidate)
    return identifiers


def check_declared(options: ImportOptions, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
    """Raise KilnError where the configuration contradicts the file: names, types, and shapes of outputs.

    Shapes of inputs are checked when they are given to the file's inputs.
    """
    sides = (("input", inputs), ("output", outputs))
    for (side, ports), declared in zip(sides, options.declared, strict=True):
        by_name = {port.name: port for port in ports}
        for name, tensor in declared.items():
            key = f"{side}s.{name}"
            if name not in by_name:
                raise KilnError(f"{key}: the model has no such {side}{choices(name, by_name)}")
            port = by_name[name]
            if tensor.dtype not in (None, port.dtype, port.element):
                held = port.dtype if port.element is None else f"{port.element}, held as {port.dtype}"
                raise KilnError(
                    f"{key}.dtype: '{tensor.dtype}', but the {side} is {held} in the file; allowed: "
                    f"{port.dtype}, or leave the key out"
                )
            if side == "output" and tensor.shape is not None:
                _check_output(key, tensor.shape, port.shape, options)


def _check_output(
    key: str, declared: Sequence[SizeExpr], shape: Sequence[SizeExpr], options: ImportOptions
) -> None:
    """Raise KilnError where an output's declared shape differs from `shape`, as far as both are known."""
    if len(declared) != len(shape):
        raise KilnError(f"{key}.shape: {len(declared)} axes, but the output has {len(shape)}")
    for axis, entries in enumerate(zip(declared, shape, strict=True)):
        all_named = all(sizes.names(entry) <= options.dims.keys() for entry in entries)
        declared_size, inferred = (options.size(entry) if all_named else None for entry in entries)
        if declared_size is not None and inferred is not None and declared_size != inferred:
            raise KilnError(f"{key}.shape: axis {axis} is {declared_size}, but {inferred} in the model")


def described(
    options: ImportOptions,
    inputs: list[Port],
    outputs: list[Port],
    states: Sequence[StateRecord] = (),
    counted: Sequence[CountedDimension] = (),
) -> Interface:
    """The interface of a model; layouts of the configuration override those of the file."""
    used: set[str] = set()
    entries: dict[str, list[PortRecord]] = {}
    for side, ports in (("inputs", inputs), ("outputs", outputs)):
        names = c_names([port.name for port in ports], side[:-1], used)
        entries[side] = [
            _record(port, c_name, options.layouts) for port, c_name in zip(ports, names, strict=True)
        ]
    dims = [
        Dimension(name=dim.name, min=dim.minimum, max=dim.maximum, multiple=dim.multiple)
        for dim in options.dims.values()
    ]
    return Interface(
        model=options.name,
        inputs=entries["inputs"],
        outputs=entries["outputs"],
        states=list(states),
        dims=dims,
        counted=list(counted),
    )


def _record(port: Port, c_name: str, layouts: Mapping[str, str]) -> PortRecord:
    quant = None if port.quant is None else Quantisation(scale=port.quant[0], zero_point=port.quant[1])
    return PortRecord(
        name=port.name,
        c_name=c_name,
        dtype=port.dtype,
        shape=list(port.shape),
        layout=layouts.get(port.name, port.layout),
        quant=quant,
        element=port.element,
    )
