"""Sizes padded to whole blocks and cut back, as exporters write them, against ONNX Runtime at every size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config.sizes import evaluate
from kiln.errors import KilnError
from kiln.golden.reference import open_reference
from symbolic import imported, runner, write

DIMS = {"seq": (1, 12)}
NUMBERS: dict[str, Any] = {
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "block": np.array([5]),
    "less": np.array([4]),
    "last": np.array([-1]),
    "far": np.array([-(2**63) + 1]),
    "pairs": np.array([-1, 2]),
    "blocks": np.array([-1, 5, 4]),
    "back": np.array([1, -1, 4]),
    "ones": np.ones((1, 1, 4), np.float32),
}
# torch.nn.functional.pad by -seq % 5, as PyTorch's tracing exporter writes it: the amounts are a table of
# pairs, last axis first, that is reversed and transposed.
BLOCKS = """g (float[1,seq,4] x) => (float[1,?,4] y, float[?,5,4] z, float[1,?,4] same, float[?] rest) {
  shape = Shape(x) size = Slice(shape, one, two) minus = Neg(size)
  more = Mod(minus, block)
  amounts = Concat<axis = 0>(zero, zero, zero, more, zero, zero)
  table = Reshape(amounts, pairs) turned = Slice(table, last, far, zero, last)
  flipped = Transpose<perm = [1, 0]>(turned) pads = Reshape(flipped, last)
  whole = Pad(x, pads)
  z = Reshape(whole, blocks) again = Reshape(z, back)
  cut = Slice(again, zero, size, one)
  y = Add(x, cut)
  up = Add(size, less) count = Div(up, block) long = Mul(count, block)
  ends = Concat<axis = 0>(one, long, one) filled = Expand(ones, ends)
  same = Sub(again, filled)
  downwards = Div(minus, block) upwards = Neg(downwards) rest = ConstantOfShape(upwards)
}"""


def test_blocks_at_every_size(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", BLOCKS, 17, **NUMBERS)
    module, interface = imported(path, DIMS)
    run, reference = runner(module), open_reference(path)
    for seq in range(1, 13):
        x = np.random.default_rng(seq).normal(size=(1, seq, 4)).astype(np.float32)
        found = zip(run([x], {"seq": seq}), reference.run([x]), interface["outputs"], strict=True)
        for ours, theirs, entry in found:
            assert list(theirs.shape) == [evaluate(size, {"seq": seq}) for size in entry["shape"]]
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize(
    ("node", "sizes", "where"),
    [
        ("y = Add(x, cut)", "seq and min\\(7, seq\\)|min\\(seq, 7\\)", "seq = 8"),
        ("y = Concat<axis = -1>(x, cut)", "seq", "seq = 8"),
        ("y = Where(flag, cut, x)", "seq", "seq = 8"),
    ],
)
def test_sizes_of_the_example_in_the_file(node: str, sizes: str, where: str, tmp_path: Path) -> None:
    text = f"g (float[1,seq,4] x) => (float[1,?,?] y) {{ cut = Slice(x, zero, seven, one) {node} }}"
    weights = {"zero": np.array([0]), "one": np.array([1]), "seven": np.array([7]), "flag": np.array([True])}
    path = write(tmp_path / "m.onnx", text, 17, **weights)
    with pytest.raises(KilnError, match=f"{sizes}.* differ with {where}: an exporter that traces"):
        imported(path, DIMS)
    imported(path, {"seq": (1, 7)})
