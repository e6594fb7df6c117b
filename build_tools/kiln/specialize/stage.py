"""specialize: padding around a bucket's graph, and functions for special contents of an input."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from kiln.errors import KilnError
from kiln.files import atomic_dir, read_json, write_json
from kiln.params import store
from kiln.specialize.conditions import InputIs, input_is
from kiln.specialize.padding import pad_wrapped
from kiln.specialize.special_case import special_cases


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--in", dest="source", type=Path, required=True, help="folder of the simplify stage")
    parser.add_argument("--bucket", type=Path, help="bucket.json; left out: a static model")
    parser.add_argument(
        "--interface", type=Path, help="interface.json of the model; needed where sizes are padded"
    )
    parser.add_argument("--config", type=Path, required=True, help="slice of the model's configuration")
    parser.add_argument("--out", type=Path, required=True)


def run(args: argparse.Namespace) -> None:
    config = read_json(args.config)
    bucket: dict[str, Any] = read_json(args.bucket) if args.bucket else {"name": "static", "dims": {}}
    interface = read_json(args.interface or args.source / "interface.json")
    padded = [name for name, part in bucket["dims"].items() if part["strategy"] == "pad"]
    if padded and not args.interface:
        raise KilnError(f"bucket '{bucket['name']}': --interface is missing, it says how to cut {padded[0]}")
    module = specialize(store.load(args.source), interface, bucket, config)
    with atomic_dir(args.out) as folder:
        store.save(module, folder)
        write_json(folder / "interface.json", interface)


def specialize(
    module: tvm.IRModule, interface: Mapping[str, Any], bucket: Mapping[str, Any], config: Mapping[str, Any]
) -> tvm.IRModule:
    """`module` for all sizes of `bucket`, with the special cases of the model's configuration.

    `interface`: that of the model, its shapes in terms of the dimensions. Raises KilnError in one line for
    an input that the model does not have, and for a value of another shape or type.
    """
    module = pad_wrapped(module, interface, bucket, config.get("inputs"))
    given = config.get("special_cases") or []
    if not given:
        return module
    parameters = [p.name for p in module["main"].params]
    names = [port["name"] for port in interface["inputs"]]
    conditions = []
    for entry in given:
        if entry["input"] not in names:
            raise KilnError(
                f"{config['name']}: special_cases: no input '{entry['input']}', known: {', '.join(names)}"
            )
        conditions.append(_condition(entry, parameters[names.index(entry["input"])]))
    return special_cases(module, _possible(module, conditions, names, parameters))


def _condition(entry: Mapping[str, Any], parameter: str) -> InputIs:
    value = entry["value"]
    if isinstance(value, str):
        return InputIs(parameter, value)
    path = Path(value["path"])
    try:
        tensor = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise KilnError(f"{path}: no tensor in NumPy's format .npy: {error}") from error
    return input_is(parameter, tensor)


def _possible(
    module: tvm.IRModule, conditions: Sequence[InputIs], names: Sequence[str], parameters: Sequence[str]
) -> list[InputIs]:
    """The conditions that can hold in this bucket: a tensor has one shape, and other buckets have others."""
    types = {p.name: p.ty for p in module["main"].params}
    found = []
    for condition in conditions:
        if condition.tensor is not None:
            ty = types[condition.input]
            name = names[parameters.index(condition.input)]
            shape = [int(size) if isinstance(size, tvm.tirx.IntImm) else None for size in ty.shape]
            if str(condition.tensor.dtype) != str(ty.dtype) or condition.tensor.ndim != len(shape):
                raise KilnError(
                    f"special_cases: input '{name}': a tensor of {condition.tensor.dtype} with "
                    f"{condition.tensor.ndim} axes, but the input is {ty.dtype} with {len(shape)}"
                )
            if None in shape:
                continue
        found.append(condition)
    return found
