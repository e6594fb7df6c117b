"""The type of NumPy arrays of any element type and shape."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
