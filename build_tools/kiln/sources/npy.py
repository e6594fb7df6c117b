"""Reads one tensor from a .npy file, which is untrusted input."""

from __future__ import annotations

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
    except Exception as error:  # the header is parsed as Python, which raises many kinds of exceptions
        raise KilnError(f"{path}: not a .npy tensor: {error}") from error
