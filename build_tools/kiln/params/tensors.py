"""Tensors by name in a safetensors file, without a copy of all of them in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
from safetensors.numpy import save_file

from kiln.errors import KilnError
from kiln.files import set_mode

Tensors = dict[str, npt.NDArray[Any]]


def save(tensors: Mapping[str, npt.NDArray[Any]], path: Path) -> None:
    """Write a safetensors file with `tensors`, which need not be contiguous; bfloat16 is among their types.

    Equal tensors make equal bytes. Raises KilnError where the file cannot be written.
    """
    dense = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    try:
        save_file(dense, path)
        with path.open("rb+") as stream:
            os.fsync(stream.fileno())
        set_mode(path)
    except (OSError, safetensors.SafetensorError) as error:
        size = sum(tensor.nbytes for tensor in dense.values())
        raise KilnError(f"{path}: cannot write {size} bytes: {error}") from error


def load(path: Path) -> Tensors:
    """Inverse of `save`. Raises OSError or safetensors.SafetensorError if the file is damaged or missing."""
    return dict(each(path))


def each(path: Path) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The tensors of a file with their names, read one after the other. Raises as `load` does."""
    with safetensors.safe_open(path, framework="numpy") as content:
        for name in content.keys():  # noqa: SIM118  # it is no dictionary
            yield name, content.get_tensor(name)
