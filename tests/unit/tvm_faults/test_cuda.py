"""Faults of TVM 0.27 that the way to GPUs works around: a test that fails says one is gone.

When one fails, remove the workaround that its docstring names, and the test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tvm
from kiln.config.target import Cuda
from kiln.emit.cuda_objects import source_of
from kiln.kernels.gpu import dlight, tf32
from tvm import te, tirx, topi

ONE = Cuda(archs=["sm_90"], ptx=False)


def test_the_bits_of_a_constant_are_no_c() -> None:
    """lower/gpu.py rounds by nearbyint, where math.round_small would need such a constant."""
    x = te.placeholder((64,), "float32", "x")
    bits = tirx.IntImm("int32", 0x4B400000)
    y = te.compute((64,), lambda i: x[i] + tirx.reinterpret("float32", bits), name="y")
    (launch,) = dlight.lower(te.create_prim_func([x, y]), dlight.tvm_target(ONE)).launches
    assert "(&(1262485504))" in source_of({"kernel": launch.func.with_attr("global_symbol", "kernel")}, ONE)


def test_a_product_of_open_size_mixes_widths_of_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    """kernels/gpu/short_indices.py makes all indices of such a function 32 bits wide first."""
    rows = te.var("n", "int64")
    a, b = te.placeholder((rows, 64), "float32", "a"), te.placeholder((64, 32), "float32", "b")
    func = te.create_prim_func([a, b, topi.matmul(a, b)])

    def most(_size: Any) -> int:
        return 64

    assert dlight.lower(func, dlight.tvm_target(ONE), most).launches
    monkeypatch.setattr(dlight, "with_short_indices", lambda function, _size: function)
    with pytest.raises(tvm.error.InternalError, match="previous index for the same buffer"):
        dlight.lower(func, dlight.tvm_target(ONE), most)


def test_tvm_has_no_fragments_of_every_type() -> None:
    """kernels/gpu/wmma.py has them; TVM's take half a minute to import: its text is searched."""
    text = (Path(tvm.__file__).parent / "s_tir" / "tensor_intrin" / "cuda.py").read_text()
    assert "get_wmma_load_intrin" in text
    assert "bfloat16" not in text and "tf32" not in text.lower()


def test_fragments_of_float32_are_no_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """kernels/gpu/tensor_cores.py writes them as half, emit/cuda_objects.py makes tf32 of that."""
    a, b = (te.placeholder((16, 16), "float32", name) for name in "ab")
    func = tf32.rounded(te.create_prim_func([a, b, topi.matmul(a, b)]))

    def source() -> str:
        (launch,) = dlight.lower(func, dlight.tvm_target(ONE)).launches
        return source_of({"kernel": launch.func.with_attr("global_symbol", "kernel")}, ONE)

    assert "wmma::precision::tf32" in source()
    monkeypatch.setattr(dlight, "with_tf32_fragments", lambda function: function)
    with pytest.raises(tvm.error.InternalError, match="Matrix_a and matrix_b only support"):
        source()


def _lowered_without(monkeypatch: pytest.MonkeyPatch, name: str, shape: tuple[int, ...]) -> str:
    """CUDA C of the sums of the rows of uint8 or float32 numbers, without one of Kiln's functions."""
    monkeypatch.setattr(dlight, name, lambda function: function)
    x = te.placeholder(shape, "uint8" if len(shape) == 2 else "float32", "x")
    func = te.create_prim_func([x, topi.max(x, -1)] if len(shape) == 2 else [x, topi.sum(x, -1)])
    (launch,) = dlight.lower(func, dlight.tvm_target(ONE)).launches
    return source_of({"kernel": launch.func.with_attr("global_symbol", "kernel")}, ONE)


def test_a_single_condition_of_a_shared_sum_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """kernels/gpu/write_back.py doubles it: 16 lines of threads have 5 results."""
    text = _lowered_without(monkeypatch, "with_joined_conditions", (1, 5, 64))
    stored = text[text.rindex("if (") :]
    assert "threadIdx.x) == 0" in stored and "< 5" not in stored


def test_threads_of_a_warp_share_memory_without_a_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """kernels/gpu/warp_masks.py refuses such a kernel, kernels/gpu/extremes.py needs none."""
    text = _lowered_without(monkeypatch, "whole_warps", (2, 100))
    assert "volatile uchar*" in text and "__syncwarp" not in text
