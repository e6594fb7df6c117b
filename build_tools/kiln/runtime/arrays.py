"""Python values as arrays, and arrays as tensors of the C library."""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kiln.errors import KilnError
from kiln.runtime import structs
from kiln.runtime.records import TensorInfo

Tensor = npt.NDArray[Any]

_NO_NUMBERS = (str, bytes, type(None))


def as_array(value: Any, dtype: np.dtype[np.generic], name: str = "an input") -> Tensor:
    """The array over an array or a DLPack tensor in CPU memory; for other values a new array of `dtype`.

    Raises KilnError that begins with `name` for a value of another kind.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise KilnError(f"{name}: a masked array; give the masked elements values first: array.filled(0)")
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "__dlpack__"):
        try:
            array = np.from_dlpack(value)
        except Exception as error:  # whatever the other library raises
            raise KilnError(f"{name}: a DLPack tensor of {type(value).__name__}: {error}") from None
    else:
        try:
            plain = np.asarray(value)
            # NumPy would make None, and texts such as "nan", numbers.
            if plain.dtype.kind in "USO" and any(isinstance(one, _NO_NUMBERS) for one in plain.flat):
                raise TypeError("numbers are expected")
            array = np.asarray(value, dtype)
        except Exception as error:  # NumPy's, or of the value's own conversion
            raise KilnError(f"{name} of type {type(value).__name__}: {error}") from None
    try:
        structs.element_type(array.dtype)
    except KilnError as error:
        raise KilnError(f"{name}: {error}; {dtype} is expected") from None
    return array


def by_name(values: Any, subject: str) -> Mapping[str, Any]:
    """`values`, if it is a dictionary. Raises KilnError that begins with `subject` for anything else."""
    if not isinstance(values, Mapping):
        raise KilnError(f"{subject} of type {type(values).__name__}, a dictionary by name is expected")
    return values


def as_output(value: Any, dtype: np.dtype[np.generic], name: str) -> Tensor:
    """The array over an array or a DLPack tensor into which a run writes. Raises KilnError as `as_array`.

    The first version of DLPack does not say whether a tensor may be written to, and NumPy assumes the worst;
    here the caller says it.
    """
    if not (isinstance(value, np.ndarray) or hasattr(value, "__dlpack__")):
        expected = "an array or a DLPack tensor is expected, into which the run writes"
        raise KilnError(f"{name} of type {type(value).__name__}: {expected}")
    array = as_array(value, dtype, name)
    if isinstance(value, np.ndarray) or array.flags.writeable or not array.flags.c_contiguous:
        return array
    try:
        value.__dlpack__(max_version=(1, 0))
    except TypeError:  # the first version
        memory: Any = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
        memory.owner = array
        over: Tensor = np.ndarray(array.shape, array.dtype, buffer=memory)
        return over
    return array


def as_size(value: Any, name: str) -> int:
    """The size of a dimension, called `name`. Raises KilnError for what is not one."""
    try:
        size = operator.index(value)
    except TypeError:
        size = -1
    if not 0 <= size < 2**63:
        raise KilnError(f"plan: {name}={value!r}: a whole number from 0 on is expected")
    return size


def of_shape(shape: Any, dtype: np.dtype[np.generic], name: str) -> Tensor:
    """An array of a shape whose elements take no memory. Raises KilnError for an invalid shape."""
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        sizes = (-1,)
    if isinstance(shape, str) or any(not 0 <= size < 2**63 for size in sizes):
        raise KilnError(f"plan: {name}: {shape!r} is not a shape, such as (1, 64)")
    try:
        return np.broadcast_to(np.empty((), dtype), sizes)
    except ValueError as error:
        raise KilnError(f"plan: {name}: {shape!r}: {error}") from None


def tensors_over(arrays: Sequence[Tensor]) -> Any:
    """A C array of DLTensor over `arrays`."""
    return (structs.DLTensor * max(len(arrays), 1))(*(structs.tensor_of(array) for array in arrays))


def counted_part(array: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The elements that a run has written to the output `array`: the first ones, as a view of `shape`."""
    return array if array.shape == shape else array.reshape(-1)[: math.prod(shape)].reshape(shape)


def aligned_bytes(size: int) -> Tensor:
    """`size` bytes at a multiple of 64; the system provides their pages when they are first written."""
    memory = np.empty(size + 63, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]


def tensor_infos(tensors: Any, count: int, ports: Sequence[Mapping[str, Any]]) -> tuple[TensorInfo, ...]:
    """Descriptions of `count` tensors of the model; the manifest has their sizes as expressions."""
    return tuple(
        TensorInfo(
            tensor.name.decode(), structs.numpy_type(tensor.dtype), tuple(port["shape"]),
            tensor.scale, tensor.zero_point,
        )
        for tensor, port in zip(tensors[:count], ports, strict=True)
    )  # fmt: skip
