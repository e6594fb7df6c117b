"""Tensors in a file, and modules with their tensors: every type, any name, and damaged files."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
from kiln.errors import KilnError
from kiln.params import store, tensors
from tvm import relax

TYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64", ml_dtypes.bfloat16,
]  # fmt: skip


def test_every_type_comes_back(tmp_path: Path) -> None:
    given = {str(np.dtype(kind)): np.arange(6).reshape(2, 3).astype(kind).T for kind in TYPES}
    given["none"] = np.zeros((0, 4), np.float32)
    given["scalar"] = np.array(3.5, np.float32)
    tensors.save(given, tmp_path / "t")
    arrays = tensors.load(tmp_path / "t")
    assert set(arrays) == set(given)
    for name, value in arrays.items():
        assert value.dtype == given[name].dtype and value.shape == given[name].shape, name
        np.testing.assert_array_equal(value, given[name])


def test_damaged_content(tmp_path: Path) -> None:
    path = tmp_path / "t"
    tensors.save({"a": np.ones(4, np.float32)}, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(safetensors.SafetensorError):
        tensors.load(path)
    with pytest.raises(KilnError, match=r"missing/t: cannot write 4 bytes: .*No such file or directory"):
        tensors.save({"a": np.ones(1, np.float32)}, tmp_path / "missing" / "t")


def test_input_with_the_name_of_a_stored_tensor(tmp_path: Path) -> None:
    given = relax.Var("p0", relax.TensorType([2, 2], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [given], attrs={"num_input": 1}):
        with builder.dataflow():
            ones = relax.const(np.ones((2, 2), np.float32))
            result = builder.emit_output(relax.op.add(given, ones))
        builder.emit_func_output(result)
    store.save(builder.get(), tmp_path)
    main = store.load(tmp_path)["main"]
    assert [parameter.name for parameter in main.params] == ["p0"]
    _, found = store.split(store.load(tmp_path))
    np.testing.assert_array_equal(found["p0"], np.ones((2, 2), np.float32))


def test_tensors_are_not_copied_all_at_once(tmp_path: Path) -> None:
    """Files of hundreds of megabytes took eight times their size."""
    given = relax.Var("x", relax.TensorType([1024, 256], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [given], attrs={"num_input": 1}):
        with builder.dataflow():
            result = given
            for number in range(8):
                weight = np.full((1024, 256), number, np.float32)
                result = builder.emit(relax.op.add(result, relax.const(weight)))
            result = builder.emit_output(result)
        builder.emit_func_output(result)
    module = builder.get()
    tracemalloc.start()
    try:
        store.save(module, tmp_path)
        _, most_saving = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        store.load(tmp_path)
        _, most_loading = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "params.safetensors").stat().st_size > 8 * weight.nbytes
    assert max(most_saving, most_loading) < 3 * weight.nbytes
