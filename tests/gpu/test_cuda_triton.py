"""byoc=triton without Triton: matches, packed weights, tiles and refusals."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kiln.byoc import registry
from kiln.byoc.backend import TargetFacts
from kiln.byoc.triton import compiler, kernel_call, products, tiles
from kiln.config import load_target
from kiln.config.byoc import Byoc
from kiln.config.target import Cuda
from kiln.emit.cuda_modules import texts_of
from kiln.errors import KilnError
from kiln.sources import triton_wheel

from . import triton_cases
from .graphs import with_inputs_alone

_GPU = tiles.GpuLimits(227 << 10, 132, 90)


@pytest.mark.parametrize("name", list(triton_cases.CASES))
def test_what_becomes_a_kernel(name: str) -> None:
    """The whole graph does, but for its conversions; each with the null pointers that they take."""
    steps = triton_cases.lowered(with_inputs_alone(triton_cases.case(name)), "fp16")
    codes = [kernel.external for kernel in steps.kernels if kernel.external is not None]
    assert [code.key.replace(" 21x144" * 3, "") for code in codes] == [
        key + (" 1x21x144" * 3 + " multiply") * (name == "attention" and "attention" in key)
        for key in triton_cases.CASES[name][2]
    ]
    left = {op["name"] for func in steps.kernels if func.external is None for op in map(vars, func.ops)}
    assert left <= {"astype", "multiply"}
    for step in steps.steps:
        code = next(kernel.external for kernel in steps.kernels if kernel.symbol == step.kernel)
        if code is not None:
            assert [size.dim for size in step.args[-2:]] == [0, 0]  # type: ignore[union-attr]
            assert code.ptx and code.dynamic_bytes and code.block == [step.launch.block[0], 1, 1]  # type: ignore[union-attr]


def test_dynamic_sizes_are_parameters() -> None:
    steps = triton_cases.lowered(triton_cases.open_rows(), "fp16")
    codes = {k.symbol: k.external for k in steps.kernels if k.external is not None}
    kinds = Counter(code.key.split()[0] for code in codes.values())
    assert kinds == {"dense": 2, "attention": 1, "conv2d": 1}
    for step in steps.steps:
        if step.kernel in codes:
            request = triton_cases.request_of(codes[step.kernel].source)
            numbers = [arg for arg in step.args if not isinstance(arg, str)]
            assert len(numbers) == 2 + sum(kind == "i32" for kind in request["types"].values())
            assert any(not isinstance(arg.dim, int) for arg in numbers)  # type: ignore[union-attr]
            assert request["constants"].get("SPLIT", 1) == 1


def test_a_constant_mask_above_the_diagonal_is_causal() -> None:
    steps = triton_cases.lowered(with_inputs_alone(triton_cases.case("causal")), "fp16")
    (code,) = [kernel.external for kernel in steps.kernels if kernel.external is not None]
    constants = triton_cases.request_of(code.source)["constants"]
    assert (constants["CAUSAL"], constants["HAS_MASK"], constants["mask"]) == (True, False, None)
    assert (constants["SIZE"], constants["D"]) == (20, 32)


@pytest.mark.parametrize("shape", [(40, 20), (1, 21), (21, 1)])
def test_a_mask_that_does_not_spread_over_keys_is_left(shape: tuple[int, int]) -> None:
    """Only keys, queries by keys, and those by heads and images, are masks."""
    full = [1, 1, *shape] if shape != (40, 20) else [1, 1, 21, 21]
    steps = triton_cases.lowered(with_inputs_alone(triton_cases.masked(full)), "fp16")
    keys = [kernel.external.key for kernel in steps.kernels if kernel.external is not None]
    assert len(keys) == (0 if shape == (21, 1) else 1)


def test_weights_are_padded_to_the_tile() -> None:
    steps = triton_cases.lowered(with_inputs_alone(triton_cases.case("strided")), "fp16")
    (code,) = [kernel.external for kernel in steps.kernels if kernel.external is not None]
    constants = triton_cases.request_of(code.source)["constants"]
    stored = next(value for value in steps.params.values() if value.ndim == 2)
    run = -(-10 // constants["K"]) * constants["K"]  # a row of the window: two places of five channels
    assert constants["ROWS"] and constants["EDGES"] and str(stored.dtype) == "float16"
    assert stored.shape == (3 * run, constants["W_COLUMNS"])
    assert constants["W_COLUMNS"] % constants["N"] == 0 and constants["COLUMNS"] == 37
    rows = stored.reshape(3, run, -1)
    assert not rows[:, 10:].any() and not stored[:, 37:].any() and rows[:, :10, :37].all()


def test_tf32_weights_are_rounded_to_nearest() -> None:
    values = np.array([1 + 2**-11, 1 + 2**-11 + 2**-20, -1 - 2**-11, np.inf, 3.5], np.float32)
    want = np.array([1 + 2**-10, 1 + 2**-10, -1 - 2**-10, np.inf, 3.5], np.float32)
    np.testing.assert_array_equal(products.rounded_tf32(values), want)
    assert np.isnan(products.rounded_tf32(np.array([np.nan], np.float32)))[0]


# rows, columns, depth of ResNet-50's 3x3 convolutions and its classifier at batch 1
@pytest.mark.parametrize(
    "sizes", [(3136, 64, 576), (784, 128, 1152), (196, 256, 2304), (49, 512, 4608), (1, 1000, 2048)]
)
def test_a_tile_keeps_the_gpu_busy(sizes: tuple[int, int, int]) -> None:
    tile = tiles.choose(tiles.ProductSizes(*sizes), _GPU)
    blocks = -(-sizes[0] // tile.m) * -(-sizes[1] // tile.n) * tile.split
    assert blocks >= 66, tile
    assert tile.shared_bytes(2) < _GPU.shared_bytes


@pytest.mark.parametrize("beside", ["norm", "residual"])
def test_a_thread_has_registers_for_more_than_sums(beside: str) -> None:
    """Tiles with a norm or a residual have at most 64 sums in a thread: with 128, ptxas spilled registers."""
    plain = tiles.ProductSizes(1576, 768, 192)
    sums = [
        {tile.m * tile.n // (32 * tile.warps) for tile in tiles.candidates(sizes, _GPU)}
        for sizes in (plain, replace(plain, **{beside: True}))
    ]
    assert [max(counts) for counts in sums] == [128, 64]


def test_tiles_fit_the_least_gpu_of_a_target() -> None:
    facts = TargetFacts("x86_64", "avx2", 1, 90, "fp16", Cuda(archs=["sm_86", "sm_90"], ptx=True))
    limits = kernel_call.limits_of(facts)
    assert limits.shared_bytes == 99 << 10 and kernel_call.architectures(facts) == [80, 86, 90]
    sizes = tiles.ProductSizes(100000, 4096, 4096)
    assert all(tile.shared_bytes(2) <= limits.shared_bytes for tile in tiles.candidates(sizes, limits))


def test_older_gpus_are_refused() -> None:
    with pytest.raises(KilnError, match=r"sm_80 and newer, the target names sm_75; use byoc=cutlass"):
        registry.selected_backends(Byoc(backends=["triton"]), load_target("cuda"))
    with pytest.raises(KilnError, match="it computes on an NVIDIA GPU, the target's kernels run on a CPU"):
        registry.selected_backends(Byoc(backends=["triton"]), load_target("x86_64"))


def test_a_python_without_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    with pytest.raises(KilnError, match=r"byoc=triton: Triton [\d.]+ has no wheel for Python 3\.10 on '"):
        triton_wheel.triton_folder()


def test_a_wheel_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KILN_CACHE", str(tmp_path))

    def offline(*_: object, **__: object) -> None:
        raise KilnError("triton 3.9.0: cannot download: the package index cannot be reached (no network?)")

    monkeypatch.setattr(triton_wheel, "unpack", offline)
    with pytest.raises(KilnError, match=r"^byoc=triton: triton 3\.9\.0: cannot download"):
        triton_wheel.triton_folder()
    assert not any((tmp_path / "triton").glob("*/triton"))


def test_a_compiler_that_refuses_or_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KILN_CACHE", str(tmp_path))
    request = compiler.KernelRequest("dense", "dense", {"x": "*fp16"}, {"M": 16}, [90], 4, 2)
    monkeypatch.setattr(compiler, "_ask", lambda _: {"error": "CompilationError: at 3:4\nand more"})
    with pytest.raises(KilnError, match=r'^byoc=triton: dense {"M": 16}: CompilationError: at 3:4$'):
        compiler.compile_kernel(request)
    monkeypatch.undo()
    monkeypatch.setenv("KILN_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "triton_folder", lambda: tmp_path)  # no package there
    monkeypatch.setattr(compiler, "cuda_toolkit", lambda: tmp_path)
    with pytest.raises(KilnError, match=r"byoc=triton: dense .*No module named 'triton'"):
        compiler.compile_kernel(request)


def test_ptx_of_several_architectures_is_taken_apart() -> None:
    source = triton_cases.stand_in(compiler.KernelRequest("dense", "dense", {}, {}, [80, 90], 4, 2)).ptx
    assert list(texts_of("// by a compiler\n" + "".join(source))) == ["sm_80", "sm_90"]
