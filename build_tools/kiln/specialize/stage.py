"""specialize: stage that wraps a bucket's graph with padding, and adds the functions of special cases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tvm

from kiln.config.boxes import STATIC_BOX, Box
from kiln.config.interface import Interface
from kiln.config.padding import PaddingProofs
from kiln.config.records import read
from kiln.config.slice_records import SpecializeConfig
from kiln.config.source import FileSource
from kiln.config.special import Condition, SpecialCase
from kiln.errors import KilnError
from kiln.files import atomic_dir, write_json
from kiln.graph.empties import is_empty
from kiln.params import store
from kiln.sources.npy import load_npy
from kiln.specialize.conditions import (
    AllOf,
    Atom,
    Equals,
    InputIs,
    InRange,
    MultipleOf,
    OnSize,
    input_is,
)
from kiln.specialize.padding.wrap import pad_wrapped
from kiln.specialize.special_case import special_cases
from kiln.specialize.symbols import symbols_of
from kiln.stages.model import SpecializeStage


def run(args: SpecializeStage) -> None:
    """Write the specialised module, its parameters and interface.json."""
    config = read(SpecializeConfig, args.config)
    bucket = read(Box, args.bucket) if args.bucket else STATIC_BOX
    interface = read(Interface, args.interface or args.source / "interface.json")
    padded = list(bucket.padded)
    if padded and not args.interface:
        raise KilnError(f"bucket '{bucket.name}': --interface is missing: the sizes of {padded[0]}")
    if padded and not args.padding:
        raise KilnError(f"bucket '{bucket.name}': --padding is missing: the fill values of {padded[0]}")
    fill = read(PaddingProofs, args.padding).buckets[bucket.name].fill if padded and args.padding else None
    module = specialize(store.load(args.source), interface, bucket, config, fill)
    with atomic_dir(args.out) as folder:
        store.save(module, folder)
        write_json(folder / "interface.json", interface.model_dump())


def specialize(
    module: tvm.IRModule,
    interface: Interface,
    bucket: Box,
    config: SpecializeConfig,
    fill: Mapping[str, float | str] | None = None,
) -> tvm.IRModule:
    """Make `module` accept all sizes of `bucket`, and add the special cases of the model's configuration.

    `interface`: that of the model, with shapes as size expressions of the dimensions. `fill`: by input, the
    value of padded elements, from padding.json. Raises KilnError for a special case that names an
    unknown input, or whose tensor has a type or number of axes other than the input's.
    """
    module = pad_wrapped(module, interface, bucket, fill)
    declared = config.special_cases
    if not declared:
        return module
    parameters = [p.name for p in module["main"].params]
    names = [port.name for port in interface.inputs]
    inputs = dict(zip(names, parameters, strict=False))  # the parameter of sizes comes after the inputs
    sizes = {name: dim.min for name, dim in config.dims.items()}
    fixed = {**sizes, **bucket.fixed}
    conditions, entries = [], []
    for entry in declared:
        for clause in entry.conditions:
            if clause.dim is None and clause.input not in names:
                raise KilnError(
                    f"{config.name}: special_cases: no input '{clause.input}', known: {', '.join(names)}"
                )
        condition = _condition_in_bucket(module, entry, inputs, fixed)
        if condition is not None:
            conditions.append(condition)
            entries.append(entry)

    def dropped(number: int) -> None:
        case = _case_text(entries[number])
        where = f"{config.name}[{bucket.name}]"
        print(f"{where}: special case '{case}' saves no operator and no operand: dropped")

    return special_cases(module, conditions, dropped=dropped)


def _case_text(entry: SpecialCase) -> str:
    """An entry of special_cases in words, for messages."""
    words = []
    for condition in entry.conditions:
        if condition.dim is None:
            value = (
                Path(condition.value.path).name
                if isinstance(condition.value, FileSource)
                else condition.value
            )
            words.append(f"{condition.input} is {value}")
        else:
            sizes = {"exact": condition.exact, "range": condition.range, "multiple": condition.multiple}
            words += [f"{condition.dim} {key} {size}" for key, size in sizes.items() if size is not None]
    return ", ".join(words)


def _condition_in_bucket(
    module: tvm.IRModule, entry: SpecialCase, inputs: Mapping[str, str], fixed: Mapping[str, int]
) -> AllOf | None:
    """The condition of an entry of special_cases; None where it never holds, or always holds, in this bucket.

    `fixed`: by dimension, the size of dimensions that are not symbolic in this bucket.
    """
    atoms: list[Atom] = []
    for condition in entry.conditions:
        if condition.dim is not None:
            size = _size(condition, condition.dim)
            if condition.dim in symbols_of(module["main"]):
                atoms.append(size)
            elif not size.holds(np.array([fixed[condition.dim]]))[0]:
                return None
            continue
        assert condition.input is not None and condition.value is not None
        content = _content(condition.value, inputs[condition.input])
        if content.tensor is not None and not _is_comparable(module, condition.input, content):
            return None
        if any(is_empty(p) for p in module["main"].params if p.name == content.input):
            return None  # the runtime never treats an input without elements as special
        atoms.append(content)
    return AllOf(tuple(atoms)) if atoms else None


def _size(condition: Condition, dim: str) -> OnSize:
    """The condition on the size of dimension `dim`."""
    if condition.exact is not None:
        return Equals(dim, condition.exact)
    if condition.range is not None:
        return InRange(dim, *condition.range)
    assert condition.multiple is not None
    return MultipleOf(dim, condition.multiple)


def _content(value: str | FileSource, parameter: str) -> InputIs:
    """The condition on the elements of an input: `zeros`, `ones`, or the tensor in a file."""
    if isinstance(value, str):
        return InputIs(parameter, value)
    return input_is(parameter, load_npy(Path(value.path)))


def _is_comparable(module: tvm.IRModule, name: str, content: InputIs) -> bool:
    """Whether the input's shape is static in this bucket, so that it can be compared with the tensor.

    Raises KilnError where type or number of axes of the tensor differ from the input's.
    """
    tensor = content.tensor
    assert tensor is not None
    ty = next(p.ty for p in module["main"].params if p.name == content.input)
    if str(tensor.dtype) != str(ty.dtype) or tensor.ndim != len(ty.shape):
        raise KilnError(
            f"special_cases: input '{name}': a tensor of {tensor.dtype} with {tensor.ndim} axes, "
            f"but the input is {ty.dtype} with {len(ty.shape)}"
        )
    return all(isinstance(size, tvm.tirx.IntImm) for size in ty.shape)
