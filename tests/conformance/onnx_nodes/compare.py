"""Compares results of a node test with the expected ones."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx

from .cases import Array, Case


def stored(value: Array) -> Array:
    """An array in the type in which Kiln stores its elements: bytes for types of fewer than 9 bits."""
    if value.dtype.name == "bfloat16":
        return value.view("uint16")
    if value.dtype.itemsize > 1 or value.dtype.name in ("bool", "int8", "uint8"):
        return value
    if "int" in value.dtype.name:
        return value.astype("uint8" if value.dtype.name.startswith("u") else "int8")
    return value.view("uint8")


def compare_node(case: Case, found: Sequence[Array]) -> str:
    """How the results of a node test differ from the expected ones; empty if they agree."""
    for index, (ours, theirs) in enumerate(zip(found, case.outputs, strict=True)):
        reason = difference(ours, theirs, case)
        if reason:
            return f"output {index}: {reason}"
    return ""


def _has_halves(case: Case) -> bool:
    """Whether an input or a constant of the file is float16."""
    weights = case.model.graph.initializer
    halves_are_inputs = any(value is not None and value.dtype == np.float16 for value in case.inputs)
    return halves_are_inputs or any(weight.data_type == onnx.TensorProto.FLOAT16 for weight in weights)


def difference(ours: Array, theirs: Array | None, case: Case) -> str:
    """How a result differs from the expected one; empty if it agrees, within the tolerance of ONNX's test."""
    if theirs is None:
        return "no tensor is expected"
    is_bfloat16 = theirs.dtype.name == "bfloat16"
    theirs = stored(theirs)
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{ours.dtype}{list(ours.shape)}, expected {theirs.dtype}{list(theirs.shape)}"
    if is_bfloat16:
        ours, theirs = (value.view(ml_dtypes.bfloat16) for value in (ours, theirs))
    if ours.dtype.kind in "iu" and ours.dtype.itemsize == 1 and _has_halves(case):
        differ = np.abs(ours.astype("int32") - theirs.astype("int32")) > 1  # scales were multiplied in halves
    elif ours.dtype.kind in "biu":
        differ = ours != theirs
    else:
        a, b = ours.astype("float64"), theirs.astype("float64")
        # Half floats: a few units in the last place, as functions round each of their steps.
        relative = case.relative if ours.dtype.itemsize > 2 else 2.0 ** (-6 if ours.dtype.kind == "V" else -8)
        # Expected values are rounded too: zeros among large ones are noise.
        finite = np.abs(b[np.isfinite(b)])
        absolute = max(case.absolute, 2.0**-22 * float(finite.max(initial=0.0)))
        differ = ~np.isclose(a, b, rtol=relative, atol=absolute, equal_nan=True)
    if not differ.any():
        return ""
    where = tuple(int(axis[0]) for axis in np.nonzero(np.atleast_1d(differ)))
    got, want = np.atleast_1d(ours)[where], np.atleast_1d(theirs)[where]
    return f"{int(differ.sum())} of {differ.size} elements, at {list(where)} {got}, expected {want}"
