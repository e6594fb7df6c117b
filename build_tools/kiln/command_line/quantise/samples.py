"""Calibration samples: arrays from a .npz file, images through the model's `preprocess`, or the golden
inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kiln.config import Model
from kiln.errors import KilnError
from kiln.golden.compare import Array

LABELS = "labels"
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_FEW = 16  # samples below which ranges of activations are hardly known


@dataclass(frozen=True)
class Port:
    """An input of the model: name, element type, and shape; None stands for a dynamic size."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class Samples:
    """Inputs of runs, by name, and where known the class of each; `warning` describes weak data."""

    runs: Sequence[Mapping[str, Array]]
    labels: Array | None = None
    warning: str = ""


def from_npz(path: Path, ports: Sequence[Port]) -> Samples:
    """Samples from a file with one array for each input.

    An array has the shape of the input, or several of them along its first axis: (samples, …) for an input of
    batch 1, or with one more axis in front. An array `labels` that is no input holds class numbers. Raises
    KilnError for a missing input, another shape or type, NaN or infinity, and different numbers of samples.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name]) for name in file.files}
    except (OSError, ValueError, AttributeError) as error:
        raise KilnError(f"{path}: not a .npz file of arrays: {error}") from error
    names = [port.name for port in ports]
    missing = [name for name in names if name not in arrays]
    if missing:
        raise KilnError(f"{path}: no array '{missing[0]}'; the inputs are {', '.join(names)}")
    labels = arrays.pop(LABELS, None) if LABELS not in names else None
    unknown = sorted(set(arrays) - set(names))
    if unknown:
        raise KilnError(f"{path}: array '{unknown[0]}' is not an input; the inputs are {', '.join(names)}")
    split = {port.name: _split(path, port, arrays[port.name]) for port in ports}
    counts = {name: len(values) for name, values in split.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise KilnError(f"{path}: inputs with different numbers of samples ({listed})")
    runs = [{name: split[name][index] for name in names} for index in range(counts[names[0]])]
    if labels is not None and labels.size != len(runs):
        raise KilnError(f"{path}: {labels.size} labels for {len(runs)} samples")
    return Samples(runs, None if labels is None else labels.ravel(), _few(len(runs)))


def _split(path: Path, port: Port, array: Array) -> list[Array]:
    """The samples in an array."""
    if array.dtype != port.dtype:
        raise KilnError(f"{path}: '{port.name}' is {array.dtype}, the model's input is {port.dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise KilnError(f"{path}: '{port.name}' has NaN or infinite values")
    rank, batch = len(port.shape), port.shape[0] if port.shape else None
    if array.ndim == rank + 1 and _fits(array.shape[1:], port.shape):
        found = list(array)
    elif array.ndim == rank and rank and _fits(array.shape[1:], port.shape[1:]):
        size = batch or 1
        if not array.shape[0] or array.shape[0] % size:
            raise KilnError(
                f"{path}: '{port.name}' has {array.shape[0]} rows, allowed are multiples of {size}"
            )
        found = [array[start : start + size] for start in range(0, array.shape[0], size)]
    else:
        shape = ", ".join("any" if size is None else str(size) for size in port.shape)
        raise KilnError(
            f"{path}: '{port.name}' has the shape {list(array.shape)}, allowed is [samples, …] of [{shape}]"
        )
    if not found:
        raise KilnError(f"{path}: '{port.name}' has no sample")
    return found


def _fits(shape: Sequence[int], allowed: Sequence[int | None]) -> bool:
    return len(shape) == len(allowed) and all(
        want in (None, got) for got, want in zip(shape, allowed, strict=True)
    )


def from_images(folder: Path, model: Model, ports: Sequence[Port]) -> Samples:
    """Images of a folder through the model's `preprocess`. Raises KilnError without images or
    `preprocess`."""
    from kiln.sources.image import load_image, preprocess

    if model.preprocess is None:
        raise KilnError(f"model '{model.name}': images need the section 'preprocess' in its YAML file")
    if len(ports) != 1:
        raise KilnError(f"model '{model.name}': images serve one input, it has {len(ports)}; use a .npz file")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _IMAGES)
    if not files:
        raise KilnError(f"{folder}: no image in it ({', '.join(_IMAGES)})")
    port = ports[0]
    runs = [
        {port.name: preprocess(load_image(path), model.preprocess, str(port.dtype), None)} for path in files
    ]
    return Samples(runs, None, _few(len(runs)))


def from_golden(vectors: Sequence[Sequence[Array]], ports: Sequence[Port]) -> Samples:
    """The inputs of the golden vectors, in the model's order: better than nothing."""
    runs = [dict(zip((port.name for port in ports), inputs, strict=True)) for inputs in vectors]
    warning = (
        f"calibrated on {len(runs)} golden inputs, which may say little about real ones: "
        "give data=FILE.npz or a folder of images"
    )
    return Samples(runs, None, warning)


def _few(count: int) -> str:
    return f"{count} samples: {_FEW} or more give better ranges of activations" if count < _FEW else ""
