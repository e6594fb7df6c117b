"""Quantised products as kernels of Triton: matches, and exact results by Triton's interpreter."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kiln.byoc.triton import compiler
from kiln.sources.cuda_toolkit import cuda_toolkit
from kiln.sources.triton_wheel import triton_folder
from relaxed import const, module, run_by_tvm
from tvm import relax

from . import triton_cases
from .graphs import with_inputs_alone

Array = npt.NDArray[Any]
RANDOM = np.random.default_rng(31)


def _filters(*shape: int) -> Array:
    """Numbers of int8, the least and the greatest among them."""
    values = RANDOM.integers(-128, 128, shape).astype(np.int8)
    values.reshape(-1)[:6] = 127, -128, 127, -128, 0, 1
    return values


def _sums(x: Any, *shape: int, **attributes: Any) -> Any:
    filters = const(_filters(*shape), "int8")
    if len(shape) == 2:
        return relax.op.matmul(x, filters, out_dtype="int32")
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_dtype": "int32"}
    return relax.op.nn.conv2d(x, filters, **layouts, **attributes)


def _levels(
    sums: Any, columns: int, dtype: str, point: int, *, depth: int, shift: bool = False,
    limits: Sequence[float] = (), bias: bool = True, level: float = 1.0,
) -> Any:  # fmt: skip
    """Requantise sums over `depth` numbers, such that the levels span the whole range of `dtype`."""
    if bias:
        sums = relax.op.add(sums, const(RANDOM.integers(-5000, 5000, columns), "int32"))
    scale = (RANDOM.random(columns) + 0.5).astype(np.float32) / np.float32(60 * np.sqrt(depth))
    value = relax.op.multiply(relax.op.astype(sums, "float32"), const(scale))
    if shift:
        value = relax.op.add(value, const(RANDOM.standard_normal(columns, np.float32)))
    for function, limit in zip((relax.op.maximum, relax.op.minimum), limits, strict=False):
        value = function(value, const(limit))
    return relax.op.quantize(value, const(level), const(point, "int32"), 0, dtype)


def _padded(x: Any, value: float, *widths: int) -> Any:
    return relax.op.nn.pad(x, [0, 0, *widths, 0, 0], "constant", value)


# name → (shape and type of x, the graph, keys of the parts that become kernels of Triton)
CASES: dict[str, tuple[list[int], str, Callable[[Any], Any], list[str]]] = {
    "dense": (
        [2, 19, 45], "int8",
        lambda x: _levels(_sums(x, 45, 33), 33, "int8", -5, depth=45),
        ["dense_int8 2x19x45 45x33 bias"],
    ),
    "unsigned": (  # bias is needed for what x is moved by; padding is the zero point
        [2, 9, 8, 20], "uint8",
        lambda x: _levels(
            _sums(_padded(x, 117.0, 1, 0, 2, 1), 3, 3, 20, 40, strides=[2, 1]), 40, "uint8", 117, depth=180,
            bias=False, shift=True,
        ),
        ["conv2d_int8 2x9x8x20 3x3x20x40 s2x1 pad"],
    ),
    "clipped": (
        [1, 7, 9, 64], "int8",
        lambda x: _levels(
            _sums(x, 3, 3, 64, 24, dilation=[2, 1], padding=[2, 1, 2, 1]), 24, "uint8", 3, depth=576,
            limits=[0.25, 90.5],
        ),
        ["conv2d_int8 1x7x9x64 3x3x64x24 p2x1x2x1 d2x1 bias clip"],
    ),
    "rows": (  # few channels: rows of the window are runs of numbers
        [1, 11, 10, 3], "uint8",
        lambda x: _levels(
            _sums(x, 5, 5, 3, 16, strides=[2, 2], padding=[2, 2, 2, 2]), 16, "int8", -128, depth=75
        ),
        ["conv2d_int8 1x11x10x3 5x5x3x16 p2x2x2x2 s2x2 bias"],
    ),
    "parts": (  # few pixels and many channels: the sum over the depth is divided
        [1, 3, 3, 640], "uint8",
        lambda x: _levels(_sums(x, 3, 3, 640, 40, padding=[1, 1, 1, 1]), 40, "int8", 7, depth=5760),
        ["conv2d_int8 1x3x3x640 3x3x640x40 p1x1x1x1 bias"] * 2,
    ),
    "pointwise": (
        [1, 5, 5, 32], "int8",
        lambda x: _levels(_sums(x, 1, 1, 32, 48), 48, "int8", 0, depth=32, limits=[0.0]),
        ["conv2d_int8 1x5x5x32 1x1x32x48 bias clip"],
    ),
    "depthwise": (  # padding is the zero point
        [2, 9, 7, 20], "uint8",
        lambda x: _levels(
            _sums(_padded(x, 117.0, 1, 0, 2, 1), 3, 3, 1, 20, groups=20, strides=[2, 1]), 20, "uint8", 117,
            depth=9, limits=[0.5], bias=False,
        ),
        ["conv2d_int8 2x9x7x20 3x3x1x20 g20 s2x1 pad clip"],
    ),
    "depthwise and dilated": (
        [1, 8, 8, 64], "int8",
        lambda x: _levels(
            _sums(x, 5, 3, 1, 64, groups=64, dilation=[1, 2], padding=[2, 2, 2, 2]), 64, "int8", -7,
            depth=15, shift=True,
        ),
        ["conv2d_int8 1x8x8x64 5x3x1x64 g64 p2x2x2x2 d1x2 bias"],
    ),
}  # fmt: skip
# What Kiln's own kernels compute.
LEFT: dict[str, tuple[list[int], str, Callable[[Any], Any]]] = {
    "grouped": (
        [1, 6, 6, 32], "int8",
        lambda x: _levels(_sums(x, 3, 3, 16, 32, groups=2), 32, "int8", 0, depth=144),
    ),
    "not requantised": (
        [3, 16], "int8", lambda x: _levels(_sums(x, 16, 16), 16, "int8", 0, depth=16, level=0.5)
    ),
    "padded along channels": (
        [1, 6, 6, 16], "int8",
        lambda x: _levels(
            _sums(relax.op.nn.pad(x, [0, 0, 0, 0, 0, 0, 0, 8]), 3, 3, 24, 16), 16, "int8", 0, depth=216
        ),
    ),
}  # fmt: skip


def _case(shape: list[int], dtype: str, graph: Callable[[Any], Any]) -> Any:
    return with_inputs_alone(module([(shape, dtype)], graph))


def _keys(steps: Any) -> list[str]:
    return [kernel.external.key for kernel in steps.kernels if kernel.external is not None]


@pytest.mark.parametrize("name", list(CASES))
def test_quantised_products_are_matched(name: str) -> None:
    shape, dtype, graph, keys = CASES[name]
    steps = triton_cases.lowered(_case(shape, dtype, graph), "fp32")
    assert _keys(steps) == keys
    assert [kernel.symbol for kernel in steps.kernels if kernel.external is None] == []


@pytest.mark.parametrize("name", list(LEFT))
def test_what_the_template_does_not_compute_is_left(name: str) -> None:
    steps = triton_cases.lowered(_case(*LEFT[name]), "fp32")
    padded = [key for key in _keys(steps) if "pad" in key.split()]
    assert steps.kernels and not padded and len(_keys(steps)) == (name == "padded along channels")


@pytest.mark.heavy  # Triton's wheel is 280 MB
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_sums_and_levels_are_exact(tmp_path: Path, precision: str) -> None:
    interpreter = triton_cases.Interpreter(tmp_path)
    for name, (shape, dtype, graph, _) in CASES.items():
        mod = _case(shape, dtype, graph)
        info = np.iinfo(dtype)
        x = RANDOM.integers(info.min, info.max + 1, shape).astype(dtype)
        x.reshape(-1)[:4] = info.min, info.max, info.min, info.max
        (want,) = run_by_tvm(mod, [x])
        got = triton_cases.run(triton_cases.lowered(mod, precision), [x], {}, interpreter, None)
        assert len(np.unique(want)) > 60, f"{name}: a case with few levels shows little"
        np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.heavy
def test_large_tiles_use_the_integer_instructions_of_warp_groups(tmp_path: Path) -> None:
    """ptxas makes IGMMA of a tile of 64 rows for sm_90, with asynchronous copies and without spills."""
    types = {"x": "*i8", "w": "*i8", "bias": "*i32", "scale": "*fp32", "y": "*i8"}
    constants = {
        "batch": 1,
        "height": 14,
        "width": 14,
        "out_height": 14,
        "out_width": 14,
        "shift": None,
        "SPLIT": 1,
    }
    constants |= {
        "CHANNELS": 256,
        "COLUMNS": 256,
        "W_DEPTH": 2304,
        "FILTER_H": 3,
        "FILTER_W": 3,
        "PADDING": 0,
        "ZERO_POINT": 0,
    }
    constants |= {f"{name}_{axis}": 1 for name in ("STRIDE", "PAD", "DILATE") for axis in "HW"}
    constants |= {"ROWS": False, "EDGES": True, "LOW": -128.0, "HIGH": 127.0, "M": 64, "N": 64, "K": 128}
    compiled = compiler.compile_kernel(
        compiler.KernelRequest("integers", "product", types, constants, [90], 4, 3)
    )
    (tmp_path / "kernel.ptx").write_text(compiled.ptx[0], encoding="utf-8")
    cubin, tools = tmp_path / "kernel.cubin", triton_folder() / "triton" / "backends" / "nvidia" / "bin"
    ptxas = [cuda_toolkit() / "bin" / "ptxas", "-v", "-arch=sm_90a", tmp_path / "kernel.ptx", "-o", cubin]
    messages = subprocess.run(ptxas, capture_output=True, text=True, check=True).stderr
    assert "0 bytes spill stores" in messages and "wgmma serialization" not in messages
    code = subprocess.run(
        [tools / "nvdisasm", "-c", cubin], capture_output=True, text=True, check=True
    ).stdout
    assert "IGMMA.64x64x32.S8.S8" in code and "LDGSTS.E.BYPASS.128" in code
