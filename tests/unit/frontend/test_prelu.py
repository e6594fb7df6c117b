"""PRelu with slopes of every shape, with axes whose sizes are known when the model runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tvm
from kiln.config.dims import Segment
from kiln.frontend.importer import import_model
from kiln.frontend.options import DimRange, ImportOptions
from kiln.graph.pipeline import simplify
from relaxed import virtual_machine

from .test_onnx_ops import check, normal, write

SLOPES: list[tuple[int, ...]] = [(), (1,), (1, 1), (4, 1), (5,), (1, 4, 1), (4, 5), (3, 1, 1)]


@pytest.mark.parametrize("shape", SLOPES)
def test_of_fixed_sizes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    text = "g (float[3,4,5] x) => (float[3,4,5] y) { y = PRelu(x, slope) }"
    check(write(tmp_path / "m.onnx", text, slope=normal(*shape) * np.float32(0.1)), normal(3, 4, 5))


def test_of_dynamic_sizes(tmp_path: Path) -> None:
    """TVM raises an error of Python for one slope along a dynamic axis."""
    names = [f"s{number}" for number in range(5)] + ["given"]
    steps = " ".join(f"y{i} = PRelu(x, {name})" for i, name in enumerate(names))
    results = ", ".join(f"float[n,4,m] y{i}" for i in range(len(names)))
    weights = {f"s{i}": normal(*SLOPES[i]) * np.float32(0.1) for i in range(4)} | {"s4": normal(1, 4, 1)}
    text = f"g (float[n,4,m] x, float[m] given) => ({results}) {{ {steps} }}"
    path = write(tmp_path / "m.onnx", text, **weights)
    dims = {name: DimRange(name, 1, 8) for name in ("n", "m")}
    segment = Segment(strategy="dynamic", min=1, max=8, multiple=1)
    options = ImportOptions("m", dims=dims, bucket=dict.fromkeys(dims, segment))
    module, _ = import_model(path, options)
    machine = virtual_machine(simplify(module))
    session = onnxruntime.InferenceSession(str(path))
    for n, m in ((2, 3), (1, 1), (8, 7)):
        given = {"x": normal(n, 4, m), "given": normal(m)}
        outputs = machine["main"](*[tvm.runtime.tensor(value) for value in given.values()])
        for ours, theirs in zip(outputs, session.run(None, given), strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6)
