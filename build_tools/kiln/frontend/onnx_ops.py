"""ONNX operators whose import by TVM 0.27 is replaced, each for the reason in its docstring.

A converter gets (inputs, attributes) and returns a Relax expression, or None to leave the node to TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import ir, relax

Converter = Callable[[Sequence[Any], dict[str, Any]], Any]


def _constant(value: Any) -> np.ndarray[Any, Any] | None:
    return value.value.numpy() if isinstance(value, ir.GenericConst) else None


def _input(inputs: Sequence[Any], index: int) -> Any:
    return inputs[index] if index < len(inputs) else None


def clip(inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """Clip with bounds known at build time → one relax.clip.

    TVM 0.27 emits two opaque TIR functions (topi.maximum, topi.minimum), which no graph pass can read, so
    that ReLU6 could be neither recognised nor fused by rule.
    """
    bounds = []
    for index, key, default in ((1, "min", -np.inf), (2, "max", np.inf)):
        given = _input(inputs, index)
        if given is None:
            bounds.append(float(attributes.get(key, default)))
            continue
        value = _constant(given)
        if value is None:
            return None
        # A NaN bound is no bound, as in ONNX Runtime.
        bounds.append(default if np.isnan(value.item()) else float(value.item()))
    low, high = bounds
    dtype = str(inputs[0].ty.dtype)
    if np.issubdtype(np.dtype(dtype), np.integer):
        info = np.iinfo(dtype)
        low, high = int(max(low, info.min)), int(min(high, info.max))
    elif np.isinf(low) and np.isinf(high):
        return inputs[0]
    elif low == 0 and np.isinf(high):
        return relax.op.nn.relu(inputs[0])
    return relax.op.clip(inputs[0], low, high)


def pad(inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """Constant padding with amounts known at build time → relax.nn.pad.

    TVM 0.27 emits an opaque TIR function, which a graph pass cannot merge into the convolution that follows.
    """
    if attributes.get("mode", b"constant") != b"constant" or _input(inputs, 3) is not None:
        return None
    amounts = attributes.get("pads") if _input(inputs, 1) is None else _constant(inputs[1])
    value = attributes.get("value", 0.0) if _input(inputs, 2) is None else _constant(inputs[2])
    if amounts is None or value is None:
        return None
    amounts = np.asarray(amounts).reshape(2, -1)
    if (amounts < 0).any():
        return None
    widths = [int(width) for width in amounts.T.reshape(-1)]
    if not any(widths):
        return inputs[0]
    return relax.op.nn.pad(inputs[0], widths, pad_mode="constant", pad_value=float(np.asarray(value).item()))


def tile(inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """Tile with constant repeats → relax.tile; TVM 0.27 emits an opaque TIR function."""
    repeats = _constant(_input(inputs, 1))
    return None if repeats is None else relax.op.tile(inputs[0], [int(count) for count in repeats])


OVERRIDES: dict[str, Converter] = {"Clip": clip, "Pad": pad, "Tile": tile}
