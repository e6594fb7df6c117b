"""Results of the kernels of Triton's templates, by Triton's interpreter on this processor."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config.target import Cuda
from kiln.emit.cuda_objects import source_of
from relaxed import run_by_tvm

from . import double, triton_cases
from .graphs import with_inputs_alone
from .launched import run_kernel

pytestmark = pytest.mark.heavy  # Triton's wheel is 280 MB
PRECISIONS = {"fp32": (1e-5, 1e-5), "tf32": (2e-3, 4e-3), "fp16": (2e-3, 6e-3), "bf16": (1.6e-2, 5e-2)}


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> triton_cases.Interpreter:
    return triton_cases.Interpreter(tmp_path_factory.mktemp("arrays"))


def _own(steps: Any, folder: Path) -> Any:
    """Launches Kiln's own kernels of some steps, compiled for this processor."""
    if not steps.functions:
        return None
    plan = {"kernels": [{"symbol": symbol} for symbol in steps.functions]}
    source = source_of(steps.functions, Cuda(archs=["sm_90"], ptx=False))
    library = ctypes.CDLL(str(double.kernels_on_cpu(source, plan, folder / "own.so")))

    def launch(symbol: str, args: list[Any], grid: list[int], block: list[int]) -> None:
        words = [arg.ctypes.data if isinstance(arg, np.ndarray) else arg for arg in args]
        run_kernel(getattr(library, f"{symbol}_on_cpu"), grid, block, words)

    return launch


@pytest.mark.parametrize("precision", list(PRECISIONS))
@pytest.mark.parametrize("name", list(triton_cases.CASES))
def test_a_kernel_computes_what_the_graph_says(
    interpreter: triton_cases.Interpreter, tmp_path: Path, name: str, precision: str
) -> None:
    mod, shapes = triton_cases.case(name), triton_cases.CASES[name][0]
    inputs = [triton_cases.weights(*shape) for shape in shapes]
    if name == "masked":
        inputs[1] = np.where(np.arange(21) < 15, 0, -3.4e38).astype(np.float32).reshape(shapes[1])
    steps = triton_cases.lowered(with_inputs_alone(mod), precision)
    (want,) = run_by_tvm(mod, inputs)
    got = triton_cases.run(steps, inputs, {}, interpreter, _own(steps, tmp_path))
    relative, absolute = PRECISIONS[precision]
    np.testing.assert_allclose(got, want, rtol=relative, atol=absolute * float(np.abs(want).max()))


@pytest.mark.parametrize("count", [1, 7, 20])
def test_dynamic_sizes(interpreter: triton_cases.Interpreter, tmp_path: Path, count: int) -> None:
    mod = triton_cases.open_rows()
    steps = triton_cases.lowered(mod, "fp16")
    x = triton_cases.weights(1, count, 32)
    (want,) = run_by_tvm(mod, [x])
    got = triton_cases.run(steps, [x], {"n": count}, interpreter, _own(steps, tmp_path))
    np.testing.assert_allclose(got, want, rtol=3e-3, atol=1e-2 * float(np.abs(want).max()))
