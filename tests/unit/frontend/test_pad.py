"""Pad by amounts that depend on a dynamic size, in every mode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from kiln.errors import KilnError
from symbolic import imported, runner, write

# An axis of n elements, padded by n % 2 before and by 2 - n % 2 after: as Keras does before pools with SAME.
TEXT = """
g (float[2,n,3] x) => (float[2,m,3] y)
<int64[1] one = {1}, int64[1] two = {2}, int64[1] zero = {0}> {
  s = Shape(x)  n = Gather(s, one)  before = Mod(n, two)  after = Sub(two, before)
  pads = Concat<axis=0>(zero, before, zero, zero, after, zero)
  y = Pad<mode="MODE">(x, pads)
}
"""


@pytest.mark.parametrize(("mode", "least"), [("constant", 1), ("edge", 1), ("reflect", 3), ("wrap", 1)])
def test_amounts_that_depend_on_a_size(mode: str, least: int, tmp_path: Path) -> None:
    path = write(tmp_path / "g.onnx", TEXT.replace("MODE", mode), 19)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    run = runner(imported(path, {"n": (least, 6)})[0])
    for size in range(least, 7):
        x = np.arange(6 * size, dtype="float32").reshape(2, size, 3)
        [expected] = session.run(None, {"x": x})
        np.testing.assert_array_equal(run([x], {"n": size})[0], expected)


def test_an_axis_too_short_to_mirror(tmp_path: Path) -> None:
    path = write(tmp_path / "g.onnx", TEXT.replace("MODE", "reflect"), 19)
    with pytest.raises(KilnError, match=r"mode reflect by n % 2 and .* at least .*, which fails with n = 1"):
        imported(path, {"n": (1, 6)})
