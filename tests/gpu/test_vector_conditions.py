"""Choices in kernels with vectors: conditions from memory, of the whole vector, and of each element."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kiln.config.target import Cuda
from kiln.emit.cuda_objects import image_of
from kiln.kernels.gpu import dlight
from tvm import te, tirx, topi

from .launched import Kernels

Array = npt.NDArray[Any]
CUDA = Cuda(archs=["sm_75", "sm_90"], ptx=False)
ROWS, DEPTH, COLUMNS = 33, 40, 26


def _chosen(condition: Callable[..., Any]) -> Callable[..., Any]:
    """A product whose elements are kept where `condition` of mask, row flags and element says so, else -1."""

    def compute(a: Any, b: Any, mask: Any, flags: Any) -> Any:
        total = topi.matmul(a, b)
        return te.compute(
            total.shape,
            lambda i, j: tirx.Select(condition(mask[i, j], flags[i], total[i, j]), total[i, j], -1.0),
        )

    return compute


# name → (which elements are kept, the same by NumPy)
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Array]]] = {
    "from memory": (lambda mask, flag, x: mask, lambda mask, flags, x: mask),
    "of the vector": (lambda mask, flag, x: flag > 3, lambda mask, flags, x: flags[:, None] > 3),
    "of an element": (lambda mask, flag, x: x > 0.5, lambda mask, flags, x: x > 0.5),
    "both": (
        lambda mask, flag, x: tirx.And(tirx.Not(mask), x > tirx.Cast("float32", flag)),
        lambda mask, flags, x: ~mask & (x > flags[:, None]),
    ),
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    shapes = (
        ((ROWS, DEPTH), "float32"),
        ((DEPTH, COLUMNS), "float32"),
        ((ROWS, COLUMNS), "bool"),
        ((ROWS,), "int32"),
    )
    lowered = {}
    for number, (condition, _) in enumerate(CASES.values()):
        tensors = [te.placeholder(shape, dtype, f"x{i}") for i, (shape, dtype) in enumerate(shapes)]
        func = te.create_prim_func([*tensors, _chosen(condition)(*tensors)])
        lowered[f"case{number}"] = dlight.lower(func, dlight.tvm_target(CUDA))
    return Kernels(lowered, CUDA, tmp_path_factory.mktemp("conditions"))


@pytest.mark.heavy
def test_each_element_is_chosen_by_its_own_condition(kernels: Kernels) -> None:
    random = np.random.default_rng(5)
    a, b = (
        random.standard_normal((ROWS, DEPTH), np.float32),
        random.standard_normal((DEPTH, COLUMNS), np.float32),
    )
    mask, flags = random.random((ROWS, COLUMNS)) > 0.5, random.integers(0, 7, ROWS, np.int32)
    total = a @ b
    for number, (name, (_, kept)) in enumerate(CASES.items()):
        want = np.where(kept(mask, flags, total), total, np.float32(-1))
        got = kernels.run(f"case{number}", [a, b, mask, flags], want.shape)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.heavy
def test_nvcc_takes_them(kernels: Kernels, tmp_path: Path) -> None:
    _, taken = image_of(kernels.source, CUDA, tmp_path)
    assert len(taken) == len(CASES) and "float2" in kernels.text("case2_0")
