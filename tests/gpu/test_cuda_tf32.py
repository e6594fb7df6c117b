"""Products of float32 tensors, multiplied as tf32: what they compute, by an emulation of wmma."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kiln.config.target import Cuda
from kiln.emit.cuda_objects import image_of
from kiln.kernels.gpu import dlight, tf32
from relaxed import rounded_to_tf32
from tvm import te, topi

from .graphs import placeholders
from .launched import Kernels
from .test_cuda_tensor import CASES

Array = npt.NDArray[Any]
ARCHS = ["sm_80", "sm_87", "sm_90"]
CUDA = Cuda(archs=ARCHS, ptx=False)


def _lowered(tensors: list[Any], result: Any) -> dlight.Launches:
    func = tf32.rounded(te.create_prim_func([*tensors, result]))
    return dlight.lower(func, dlight.tvm_target(CUDA))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    lowered = {}
    for name, (inputs, _, compute, _) in CASES.items():
        tensors = placeholders(*(shape for shape, _ in inputs))
        lowered[name] = _lowered(tensors, compute(*tensors))
        (_,), scratch = lowered[name].launches, lowered[name].scratch
        assert scratch == [], "rounding, and what follows a product, is computed with it"
    return Kernels(lowered, CUDA, tmp_path_factory.mktemp("tf32"))


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("order", ["0", "1"])
def test_values(kernels: Kernels, monkeypatch: pytest.MonkeyPatch, name: str, order: str) -> None:
    monkeypatch.setenv("KILN_CUDA_REVERSED", order)
    random = np.random.default_rng(7)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape, _ in CASES[name][0]]
    first, second, *others = arrays
    want = CASES[name][3](rounded_to_tf32(first), rounded_to_tf32(second), *others)
    got = kernels.run(name, arrays, want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)
    plain = CASES[name][3](rounded_to_tf32(first), second, *others)
    assert np.abs(got - plain).max() > 1e-4, "this test would not see it if an operand were not rounded"


def test_rounding(kernels: Kernels) -> None:
    """Each number that can be on either side, alone, and ties; by the identity, which changes none."""
    unit = 2.0**-10  # of the last bit that stays, of numbers from 1 to 2
    numbers = [1 + unit / 2, 1 + unit / 2 * 0.999, 1 + unit * 1.5, -1 - unit / 2, 3e38, 1e-38, 1e-42, 0]
    x = np.resize(np.array(numbers, np.float32), (16, 16))
    got = kernels.run("product_16_16_16", [x, np.eye(16, dtype=np.float32)], (16, 16))
    np.testing.assert_array_equal(got, rounded_to_tf32(x))
    assert got[0, 0] == 1 + unit and got[0, 1] == 1 and got[0, 3] == -1 - unit


def test_all_use_the_matrix_units(kernels: Kernels) -> None:
    for name in CASES:
        text = kernels.text(f"{name}_0")
        assert "wmma::mma_sync" in text and text.count("wmma::precision::tf32") >= 2, name


@pytest.mark.heavy
@pytest.mark.parametrize("archs", [ARCHS[:1], pytest.param(ARCHS, marks=pytest.mark.heavy)])
def test_ptxas_compiles_all_kernels(kernels: Kernels, archs: list[str], tmp_path: Path) -> None:
    kernels.check_machine_code(archs, tmp_path)


def test_a_row_is_not_rounded() -> None:
    """Fifteen of sixteen rows of a fragment would be padding: it is computed as with fp32."""
    x, w = placeholders((1, 64), (64, 50))
    func = te.create_prim_func([x, w, topi.matmul(x, w)])
    assert tf32.rounded(func).same_as(func)


def test_two_products_of_one_function(tmp_path: Path) -> None:
    """No fragments there, but the same rounding, which ptxas takes without them."""
    x, w, v = placeholders((16, 24), (24, 16), (24, 16))
    lowered = _lowered([x, w, v], topi.add(topi.matmul(x, w), topi.matmul(x, v)))
    pair = Kernels({"pair": lowered}, CUDA, tmp_path)
    assert "__float_to_tf32" in pair.source and "mma_sync" not in pair.source.split('extern "C"', 1)[1]
    newest = Cuda(archs=ARCHS[-1:], ptx=False)
    assert set(image_of(pair.source, newest, tmp_path)[1]) == set(pair.functions)


def test_what_a_loop_in_stages_calls_is_defined(tmp_path: Path) -> None:
    """Also where nothing else calls such functions: these copies round on the way, and have no condition."""
    x, w = placeholders((64, 192), (192, 64))
    source = Kernels({"alone": _lowered([x, w], topi.matmul(x, w))}, CUDA, tmp_path).source
    assert "kiln_copy_if<" not in source.split('extern "C"')[-1]
    assert "  kiln_copies_commit();" in source and "void kiln_copies_commit()" in source
