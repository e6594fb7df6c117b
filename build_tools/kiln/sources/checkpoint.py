"""Reads the tensors of a PyTorch checkpoint without PyTorch, and without running code in its pickles."""

from __future__ import annotations

import io
import math
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from kiln.errors import KilnError

# First value of a file that torch.save wrote before PyTorch 1.6, and the version of that format.
_MAGIC = 0x1950A86A20F9469CFC6C
_VERSION = 1001

_DTYPES = {"FloatStorage": "<f4", "DoubleStorage": "<f8", "LongStorage": "<i8", "IntStorage": "<i4"}

# Exceptions of pickle and of this module for content that is not a checkpoint.
_DAMAGED = (
    pickle.UnpicklingError, ValueError, TypeError, EOFError, LookupError, AttributeError, OverflowError,
    MemoryError,
)  # fmt: skip


class _Storage:
    """A block of numbers that tensors are views of; the file contains its bytes after the pickles."""

    def __init__(self, dtype: str, count: int) -> None:
        self.dtype, self.count = dtype, count
        self.values: npt.NDArray[Any] | None = None


class _Tensor:
    """A tensor's storage, offset of the first element, shape and strides, in elements."""

    def __init__(
        self, storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides

    def array(self) -> npt.NDArray[Any]:
        """The tensor's elements, contiguous. Raises ValueError if they exceed the storage."""
        values = self.storage.values
        assert values is not None
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        if min(self.shape, default=1) < 1 or min(self.strides, default=1) < 0 or last >= values.size:
            raise ValueError(f"a tensor of shape {self.shape} reaches beyond its storage")
        if math.prod(self.shape) > values.size:  # with strides of 0 a few bytes would fill the memory
            raise ValueError(f"a tensor of shape {self.shape} has more elements than its storage")
        strides = [step * values.itemsize for step in self.strides]
        view = np.lib.stride_tricks.as_strided(values[self.offset :], self.shape, strides, writeable=False)
        return np.ascontiguousarray(view)


def _rebuild(storage: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> _Tensor:
    return _Tensor(storage, offset, shape, strides)


class _Unpickler(pickle.Unpickler):
    """Creates ordered dicts and tensors only; any other class or function in the pickle is an error."""

    def __init__(self, stream: BinaryIO, storages: dict[str, _Storage]) -> None:
        super().__init__(stream)
        self._storages = storages

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if module == "torch" and name in _DTYPES:
            return _storage_class(name)
        raise pickle.UnpicklingError(f"'{module}.{name}' is not a part of a tensor")

    def persistent_load(self, pid: Any) -> _Storage:
        kind, make, key, _device, count, *_ = pid
        if kind != "storage":
            raise pickle.UnpicklingError(f"'{kind}' is not a storage")
        if key not in self._storages:
            self._storages[key] = make(count)
        return self._storages[key]


def _storage_class(name: str) -> Callable[[int], _Storage]:
    return lambda count: _Storage(_DTYPES[name], count)


def read_checkpoint(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read the tensors, by name, of a checkpoint in the format used before PyTorch 1.6.

    Raises KilnError naming the file if it is not such a checkpoint or contains other objects than tensors.
    """
    try:
        return _read(io.BytesIO(path.read_bytes()))
    except OSError as error:
        raise KilnError(f"{path}: cannot read: {error.strerror}") from error
    except _DAMAGED as error:
        raise KilnError(f"{path}: not a PyTorch checkpoint of the older format: {error}") from error


def _read(stream: BinaryIO) -> dict[str, npt.NDArray[Any]]:
    storages: dict[str, _Storage] = {}

    def load() -> Any:
        return _Unpickler(stream, storages).load()

    if load() != _MAGIC or load() != _VERSION:
        raise ValueError("its first values are not those of one")
    if load().get("little_endian") is not True:
        raise ValueError("its numbers are not little-endian")
    state = load()
    for key in load():
        storage = storages[key]
        count = int.from_bytes(stream.read(8), "little")
        data = stream.read(storage.count * np.dtype(storage.dtype).itemsize)
        if count != storage.count:
            raise ValueError(f"storage {key} has {count} elements, {storage.count} expected")
        storage.values = np.frombuffer(data, storage.dtype, storage.count)
    return {str(name): tensor.array() for name, tensor in state.items()}
