"""The input sets that golden vectors are made for: seeded random values, a photograph, given tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kiln.errors import KilnError

Array = npt.NDArray[Any]
Entry = Mapping[str, Any]

DEFAULT_SETS: tuple[Entry, ...] = tuple({"kind": "random", "seed": seed} for seed in (1, 2, 3))


def make_set(spec: Entry, entries: Sequence[Entry], preprocess: Entry | None) -> list[Array]:
    """The tensors of one set, in the order of the interface's inputs `entries`.

    A photograph goes into the input that `preprocess` names, or the only one; the other inputs of that model
    are drawn like `kind: random, seed: 0`. Raises KilnError when the set and the model do not go together.
    """
    kind = spec["kind"]
    if kind in ("random", "normal"):
        generator = np.random.default_rng(int(spec["seed"]))
        return [_draw(spec, entry, generator) for entry in entries]
    if kind == "image":
        return _image_set(spec, entries, preprocess)
    if kind == "tensors":
        return [_given(spec, entry) for entry in entries]
    raise KilnError(f"golden.inputs: unknown kind '{kind}', allowed: random, normal, image, tensors")


def set_names(specs: Sequence[Entry]) -> list[str]:
    """A short, unique file name stem for each set."""
    names: list[str] = []
    for spec in specs:
        stem = f"{spec['kind']}_{spec['seed']}" if "seed" in spec else str(spec["kind"])
        names.append(stem if stem not in names else f"{stem}_{len(names)}")
    return names


def _draw(spec: Entry, entry: Entry, generator: np.random.Generator) -> Array:
    """Random values of one input; uniform ones come from the generator's plain 53-bit fractions."""
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    if spec["kind"] == "normal":
        values = generator.normal(float(spec.get("mean") or 0.0), _or(spec.get("std"), 1.0), shape)
    elif dtype.kind == "f":
        low, high = _or(spec.get("low"), -1.0), _or(spec.get("high"), 1.0)
        values = low + (high - low) * generator.random(shape)
    elif dtype.kind == "b":
        return generator.random(shape) < 0.5
    else:
        info = np.iinfo(dtype.str)
        # Wide integers are indices or lengths more often than numbers: without bounds they stay small.
        low, high = (info.min, info.max) if dtype.itemsize <= 2 else (0, 1)
        low, high = _or(spec.get("low"), low), _or(spec.get("high"), high)
        values = np.floor(low + (high - low + 1) * generator.random(shape))
    if dtype.kind in "iu":
        info = np.iinfo(dtype.str)
        values = np.clip(np.rint(values), info.min, info.max)
    return values.astype(dtype)


def _or(value: Any, default: float) -> float:
    return float(default if value is None else value)


def _image_set(spec: Entry, entries: Sequence[Entry], preprocess: Entry | None) -> list[Array]:
    if preprocess is None:
        raise KilnError("golden.inputs: kind 'image' needs the model's 'preprocess'")
    name = preprocess.get("input") or (entries[0]["name"] if len(entries) == 1 else None)
    if name not in [entry["name"] for entry in entries]:
        raise KilnError(
            f"preprocess.input: '{name}' is not an input of the model, it has: "
            + ", ".join(entry["name"] for entry in entries)
        )
    generator = np.random.default_rng(0)
    uniform = {"kind": "random", "seed": 0}
    return [
        _image(spec, entry, preprocess) if entry["name"] == name else _draw(uniform, entry, generator)
        for entry in entries
    ]


def _image(spec: Entry, entry: Entry, preprocess: Entry) -> Array:
    """A photograph, cut and turned as `spec` says, then preprocessed as the model wants it."""
    from kiln.sources import fetch, image

    picture = image.load_image(fetch(spec["source"]), spec.get("crop"), int(spec.get("rotate") or 0))
    quant = entry.get("quant")
    pair = (quant["scale"], quant["zero_point"]) if quant else None
    tensor = image.preprocess(picture, dict(preprocess), entry["dtype"], pair)
    return _fitting(np.asarray(tensor), entry, "the preprocessed photograph")


def _given(spec: Entry, entry: Entry) -> Array:
    from kiln.sources import fetch

    source = spec["tensors"].get(entry["name"])
    if source is None:
        raise KilnError(f"golden.inputs: kind 'tensors' gives no tensor for input '{entry['name']}'")
    path: Path = fetch(source)
    try:
        return _fitting(np.load(path, allow_pickle=False), entry, str(path))
    except (OSError, ValueError) as error:
        raise KilnError(f"{path}: not a .npy tensor: {error}") from error


def _fitting(tensor: Array, entry: Entry, what: str) -> Array:
    if tensor.dtype != np.dtype(entry["dtype"]) or list(tensor.shape) != list(entry["shape"]):
        raise KilnError(
            f"{what} is {tensor.dtype}{list(tensor.shape)}, but input '{entry['name']}' is "
            f"{entry['dtype']}{list(entry['shape'])}"
        )
    return tensor
