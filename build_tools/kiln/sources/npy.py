"""Reads tensors from .npy and .npz files, which are untrusted input."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kiln.errors import KilnError


def load_npy(path: Path) -> npt.NDArray[Any]:
    """Load the tensor in a .npy file. Raises KilnError if it is invalid or shorter than its header states.

    The file is mapped before it is copied, so that the memory used depends on the file's size, not on its
    header; arrays of objects, which would have to be unpickled, are rejected.
    """
    try:
        # Sizes whose product overflows 64 bits are rejected by NumPy, after the product wrapped around.
        with np.errstate(over="ignore"):
            return np.array(np.lib.format.open_memmap(path, mode="r"))
    except OSError as error:
        raise KilnError(f"{path}: {f'cannot read: {error.strerror}' if error.strerror else error}") from error
    except Exception as error:  # the header is parsed as Python, which raises many kinds of exceptions
        raise KilnError(f"{path}: not a .npy tensor: {error}") from error


def load_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Load all arrays of a .npz file, by name. Raises KilnError, with the array's name, for a damaged one.

    Arrays must hold numbers or booleans: Python objects would have to be unpickled, which runs code.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy"): _member(archive, name) for name in archive.namelist()}
    except zipfile.BadZipFile:
        with path.open("rb") as file:
            alone = file.read(6) == b"\x93NUMPY"
        reason = "it is not an archive of numpy.savez, or damaged"
        if alone:
            reason = "it is one array of numpy.save; numpy.savez(file, NAME=array) names its input"
    except OSError as error:
        raise KilnError(f"{path}: cannot read: {error.strerror or error}") from error
    except ValueError as error:
        reason = str(error)
    raise KilnError(f"{path}: not a .npz file of arrays: {reason}")


def _member(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    """An array in a .npz file. Raises ValueError, with the file's name, if it is not an array, or damaged."""
    array_name = name.removesuffix(".npy")
    if array_name == name:
        raise ValueError(f"its file '{name}' is not an array")
    try:
        with archive.open(name) as stream, np.errstate(over="ignore"):
            array: npt.NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    except Exception as error:  # of zipfile, zlib, and of the header, which is parsed as Python
        if "Object arrays" in str(error):
            raise ValueError(f"array '{array_name}' holds Python objects, allowed are numbers") from error
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"array '{array_name}' is damaged: {text}") from error
    if array.dtype.kind not in "biufc":
        raise ValueError(f"array '{array_name}' is of type {array.dtype}, allowed are numbers")
    return array
