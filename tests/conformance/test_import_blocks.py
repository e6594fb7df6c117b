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
    compare(tmp_path, BLOCKS, NUMBERS, (1, 4))


CUTS = """g (float[2,seq,6] x)
=> (float[2,?,6] shifted, float[2,?,6] fewer, float[2,?,4] inner, float[2,?,6] open) {
  shape = Shape(x) size = Slice(shape, one, two) rest = Sub(size, one)
  shifted = Pad(x, shift)
  fewer = Pad(x, off)
  inner = Pad<mode: string = "reflect">(x, narrow)
  minus = Neg(rest) amounts = Concat<axis = 0>(zero, minus, zero, zero, zero, zero) open = Pad(x, amounts)
}"""


def test_padding_by_negative_amounts(tmp_path: Path) -> None:
    amounts = {
        "shift": np.array([0, 1, 0, 0, -1, 0]),
        "off": np.array([0, -1, 0, 0, 0, 0]),
        "narrow": np.array([0, 0, -1, 0, 0, -1]),
    }
    compare(tmp_path, CUTS, {**NUMBERS, **amounts}, (2, 6))


RANGES = """g (float[1,seq,4] x)
=> (int64[?] down, int64[?] by_two, int64[?] by_minus_three, int64[?] from_four) {
  shape = Shape(x) vector = Slice(shape, one, two) size = Squeeze(vector)
  minus = Neg(size)
  down = Range(size, minus, back_one)
  by_two = Range(minus, size, step)
  by_minus_three = Range(size, nothing, back_three)
  from_four = Range(four, size, ahead)
}"""


def test_ranges_of_any_step(tmp_path: Path) -> None:
    steps = {"back_one": -1, "back_three": -3, "step": 2, "ahead": 1, "four": 4, "nothing": 0}
    scalars = {name: np.array(step) for name, step in steps.items()}
    compare(tmp_path, RANGES, {**NUMBERS, **scalars}, (1, 4))


QUOTIENTS = """g (float[1,seq,4] x) => (float[?,8] y) {
  shape = Shape(x) size = Slice(shape, one, two) before = Sub(size, one)
  half = Div(before, two) double = Mul(half, two) odd = Add(double, one)
  sizes = Concat<axis = 0>(odd, eight) wide = Expand(numbers, sizes)
  flat = Reshape(wide, last) rows = Concat<axis = 0>(odd, last) y = Reshape(flat, rows)
}"""


def test_a_quotient_that_is_the_same_for_all_sizes(tmp_path: Path) -> None:
    numbers = {"numbers": np.arange(8, dtype=np.float32)[None], "eight": np.array([8])}
    interface = compare(tmp_path, QUOTIENTS, {**NUMBERS, **numbers}, (1, 4))
    assert interface.outputs[0].shape[1] == 8, "later stages see a number"


def compare(folder: Path, text: str, weights: dict[str, Any], shape: tuple[int, int]) -> Any:
    """Import once, and compare with ONNX Runtime at every size; x is (shape[0], seq, shape[1]).

    Returns the interface.
    """
    path = write(folder / "m.onnx", text, 17, **weights)
    module, interface = imported(path, DIMS)
    run, reference = runner(module), open_reference(path)
    for seq in range(1, 13):
        x = np.random.default_rng(seq).normal(size=(shape[0], seq, shape[1])).astype(np.float32)
        outputs = zip(run([x], {"seq": seq}), reference.run([x]), interface.outputs, strict=True)
        for ours, theirs, entry in outputs:
            assert list(theirs.shape) == [evaluate(size, {"seq": seq}) for size in entry.shape]
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    return interface


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
    told = f"{sizes}.* differ with {where}: an exporter that traces.*, compute the size from an input's shape"
    with pytest.raises(KilnError, match=told):
        imported(path, DIMS)
    imported(path, {"seq": (1, 7)})


def test_sizes_that_agree_only_by_chance(tmp_path: Path) -> None:
    text = """g (float[1,seq,4] x) => (float[?,?,?] y) {
        shape = Shape<start = 1, end = 2>(x) half = Div(shape, two) least = Max(half, one)
        a = Slice(x, zero, half, one) b = Slice(x, zero, least, one) y = Add(a, b) }"""
    message = "differ with seq = 1, where one of them is 1, but not always: raise the least size in 'dims'"
    weights = {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2])}
    path = write(tmp_path / "m.onnx", text, 17, **weights)
    with pytest.raises(KilnError, match=message):
        imported(path, DIMS)
