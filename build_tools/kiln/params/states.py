"""The values that a model keeps from run to run, as interface.json describes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kiln.config.interface import Interface, PortRecord, StateRecord


def initial_value(state: StateRecord) -> npt.NDArray[Any]:
    """The value before the first run, as an array of its type and shape."""
    value = np.asarray(state.initial).astype(np.dtype(state.dtype))
    full: npt.NDArray[Any] = np.empty(tuple(state.shape), value.dtype)
    full[...] = value
    return full


def with_states(interface: Interface) -> Interface:
    """`interface` with the kept values after its inputs and outputs, as the imported function has them."""
    states = [
        PortRecord(name=state.name, c_name="", dtype=state.dtype, shape=list(state.shape))
        for state in interface.states
    ]
    sides = {"inputs": [*interface.inputs, *states], "outputs": [*interface.outputs, *states]}
    return interface.model_copy(update=sides)
