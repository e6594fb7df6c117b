"""Samples of a model's inputs: arrays of a .npz or .npy file, images by `preprocess`, or golden inputs."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.config import Model
from kiln.config.sizes import SizeExpr
from kiln.errors import KilnError
from kiln.golden.reference_base import Reference
from kiln.golden.reference_errors import CannotRunError
from kiln.sources.npy import load_npy, load_npz

LABELS = "labels"
_ARRAYS = (".npz", ".npy")
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_MOST_DIGITS = 18  # of the number of a class
_ENOUGH_SAMPLES = 16  # samples below which ranges of activations are hardly known


@dataclass(frozen=True)
class SamplePort:
    """An input of the model: name, element type, and shape; None stands for a dynamic size.

    `quant`: scale and zero point of a quantised input. `declared`: the shape with the file's own names of
    dynamic sizes, as size expressions; None where it is not known.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    quant: tuple[float, int] | None = None
    declared: Sequence[SizeExpr | None] | None = None


@dataclass(frozen=True)
class Samples:
    """Inputs of runs, by name, and where known the class of each; `warning` describes weak calibration data.

    `names`: the files of the samples, empty for arrays. `path`: the file or folder of all samples; None for
    golden inputs.
    """

    runs: Sequence[Mapping[str, Array]]
    labels: Array | None = None
    warning: str = ""
    names: Sequence[str] = ()
    path: Path | None = None

    def outputs(
        self, reference: Reference, inputs: Sequence[str], chosen: Sequence[int]
    ) -> list[list[Array]]:
        """The outputs of `reference`, whose inputs are called `inputs`, for the samples numbered `chosen`.

        Raises KilnError for a sample that the model cannot compute, as with an index outside a table.
        """
        results = []
        for number in chosen:
            try:
                results.append(reference.run([self.runs[number][name] for name in inputs]))
            except CannotRunError as error:
                where = f"golden input {number}" if self.path is None else f"{self.path}: sample {number}"
                advice = f": {error.advice}" if self.path is None else ""
                raise KilnError(f"{where}: {error.reason}{advice}") from error
        return results


def samples_from_file(path: Path, model: Model, ports: Sequence[SamplePort]) -> Samples:
    """Samples from a .npz or .npy file, a folder of images or a .csv file, by the suffix of `path`."""
    if is_of_arrays(path):
        return samples_from_arrays(path, ports)
    return samples_from_images(path, model, ports)


def is_of_arrays(path: Path) -> bool:
    """Whether the file's name ends like one of arrays."""
    return path.suffix.lower() in _ARRAYS and not path.is_dir()


def load_arrays(path: Path, ports: Sequence[SamplePort]) -> dict[str, Array]:
    """The arrays of a .npz file by name, or of a .npy file the one array, for the only one of `ports`."""
    if path.suffix.lower() != ".npy":
        return load_npz(path)
    if len(ports) != 1:
        names = ", ".join(port.name for port in ports)
        raise KilnError(f"{path}: a .npy file serves one input, the model has {names}; use a .npz file")
    return {ports[0].name: load_npy(path)}


def samples_from_arrays(path: Path, ports: Sequence[SamplePort]) -> Samples:
    """Samples from a .npz file with one array for each input, or a .npy file with that of the only input.

    An array has the shape of the input, or several of them along its first axis: (samples, …) for an input of
    batch 1, or with one more axis in front. An array `labels` that is not an input holds class numbers.
    Raises KilnError for a missing input, another shape or type, NaN or infinity, and different numbers of
    samples.
    """
    arrays = load_arrays(path, ports)
    names = [port.name for port in ports]
    missing = [name for name in names if name not in arrays]
    if missing:
        has = f"the file has: {', '.join(arrays)}" if arrays else "the file has no arrays"
        raise KilnError(f"{path}: no array '{missing[0]}', which is an input of the model; {has}")
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
    if labels is not None and (labels.dtype.kind not in "iu" or labels.min(initial=0) < 0):
        wrong = "is negative" if labels.dtype.kind in "iu" else f"is {labels.dtype}"
        raise KilnError(f"{path}: 'labels' {wrong}, allowed are numbers of classes: integers from 0 on")
    reasons = {name: _without_range(arrays[name]) for name in names}
    flat = next((f"'{name}' {why}: no range follows from it" for name, why in reasons.items() if why), "")
    warning = "; ".join(text for text in (flat, _few_samples_warning(len(runs))) if text)
    return Samples(runs, None if labels is None else labels.ravel(), warning, path=path)


def check_labels(samples: Samples, scores: int) -> None:
    """Raise KilnError for a label that is not the number of one of the `scores` of an output."""
    labels = samples.labels
    if labels is not None and int(labels.max(initial=0)) >= scores:
        raise KilnError(f"{samples.path}: label {int(labels.max())}: the output has {scores} scores")


def _split(path: Path, port: SamplePort, array: Array) -> list[Array]:
    """The samples in an array of the file `path`. Raises KilnError for a wrong type, shape or value."""
    if array.dtype != port.dtype:
        raise KilnError(
            f"{path}: '{port.name}' is {array.dtype}, the model's input is {port.dtype}; "
            f"convert it with .astype('{port.dtype}')"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise KilnError(f"{path}: '{port.name}' has NaN or infinite values")
    rank, batch = len(port.shape), port.shape[0] if port.shape else None
    if array.ndim == rank + 1 and _fits(array.shape[1:], port.shape):
        samples = [np.asarray(value) for value in array]  # of a scalar input, too
    elif array.ndim == rank and rank and _fits(array.shape[1:], port.shape[1:]):
        size = batch or 1
        if array.shape[0] % size:
            raise KilnError(
                f"{path}: '{port.name}' has {array.shape[0]} rows, allowed are multiples of {size}"
            )
        samples = [array[start : start + size] for start in range(0, array.shape[0], size)]
    else:
        sizes = ["any" if size is None else str(size) for size in port.shape]
        rows = "samples" if batch in (None, 1) else f"samples * {batch}"
        allowed = [["samples", *sizes], *([[rows, *sizes[1:]]] if rank else [])]
        shapes = " or ".join(f"[{', '.join(shape)}]" for shape in allowed)
        raise KilnError(f"{path}: '{port.name}' has the shape {list(array.shape)}, allowed: {shapes}")
    if not samples:
        raise KilnError(f"{path}: '{port.name}' has no sample")
    return samples


def _fits(shape: Sequence[int], allowed: Sequence[int | None]) -> bool:
    return len(shape) == len(allowed) and all(
        want in (None, got) for got, want in zip(shape, allowed, strict=True)
    )


def samples_from_images(path: Path, model: Model, ports: Sequence[SamplePort]) -> Samples:
    """Images through the model's `preprocess`: the images of a folder, or the images that a .csv file lists.

    The class of an image is the second column of the .csv file (image,class), or the name of the image's
    folder where the folder has subfolders: a name of the model's `labels`, or a number. Raises KilnError
    without images or `preprocess`, for a file of another kind, and for an unknown class.
    """
    from kiln.sources.image import load_image, preprocess

    if not path.exists():
        raise KilnError(f"{path}: no such file or folder")
    if not path.is_dir() and path.suffix.lower() != ".csv":
        raise KilnError(
            f"{path}: allowed: a .npz file with an array for each input, a .npy file for the only input, a "
            "folder of images, or a .csv file with the columns image and class"
        )
    if model.preprocess is None:
        raise KilnError(f"model '{model.name}': images need the section 'preprocess' in its YAML file")
    if len(ports) != 1:
        raise KilnError(f"model '{model.name}': images serve one input, it has {len(ports)}; use a .npz file")
    listed = _images_in_csv(path) if path.is_file() else _images_in_folder(path)
    if not listed:
        raise KilnError(f"{path}: no image in it ({', '.join(_IMAGES)})")
    port = ports[0]
    runs = [
        {port.name: preprocess(load_image(file), model.preprocess, str(port.dtype), port.quant)}
        for file, _ in listed
    ]
    names = [str(file) for file, _ in listed]
    classes = [label for _, label in listed]
    labels = None if None in classes else _class_numbers(path, model, [str(label) for label in classes])
    return Samples(runs, labels, _few_samples_warning(len(runs)), names, path)


def _images_in_folder(folder: Path) -> list[tuple[Path, str | None]]:
    """Images below a folder, each with the name of its subfolder as its class if all images have one."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _IMAGES)
    nested = all(file.parent != folder for file in files)
    return [(file, file.relative_to(folder).parts[0] if nested else None) for file in files]


def _images_in_csv(path: Path) -> list[tuple[Path, str | None]]:
    """Images and classes of a .csv file; its paths are relative to it."""
    try:
        rows = [row for row in csv.reader(path.read_text(encoding="utf-8").splitlines()) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise KilnError(f"{path}: not a .csv file: {error}") from error
    if any(len(row) != 2 for row in rows):
        raise KilnError(f"{path}: two columns are expected, image and class")
    if rows and not (path.parent / rows[0][0]).is_file() and Path(rows[0][0]).suffix.lower() not in _IMAGES:
        rows = rows[1:]  # titles of the columns
    missing = next((row[0] for row in rows if not (path.parent / row[0]).is_file()), None)
    if missing is not None:
        raise KilnError(f"{path}: '{missing}': no such file in {path.parent}")
    return [(path.parent / row[0], row[1].strip()) for row in rows]


def _class_numbers(path: Path, model: Model, classes: Sequence[str]) -> Array:
    """The numbers of classes: by the model's `labels`, else the names are numbers."""
    from kiln.sources.labels import load_labels

    labels = load_labels(model.labels) if model.labels else []
    numbers = {name: number for number, name in reversed(list(enumerate(labels)))}
    for name in sorted(set(classes)):
        if name not in numbers and not (name.isdecimal() and len(name) <= _MOST_DIGITS):
            listed = f"{', '.join(labels[:5])}{', …' if len(labels) > 5 else ''}"
            without = f"numbers from 0 on, as model '{model.name}' has no key 'labels' with their names"
            shown = name if len(name) <= 40 else f"{name[:40]}…"
            raise KilnError(f"{path}: unknown class '{shown}', allowed: {listed or without}")
    return np.array([numbers[name] if name in numbers else int(name) for name in classes])


def samples_from_golden(vectors: Sequence[Sequence[Array]], ports: Sequence[SamplePort]) -> Samples:
    """The inputs of the golden vectors, `ports` in the model's order, with a warning: not real data."""
    runs = [dict(zip((port.name for port in ports), inputs, strict=True)) for inputs in vectors]
    warning = (
        f"calibrated on {len(runs)} golden inputs, which may differ from real ones: "
        "give data=FILE.npz or a folder of images"
    )
    return Samples(runs, None, warning)


def _few_samples_warning(count: int) -> str:
    return (
        f"{count} samples: {_ENOUGH_SAMPLES} or more give better ranges of activations"
        if count < _ENOUGH_SAMPLES
        else ""
    )


def _without_range(array: Array) -> str:
    """Why no range of values follows from samples of an input, as a predicate; empty if one does."""
    if array.dtype.kind != "f":
        return ""
    if not array.size:
        return "has no elements"
    return "is the same number everywhere" if np.ptp(array) == 0 else ""
