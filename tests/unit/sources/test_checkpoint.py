"""Checkpoints are read without PyTorch; a pickle that would run something is refused."""

from __future__ import annotations

import io
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.errors import KilnError
from kiln.sources.checkpoint import _MAGIC, read_checkpoint


class _Global:
    """Pickles as a reference to `module.name`, which need not exist here."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class _Call:
    def __init__(self, function: _Global, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments


class _Storage:
    def __init__(self, kind: str, key: str, count: int) -> None:
        self.kind, self.key, self.count = kind, key, count


class _Pickler(pickle._Pickler):  # the Python one: its output can be steered
    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, _Storage):
            return ("storage", _Global("torch", obj.kind), obj.key, "cpu", obj.count, None)
        return None

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, _Global):
            self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
        elif isinstance(obj, _Call):
            self.save(obj.function)
            self.save(tuple(obj.arguments))
            self.write(pickle.REDUCE)
        else:
            super().save(obj, save_persistent_id)


def checkpoint(state: Any, storages: dict[str, np.ndarray[Any, Any]], magic: int = _MAGIC) -> bytes:
    """A file in the format that torch.save wrote before PyTorch 1.6."""
    stream = io.BytesIO()
    header = {
        "protocol_version": 1001,
        "little_endian": True,
        "type_sizes": {"short": 2, "int": 4, "long": 4},
    }
    for value in (magic, 1001, header, state, list(storages)):
        _Pickler(stream, protocol=2).dump(value)
    for values in storages.values():
        stream.write(struct.pack("<q", values.size) + values.tobytes())
    return stream.getvalue()


def tensor(storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> _Call:
    rebuild = _Global("torch._utils", "_rebuild_tensor_v2")
    return _Call(rebuild, storage, offset, shape, strides, False, OrderedDict())


def test_views_of_storages(tmp_path: Path) -> None:
    values = np.arange(12, dtype="<f4")
    shared = _Storage("FloatStorage", "a", 12)
    state = OrderedDict(
        plain=tensor(shared, 0, (3, 4), (4, 1)),
        turned=tensor(shared, 4, (4, 2), (1, 4)),
        count=tensor(_Storage("LongStorage", "b", 1), 0, (), ()),
    )
    path = tmp_path / "x.pth"
    path.write_bytes(checkpoint(state, {"a": values, "b": np.array([7], "<i8")}))
    checkpoint_arrays = read_checkpoint(path)
    assert np.array_equal(checkpoint_arrays["plain"], values.reshape(3, 4))
    assert np.array_equal(checkpoint_arrays["turned"], values.reshape(3, 4)[1:].T)
    assert checkpoint_arrays["count"] == 7
    assert all(array.flags.c_contiguous for array in checkpoint_arrays.values())


def test_code_is_refused(tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    path = tmp_path / "x.pth"
    path.write_bytes(checkpoint({"a": _Call(_Global("os", "mkdir"), str(trap))}, {}))
    with pytest.raises(KilnError, match=r"'os\.mkdir' is not a part of a tensor"):
        read_checkpoint(path)
    assert not trap.exists()


@pytest.mark.parametrize(("shape", "strides"), [((3, 5), (5, 1)), ((2,), (-1,)), ((2, 2), (1000, 1))])
def test_tensors_beyond_their_storage_are_refused(
    shape: tuple[int, ...], strides: tuple[int, ...], tmp_path: Path
) -> None:
    state = {"a": tensor(_Storage("FloatStorage", "s", 12), 0, shape, strides)}
    path = tmp_path / "x.pth"
    path.write_bytes(checkpoint(state, {"s": np.zeros(12, "<f4")}))
    with pytest.raises(KilnError, match="reaches beyond its storage"):
        read_checkpoint(path)


def test_a_tensor_larger_than_its_storage_is_refused(tmp_path: Path) -> None:
    """Strides of 0: a file of some hundred bytes would take 4 TB of memory."""
    state = {"a": tensor(_Storage("FloatStorage", "s", 1), 0, (1 << 20, 1 << 20), (0, 0))}
    path = tmp_path / "x.pth"
    path.write_bytes(checkpoint(state, {"s": np.zeros(1, "<f4")}))
    with pytest.raises(KilnError, match="has more elements than its storage"):
        read_checkpoint(path)


def test_truncated_or_foreign_files(tmp_path: Path) -> None:
    whole = checkpoint(
        {"a": tensor(_Storage("FloatStorage", "s", 4), 0, (4,), (1,))}, {"s": np.zeros(4, "<f4")}
    )
    path = tmp_path / "x.pth"
    for content in (b"", b"no checkpoint", whole[:20], whole[:-3], checkpoint({}, {}, magic=1)):
        path.write_bytes(content)
        with pytest.raises(KilnError, match="not a PyTorch checkpoint of the older format"):
            read_checkpoint(path)
    with pytest.raises(KilnError, match="cannot read: No such file"):
        read_checkpoint(tmp_path / "none.pth")
