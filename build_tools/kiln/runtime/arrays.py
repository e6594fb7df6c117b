"""Python values as arrays, and arrays as tensors of the C library."""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Collection, Mapping, Sequence
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
        if hasattr(value, "is_neg") and value.is_neg():  # such as z.conj().imag, whose memory has z.imag
            raise KilnError(
                f"{name}: its memory has the negated values, which DLPack does not say: tensor.resolve_neg()"
            )
        try:
            array = np.from_dlpack(value)
        except Exception as error:  # whatever the other library raises
            raise KilnError(f"{name}: a DLPack tensor of {type(value).__name__}: {error}") from None
    else:
        try:
            array = _converted(value, dtype)
        except Exception as error:  # NumPy's, or of the value's own conversion
            raise KilnError(f"{name} of type {type(value).__name__}: {error}") from None
    try:
        structs.element_type(array.dtype)
    except KilnError as error:
        raise KilnError(f"{name}: {error}; {dtype} is expected") from None
    return array


def contiguous(value: Any, dtype: np.dtype[np.generic], name: str) -> Tensor:
    """`as_array` of the input `name`, copied if its elements do not lie one after the other."""
    if type(value) is np.ndarray and value.dtype == dtype and value.flags.c_contiguous:
        return value
    array = as_array(value, dtype, f"input '{name}'")
    return np.ascontiguousarray(array).reshape(array.shape)


def _converted(value: Any, dtype: np.dtype[np.generic]) -> Tensor:
    """A new array of `dtype` with the numbers of `value`; real numbers are rounded to a `dtype` of them.

    Raises TypeError for what are not numbers, and ValueError for a number that `dtype` does not have: NumPy
    would make 1 of 1.7, 44 of 300 and infinity of 1e300.
    """
    plain = np.asarray(value)
    # NumPy would make None, texts such as "nan", and dates numbers.
    no_numbers = plain.dtype.kind in "USO" and any(isinstance(element, _NO_NUMBERS) for element in plain.flat)
    if no_numbers or plain.dtype.kind in "cmM":
        raise TypeError("numbers are expected" if plain.dtype.kind != "c" else "real numbers are expected")
    with np.errstate(all="ignore"):
        array: Tensor = np.asarray(plain, dtype)
        exact = dtype.kind in "biu"
        lost = array != plain if exact else np.isinf(array) & (np.abs(plain) != np.inf)
    if lost.any():
        first = plain.reshape(-1)[np.flatnonzero(lost)[0]]
        raise ValueError(f"{first} is not a number of type {dtype}")
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


def with_given(outputs: Sequence[Tensor], out: Any, infos: Sequence[TensorInfo], model: str) -> list[Tensor]:
    """`outputs` of a model, with the arrays of the dictionary `out` in place of those that it names.

    Raises KilnError for a name that is none of `infos`, and for memory into which a run cannot write.
    """
    given = dict(by_name(out, f"{model}: out"))
    arrays = []
    for info, array in zip(infos, outputs, strict=True):
        if info.name in given:
            array = as_output(given.pop(info.name), info.dtype, f"output '{info.name}'")
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise KilnError(f"{model}: out['{info.name}'] must be contiguous and writeable")
        arrays.append(array)
    if given:
        names = ", ".join(info.name for info in infos)
        raise KilnError(f"{model}: no output '{next(iter(given))}'; the outputs are {names}")
    return arrays


def sizes_in_order(sizes: Mapping[str, Any], names: Collection[str]) -> list[int]:
    """The sizes of the dimensions `names`, in their order. Raises KilnError if one is missing or invalid."""
    known = f"its dimensions are {', '.join(names)}" if names else "all its sizes are fixed"
    unknown = sorted(set(sizes).difference(names))
    if unknown:
        raise KilnError(f"plan: the model has no dimension '{unknown[0]}'; {known}")
    missing = [name for name in names if name not in sizes]
    if missing:
        raise KilnError(f"plan: no size of dimension '{missing[0]}' is given; {known}")
    return [_size(sizes[name], name) for name in names]


def _size(value: Any, name: str) -> int:
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
