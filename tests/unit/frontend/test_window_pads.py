"""Transposed convolutions whose kernels have a dynamic size, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from kiln.errors import KilnError
from symbolic import imported, runner, write

TEXT = "g (float[1,2,n,5] x, float[2,3,n,3] w) => (float[1,3,h,v] y) { y = ConvTranspose<ATTRIBUTES>(x, w) }"
WINDOW = "strides=[2,2], pads=[1,1,1,1], dilations=[2,3], output_padding=[1,1]"


def test_a_kernel_of_dynamic_size(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", TEXT.replace("ATTRIBUTES", WINDOW), 18)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    run = runner(imported(path, {"n": (2, 6)})[0])
    rng = np.random.default_rng(0)
    for size in (2, 5, 6):
        x, w = (rng.normal(size=shape).astype("float32") for shape in ((1, 2, size, 5), (2, 3, size, 3)))
        [expected] = session.run(None, {"x": x, "w": w})
        np.testing.assert_allclose(run([x, w], {"n": size})[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ('auto_pad="SAME_UPPER"', r"auto_pad SAME_UPPER with kernels of size \[n, 3\]: .*fix it in 'dims'"),
        ("output_shape=[9,9]", r"output_shape 9 of size n and kernels of size n: .*fix it in 'dims'"),
    ],
)
def test_pads_that_depend_on_the_kernel_are_refused(attributes: str, told: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", TEXT.replace("ATTRIBUTES", f"{attributes}, strides=[2,2]"), 18)
    with pytest.raises(KilnError, match=told):
        imported(path, {"n": (2, 6)})
