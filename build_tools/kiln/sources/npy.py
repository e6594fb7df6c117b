"""Reads one tensor from a file in NumPy's format, which is untrusted input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kiln.errors import KilnError


def load_npy(path: Path) -> npt.NDArray[Any]:
    """The tensor in a .npy file. Raises KilnError where it is anything else, or shorter than it says.

    The file is mapped before it is copied, so that memory is taken for what is there, not for what its head
    claims; objects, which would have to be unpickled, are refused.
    """
    try:
        with np.errstate(
            over="ignore"
        ):  # a product of sizes beyond 64 bits is refused after it wrapped around
            return np.array(np.lib.format.open_memmap(path, mode="r"))
    except Exception as error:  # its head is parsed as Python, which raises many kinds
        raise KilnError(f"{path}: not a .npy tensor: {error}") from error
