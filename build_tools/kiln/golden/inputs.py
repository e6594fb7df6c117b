"""Input sets of golden vectors: seeded random values, a photograph, or tensors from files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.config.interface import PortRecord
from kiln.config.special import conditions_of
from kiln.errors import KilnError
from kiln.golden import stored_ports

Entry = Mapping[str, Any]

DEFAULT_SETS: tuple[Entry, ...] = tuple({"kind": "random", "seed": seed} for seed in (1, 2, 3))
DRAWN = ("random", "normal")  # kinds that can be drawn in any shape


def make_set(
    spec: Entry, entries: Sequence[PortRecord], preprocess: Entry | None, masks: Collection[str] = ()
) -> list[Array]:
    """The tensors of one set, in the order of the interface's inputs `entries`, whose shapes are integers.

    A photograph becomes the input that `preprocess` names, or the only input; all other inputs of that model
    are drawn like `kind: random, seed: 0`. Inputs named in `masks` contain ones (no element is padding),
    except in sets of tensors from files. Raises KilnError if the set does not fit the model's inputs.
    """
    kind = spec["kind"]
    if kind in DRAWN:
        known = [entry.name for entry in entries]
        for name in spec.get("inputs") or {}:
            if name not in known:
                raise KilnError(f"golden.inputs: no input is called '{name}', there are: {', '.join(known)}")
        generator = np.random.default_rng(int(spec["seed"]))
        tensors = [_draw(_own(spec, entry.name), entry, generator) for entry in entries]
    elif kind == "image":
        tensors = _image_set(spec, entries, preprocess)
    elif kind == "tensors":
        return [_given(spec, entry) for entry in entries]
    else:
        raise KilnError(f"golden.inputs: unknown kind '{kind}', allowed: random, normal, image, tensors")
    pairs = zip(entries, tensors, strict=True)
    return [np.ones_like(tensor) if entry.name in masks else tensor for entry, tensor in pairs]


def _own(spec: Entry, name: str) -> Entry:
    """`spec` with the keys of its entry for the input `name`, if it has one, in place of the general keys."""
    own = (spec.get("inputs") or {}).get(name) or {}
    return {**spec, **{key: value for key, value in own.items() if value is not None}}


def with_content(case: Entry, entries: Sequence[PortRecord], given: Sequence[Array]) -> list[Array] | None:
    """`given` with the contents that `case`, an entry of special_cases, defines for inputs.

    None where a content comes from a file and has another type or shape than the input.
    """
    result = list(given)
    for condition in conditions_of(case):
        for index, (entry, tensor) in enumerate(zip(entries, given, strict=True)):
            if entry.name != condition.get("input"):
                continue
            if condition["value"] in ("zeros", "ones"):
                result[index] = np.full_like(tensor, condition["value"] == "ones")
                continue
            content, _ = _load({"tensors": {entry.name: condition["value"]}}, entry)
            if content.dtype != tensor.dtype or content.shape != tensor.shape:
                return None
            result[index] = content
    return result


def fixed_shapes(
    spec: Entry, entries: Sequence[PortRecord], preprocess: Entry | None
) -> dict[str, tuple[int, ...]]:
    """Shapes, by input name, of the photograph or the tensors of a set of kind image or tensors."""
    if spec["kind"] == "tensors":
        return {entry.name: _load(spec, entry)[0].shape for entry in entries}
    index = _image_input(entries, preprocess)
    return {entries[index].name: _image(spec, entries[index], preprocess or {}).shape}


def set_names(specs: Sequence[Entry]) -> list[str]:
    """A short, unique stem of file names for each set."""
    names: list[str] = []
    for spec in specs:
        stem = f"{spec['kind']}_{spec['seed']}" if "seed" in spec else str(spec["kind"])
        names.append(stem if stem not in names else f"{stem}_{len(names)}")
    return names


def _draw(spec: Entry, entry: PortRecord, generator: np.random.Generator) -> Array:
    """Random values of one input; uniform values are computed from the generator's 53-bit fractions."""
    if entry.element:
        kind, drawn = stored_ports.kind_of(entry.element), {"element": None, "dtype": "float32"}
        own = {**spec, **stored_ports.limits(kind, spec)}
        values = _draw(own, entry.model_copy(update=drawn), generator)
        return stored_ports.stored(stored_ports.element(values, kind), kind)
    dtype, shape = np.dtype(entry.dtype), tuple(entry.shape)
    if spec["kind"] == "normal":
        values = generator.normal(float(spec.get("mean") or 0.0), _or(spec.get("std"), 1.0), shape)
    elif dtype.kind == "f":
        low, high = _or(spec.get("low"), -1.0), _or(spec.get("high"), 1.0)
        values = low + (high - low) * generator.random(shape)
    elif dtype.kind == "b":
        return generator.random(shape) < 0.5
    else:
        info = np.iinfo(dtype.str)
        # Wide integers are mostly indices or lengths: without bounds only 0 and 1 are drawn.
        low, high = (info.min, info.max) if dtype.itemsize <= 2 else (0, 1)
        low, high = _or(spec.get("low"), low), _or(spec.get("high"), high)
        values = np.floor(low + (high - low + 1) * generator.random(shape))
    if dtype.kind in "iu":
        info = np.iinfo(dtype.str)
        values = np.clip(np.rint(values), info.min, info.max)
    return values.astype(dtype)


def _or(value: Any, default: float) -> float:
    return float(default if value is None else value)


def _image_input(entries: Sequence[PortRecord], preprocess: Entry | None) -> int:
    """The position of the input that the photograph becomes."""
    if preprocess is None:
        raise KilnError("golden.inputs: kind 'image' needs the model's 'preprocess'")
    names = [entry.name for entry in entries]
    name = preprocess.get("input") or (names[0] if len(names) == 1 else None)
    if name not in names:
        raise KilnError(
            f"preprocess.input: '{name}' is not an input of the model, it has: {', '.join(names)}"
        )
    return names.index(name)


def _image_set(spec: Entry, entries: Sequence[PortRecord], preprocess: Entry | None) -> list[Array]:
    index = _image_input(entries, preprocess)
    generator = np.random.default_rng(0)
    uniform = {"kind": "random", "seed": 0}
    return [
        _fitting(_image(spec, entry, preprocess or {}), entry, "the preprocessed photograph")
        if position == index
        else _draw(uniform, entry, generator)
        for position, entry in enumerate(entries)
    ]


def _image(spec: Entry, entry: PortRecord, preprocess: Entry) -> Array:
    """The photograph of `spec`, cropped and rotated, then preprocessed for the model (`preprocess`)."""
    from kiln.sources import fetch, image

    pixels = image.load_image(fetch(spec["source"]), spec.get("crop"), int(spec.get("rotate") or 0))
    pair = (entry.quant.scale, entry.quant.zero_point) if entry.quant else None
    return np.asarray(image.preprocess(pixels, dict(preprocess), entry.dtype, pair))


def _given(spec: Entry, entry: PortRecord) -> Array:
    """The tensor of `spec` for the input `entry`. Raises KilnError if type or shape differ."""
    tensor, path = _load(spec, entry)
    return _fitting(tensor, entry, str(path))


def _load(spec: Entry, entry: PortRecord) -> tuple[Array, Path]:
    """The tensor of `spec` for the input `entry`, and the path of its file."""
    from kiln.sources import fetch
    from kiln.sources.npy import load_npy

    source = spec["tensors"].get(entry.name)
    if source is None:
        raise KilnError(f"golden.inputs: kind 'tensors' gives no tensor for input '{entry.name}'")
    path: Path = fetch(source)
    return load_npy(path), path


def _fitting(tensor: Array, entry: PortRecord, what: str) -> Array:
    """`tensor`, called `what` in errors. Raises KilnError unless it has the type and shape of `entry`."""
    if tensor.dtype != np.dtype(entry.dtype) or list(tensor.shape) != list(entry.shape):
        raise KilnError(
            f"{what} is {tensor.dtype}{list(tensor.shape)}, but input '{entry.name}' is "
            f"{entry.dtype}{list(entry.shape)}"
        )
    return tensor
