"""Kernels that fetch parameters of later ones compute what they compute without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from . import arithmetic
from .lowered import Array, Compiled, close, const, module, runnable

LAYOUTS = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


@pytest.mark.heavy
@pytest.mark.parametrize(
    "winograd", ["off", *(pytest.param(one, marks=pytest.mark.heavy) for one in ("f2", "f4"))]
)
def test_a_network_with_a_shared_cache(winograd: str, tmp_path: Path) -> None:
    """Convolutions that compute, directly or in blocks of tiles, before one that waits for its weights."""
    rng = np.random.default_rng(1)
    target = runnable("x86_64")
    cache = target.cache.model_copy(update={"l3": 2 << 20})
    x = rng.uniform(-1, 1, (1, 40, 40, 24)).astype("f4")
    shapes = [((3, 3, 24, 200), 1), ((3, 3, 200, 17), 1), ((5, 5, 17, 300), 13), ((3, 3, 300, 192), 1)]
    weights = [rng.uniform(-1, 1, shape).astype("f4") / 30 for shape, _ in shapes]

    def body(image: Any) -> Any:
        for (_, stride), kernel in zip(shapes, weights, strict=True):
            image = relax.op.nn.conv2d(image, const(kernel), strides=[stride] * 2, padding=1, **LAYOUTS)
        return image

    mod = module([(x.shape, "float32")], body)
    compiled = Compiled(mod, target.model_copy(update={"cache": cache}), tmp_path / "a", winograd=winograd)
    plain = Compiled(mod, target, tmp_path / "b", winograd=winograd).load()
    assert {step.kernel for step in compiled.steps} != {step.kernel for step in plain.steps}
    want: Array = x.astype("f8")
    for (_, stride), kernel in zip(shapes, weights, strict=True):
        want = arithmetic.conv2d(want, kernel.astype("f8"), padding=(1, 1, 1, 1), stride=stride)
    outputs = compiled.load().run([x])[0]
    close(outputs, want, 1e-3 if winograd == "f4" else 1e-4)
    assert (outputs == plain.run([x])[0]).all()
