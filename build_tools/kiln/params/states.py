"""The values that a model keeps from run to run, as interface.json describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


def initial_value(entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    """The first value of an entry of `states` in interface.json, as an array of its type and shape."""
    value = np.asarray(entry["initial"]).astype(np.dtype(entry["dtype"]))
    full: npt.NDArray[Any] = np.empty(tuple(entry["shape"]), value.dtype)
    full[...] = value
    return full


def with_states(interface: Mapping[str, Any]) -> dict[str, Any]:
    """interface.json with the kept values among inputs and outputs, as the imported function has them."""
    kept_ports = interface.get("states") or []
    return {**interface, **{side: [*interface[side], *kept_ports] for side in ("inputs", "outputs")}}
