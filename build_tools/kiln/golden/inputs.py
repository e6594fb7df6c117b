"""Input sets of golden vectors: seeded random values, a photograph, or tensors from files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from kiln.arrays import Array
from kiln.config.check import choices
from kiln.config.data import GoldenInput, ImageInput, NormalInput, Preprocess, RandomInput, TensorInput
from kiln.config.interface import PortRecord
from kiln.config.source import FileSource, Source
from kiln.config.special import SpecialCase
from kiln.errors import KilnError
from kiln.golden import stored_ports

DRAWN = (RandomInput, NormalInput)  # sets that can be drawn in any shape


def make_set(
    spec: GoldenInput,
    entries: Sequence[PortRecord],
    preprocess: Preprocess | None,
    masks: Collection[str] = (),
) -> list[Array]:
    """The tensors of one set, in the order of the interface's inputs `entries`, whose shapes are integers.

    A photograph becomes the input that `preprocess` names, or the only input; all other inputs of that model
    are drawn like `kind: random, seed: 0`. Inputs named in `masks` contain ones (no element is padding),
    except in sets of tensors from files. Raises KilnError if the set does not fit the model's inputs.
    """
    _check_names(spec, [entry.name for entry in entries])
    if isinstance(spec, DRAWN):
        generator = np.random.default_rng(spec.seed)
        tensors = [_draw(_with_bounds_of(spec, entry.name), entry, generator) for entry in entries]
    elif isinstance(spec, ImageInput):
        tensors = _image_set(spec, entries, preprocess)
    else:
        return [_tensor_from_file(spec, entry) for entry in entries]
    pairs = zip(entries, tensors, strict=True)
    return [np.ones_like(tensor) if entry.name in masks else tensor for entry, tensor in pairs]


def _check_names(spec: GoldenInput, known: Sequence[str]) -> None:
    """Raise KilnError if `spec` has bounds or a tensor for an input that is not among `known`."""
    key = {RandomInput: "inputs", TensorInput: "tensors"}.get(type(spec))
    for name in getattr(spec, key) if key else ():
        if name not in known:
            raise KilnError(f"golden.inputs: no input is called '{name}', there are: {', '.join(known)}")


def _with_bounds_of(spec: RandomInput | NormalInput, name: str) -> RandomInput | NormalInput:
    """`spec` with the bounds that it has for the input `name` in place of the general ones."""
    if not isinstance(spec, RandomInput) or name not in spec.inputs:
        return spec
    return spec.model_copy(update=spec.inputs[name].model_dump(exclude_none=True))


def with_content(
    case: SpecialCase, entries: Sequence[PortRecord], tensors: Sequence[Array]
) -> list[Array] | None:
    """`tensors` with the contents that `case`, an entry of special_cases, defines for inputs.

    None where a content comes from a file and has another type or shape than the input.
    """
    result = list(tensors)
    for condition in case.conditions:
        for index, (entry, tensor) in enumerate(zip(entries, tensors, strict=True)):
            if entry.name != condition.input:
                continue
            if not isinstance(condition.value, FileSource):
                result[index] = np.full_like(tensor, condition.value == "ones")
                continue
            content, _ = _load(condition.value)
            if content.dtype != tensor.dtype or content.shape != tensor.shape:
                return None
            result[index] = content
    return result


def fixed_shapes(
    spec: GoldenInput, entries: Sequence[PortRecord], preprocess: Preprocess | None
) -> dict[str, tuple[int, ...]]:
    """Shapes, by input name, of the photograph or the tensors of a set of kind image or tensors."""
    if isinstance(spec, TensorInput):
        return {entry.name: _load(_source(spec, entry))[0].shape for entry in entries}
    if not isinstance(spec, ImageInput):
        return {}
    index, how = _image_input(entries, preprocess)
    return {entries[index].name: _image(spec, entries[index], how).shape}


def set_names(specs: Sequence[GoldenInput]) -> list[str]:
    """A short, unique stem of file names for each set."""
    names: list[str] = []
    for spec in specs:
        stem = f"{spec.kind}_{spec.seed}" if isinstance(spec, DRAWN) else spec.kind
        names.append(stem if stem not in names else f"{stem}_{len(names)}")
    return names


def _draw(spec: RandomInput | NormalInput, entry: PortRecord, generator: np.random.Generator) -> Array:
    """Random values of one input; uniform values are computed from the generator's 53-bit fractions."""
    if entry.element:
        kind, drawn = stored_ports.kind_of(entry.element), {"element": None, "dtype": "float32"}
        values = _draw(stored_ports.bounded(kind, spec), entry.model_copy(update=drawn), generator)
        return stored_ports.stored(stored_ports.element(values, kind), kind)
    dtype, shape = np.dtype(entry.dtype), tuple(entry.shape)
    if isinstance(spec, NormalInput):
        values = generator.normal(spec.mean, spec.std, shape)
    elif dtype.kind == "f":
        low, high = _float_or(spec.low, -1.0), _float_or(spec.high, 1.0)
        values = low + (high - low) * generator.random(shape)
    elif dtype.kind == "b":
        return np.asarray(generator.random(shape) < 0.5)
    else:
        info = np.iinfo(dtype.str)
        # Wide integers are mostly indices or lengths: without bounds only 0 and 1 are drawn.
        low, high = (info.min, info.max) if dtype.itemsize <= 2 else (0, 1)
        low, high = _float_or(spec.low, low), _float_or(spec.high, high)
        values = np.floor(low + (high - low + 1) * generator.random(shape))
    if dtype.kind in "iu":
        info = np.iinfo(dtype.str)
        values = np.clip(np.rint(values), info.min, info.max)
    return np.asarray(values).astype(dtype)  # of a scalar input, too


def _float_or(value: float | None, default: float) -> float:
    return float(default if value is None else value)


def _image_input(entries: Sequence[PortRecord], preprocess: Preprocess | None) -> tuple[int, Preprocess]:
    """The position of the input that is made from the photograph, and the preprocessing."""
    if preprocess is None:
        raise KilnError(
            "golden.inputs: kind 'image' needs the model's 'preprocess'; or use kind 'random' or 'tensors'"
        )
    names = [entry.name for entry in entries]
    name = preprocess.input or (names[0] if len(names) == 1 else None)
    if name is None:
        raise KilnError(f"preprocess: key 'input' is missing; the inputs of the model are {', '.join(names)}")
    if name not in names:
        known = choices(name, names)
        raise KilnError(f"preprocess.input: '{name}' is not an input of the model{known}")
    return names.index(name), preprocess


def check_preprocess(entries: Sequence[PortRecord], preprocess: Preprocess | None) -> None:
    """Raise KilnError if no image can become an input of the model by `preprocess`; `entries`: its inputs."""
    if preprocess is None:
        return
    index, how = _image_input(entries, preprocess)
    entry = entries[index]
    (height, width), channels = how.size, len(how.channels)
    input_shape = [1, channels, height, width] if how.layout == "NCHW" else [1, height, width, channels]
    pairs = zip(input_shape, entry.shape, strict=False)
    if len(entry.shape) != 4 or any(isinstance(size, int) and size != one for one, size in pairs):
        shape = ", ".join(str(size) for size in entry.shape)
        raise KilnError(
            f"preprocess: size, channels and layout make {input_shape}, but input '{entry.name}' is "
            f"[{shape}]: make them agree, or remove the key"
        )


def _image_set(spec: ImageInput, entries: Sequence[PortRecord], preprocess: Preprocess | None) -> list[Array]:
    index, how = _image_input(entries, preprocess)
    generator = np.random.default_rng(0)
    uniform = RandomInput(kind="random", seed=0)
    return [
        _checked_tensor(_image(spec, entry, how), entry, "the preprocessed photograph")
        if position == index
        else _draw(uniform, entry, generator)
        for position, entry in enumerate(entries)
    ]


def _image(spec: ImageInput, entry: PortRecord, settings: Preprocess) -> Array:
    """The photograph of `spec`, cropped and rotated, then preprocessed for the model."""
    from kiln.sources import fetch, image

    pixels = image.load_image(fetch(spec.source), spec.crop, spec.rotate)
    pair = (entry.quant.scale, entry.quant.zero_point) if entry.quant else None
    return np.asarray(image.preprocess(pixels, settings, entry.dtype, pair))


def _tensor_from_file(spec: TensorInput, entry: PortRecord) -> Array:
    """The tensor of `spec` for the input `entry`. Raises KilnError if type or shape differ."""
    tensor, path = _load(_source(spec, entry))
    return _checked_tensor(tensor, entry, str(path))


def _source(spec: TensorInput, entry: PortRecord) -> Source:
    """The source of the tensor for the input `entry`. Raises KilnError if `spec` has none."""
    if entry.name not in spec.tensors:
        raise KilnError(f"golden.inputs: kind 'tensors' gives no tensor for input '{entry.name}'")
    return spec.tensors[entry.name]


def _load(source: Source) -> tuple[Array, Path]:
    """The tensor of a .npy file, and the path of that file."""
    from kiln.sources import fetch
    from kiln.sources.npy import load_npy

    path: Path = fetch(source)
    return load_npy(path), path


def _checked_tensor(tensor: Array, entry: PortRecord, description: str) -> Array:
    """`tensor`, called `description` in errors. Raises KilnError for a type or shape other than `entry`'s."""
    if tensor.dtype != np.dtype(entry.dtype) or list(tensor.shape) != list(entry.shape):
        raise KilnError(
            f"{description} is {tensor.dtype}{list(tensor.shape)}, but input '{entry.name}' is "
            f"{entry.dtype}{list(entry.shape)}"
        )
    return tensor
