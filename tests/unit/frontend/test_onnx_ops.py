"""ONNX operators against ONNX Runtime, and for each that Kiln converts itself why it must."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import tvm
from kiln.config.interface import Quantisation
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from kiln.lower.branches import no_branches
from relaxed import virtual_machine
from tvm.relax.frontend.onnx import from_onnx

Array = npt.NDArray[Any]
GONE = "TVM no longer has this fault: Kiln's own conversion of it can go"
HEADER = '<ir_version: 8, opset_import: ["" : {opset}]>\n'


def write(path: Path, text: str, opset: int = 17, **weights: Any) -> Path:
    """An ONNX file from its textual form; `weights` become initialisers."""
    model = onnx.parser.parse_model(HEADER.format(opset=opset) + text)
    for name, value in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    onnx.save(model, path)
    return path


def check(path: Path, *inputs: Array, absolute: float = 1e-5, relative: float = 1e-5) -> str:
    """Compare the import, compiled on the host, with ONNX Runtime; returns the module's text."""
    module, _ = import_model(path, ImportOptions("m"))
    machine = virtual_machine(no_branches(module))
    result = machine["main"](*[tvm.runtime.tensor(value) for value in inputs])
    got = [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [item.numpy() for item in result]
    for ours, theirs in zip(got, open_reference(path).run(inputs), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=relative, atol=absolute)
    text: str = module.script()
    return text


def normal(*shape: int) -> Array:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32) * 4


def clip_file(path: Path) -> Path:
    low, high = np.array(0, np.float32), np.array(6, np.float32)
    text = "g (float[1,8] x) => (float[1,8] y) { y = Clip(x, low, high) }"
    return write(path, text, low=low, high=high)


def test_parts_of_a_split_may_have_no_elements(tmp_path: Path) -> None:
    """TVM's own conversion takes the end of such a part, which is not after its begin, for an error."""
    text = "g (float[3,5] x) => (float[3,a] y, float[3,b] z, float[3,c] w) {{ y, z, w = Split<{}>(x{}) }}"
    for sizes in ([2, 0, 3], [0, 5, 0], [1, 4, 0]):
        check(write(tmp_path / "m.onnx", text.format("axis=-1", ", s"), s=np.array(sizes)), normal(3, 5))
        check(write(tmp_path / "n.onnx", text.format(f"axis=1,split={sizes}", ""), 11), normal(3, 5))


def test_clip_is_one_operator(tmp_path: Path) -> None:
    assert "R.clip(x" in check(clip_file(tmp_path / "m.onnx"), normal(1, 8))


def test_tvm_still_makes_clip_opaque(tmp_path: Path) -> None:
    assert "call_tir" in from_onnx(onnx.load(clip_file(tmp_path / "m.onnx"))).script(), GONE


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"low": np.float32(0)}, "R.nn.relu(x"),
        ({"low": np.float32(-1.5)}, "R.clip(x"),
        ({"high": np.float32(0.25)}, "R.clip(x"),
        ({"low": np.float32("nan"), "high": np.float32(2)}, "R.clip(x"),
    ],
)
def test_clip_with_open_ends(tmp_path: Path, bounds: dict[str, Any], expected: str) -> None:
    low = "low" if "low" in bounds else '""'
    names = f"x, {low}, high" if "high" in bounds else f"x, {low}"
    text = f"g (float[1,8] x) => (float[1,8] y) {{ y = Clip({names.replace(chr(34) * 2, '')}) }}"
    assert expected in check(
        write(tmp_path / "m.onnx", text, **{k: np.array(v) for k, v in bounds.items()}), normal(1, 8)
    )


def test_clip_with_attributes(tmp_path: Path) -> None:
    text = "g (float[1,8] x) => (float[1,8] y) { y = Clip<min: float = -1.0, max: float = 1.5>(x) }"
    assert "R.clip(x" in check(write(tmp_path / "m.onnx", text, opset=6), normal(1, 8))


def pad_file(path: Path) -> Path:
    pads, value = np.array([0, 0, 1, 2, 0, 0, 3, 0], np.int64), np.array(1.5, np.float32)
    text = "g (float[1,2,4,4] x) => (float[1,2,8,6] y) { y = Pad(x, pads, value) }"
    return write(path, text, pads=pads, value=value)


def test_pad_is_one_operator(tmp_path: Path) -> None:
    assert "R.nn.pad(x" in check(pad_file(tmp_path / "m.onnx"), normal(1, 2, 4, 4))


def test_tvm_still_makes_pad_opaque(tmp_path: Path) -> None:
    assert "call_tir" in from_onnx(onnx.load(pad_file(tmp_path / "m.onnx"))).script(), GONE


def test_reflecting_pad(tmp_path: Path) -> None:
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)
    text = 'g (float[1,2,4,4] x) => (float[1,2,6,6] y) { y = Pad<mode: string = "reflect">(x, pads) }'
    check(write(tmp_path / "m.onnx", text, pads=pads), normal(1, 2, 4, 4))


def test_tile_is_one_operator(tmp_path: Path) -> None:
    text = "g (float[2,3] x) => (float[4,9] y) { y = Tile(x, times) }"
    path = write(tmp_path / "m.onnx", text, times=np.array([2, 3], np.int64))
    assert "R.tile(x" in check(path, normal(2, 3))
    assert "call_tir" in from_onnx(onnx.load(path)).script(), GONE


def maximum_file(path: Path) -> Path:
    text = """g (float[3,4] x, float[4] y) => (float[3,4] most, float[3,4] least) {
      most = Max(x, y, y)
      least = Min(x, y)
    }"""
    return write(path, text)


def test_maximum_and_minimum_are_operators(tmp_path: Path) -> None:
    text = check(maximum_file(tmp_path / "m.onnx"), normal(3, 4), normal(4))
    assert text.count("R.maximum(") == 2 and "R.minimum(" in text


def test_tvm_still_stacks_for_a_maximum(tmp_path: Path) -> None:
    assert "R.stack" in from_onnx(onnx.load(maximum_file(tmp_path / "m.onnx"))).script(), GONE


@pytest.mark.parametrize("p", [1, 2])
def test_normalisation_to_length_one(tmp_path: Path, p: int) -> None:
    text = f"g (float[3,4] x) => (float[3,4] y) {{ y = LpNormalization<axis = 1, p = {p}>(x) }}"
    check(write(tmp_path / "m.onnx", text), normal(3, 4))


def test_one_hot_has_the_type_of_its_values(tmp_path: Path) -> None:
    text = "g (int64[5] x) => (float[5,7] y) { y = OneHot(x, depth, values) }"
    values = np.array([-1, 2], np.float32)
    path = write(tmp_path / "m.onnx", text, depth=np.array(7), values=values)
    check(path, np.array([0, 6, -1, 9, 3]))


def gather_file(path: Path) -> Path:
    text = "g (int64[1,5] i) => (float[1,5,2] y) { y = Gather(table, i) }"
    return write(path, text, table=normal(7, 2))


def test_gather_counts_from_the_end(tmp_path: Path) -> None:
    text = check(gather_file(tmp_path / "m.onnx"), np.array([[0, -1, 6, -7, 3]], np.int64))
    assert "shape_to_tensor" not in text


def test_tvm_still_asks_its_virtual_machine_for_a_size(tmp_path: Path) -> None:
    assert "shape_to_tensor" in from_onnx(onnx.load(gather_file(tmp_path / "m.onnx"))).script(), GONE


def test_an_index_beyond_the_table_reads_its_last_row(tmp_path: Path) -> None:
    module, _ = import_model(gather_file(tmp_path / "m.onnx"), ImportOptions("m"))
    machine = virtual_machine(module)
    outputs = machine["main"](tvm.runtime.tensor(np.array([[7, 2**40, -8, -(2**40), 0]], np.int64))).numpy()
    table = normal(7, 2)
    np.testing.assert_array_equal(outputs[0], table[[6, 6, 0, 0, 0]])


@pytest.mark.parametrize(("mode", "opset"), [("reflect", 17), ("edge", 17), ("wrap", 19)])
def test_padding_with_copies_is_made_of_operators(tmp_path: Path, mode: str, opset: int) -> None:
    text = f'g (float[1,3,4] x) => (float[1,5,9] y) {{ y = Pad<mode: string = "{mode}">(x, pads) }}'
    path = write(tmp_path / "m.onnx", text, opset, pads=np.array([0, 1, 2, 0, 1, 3], np.int64))
    assert "call_tir" not in check(path, normal(1, 3, 4))


def test_padding_of_some_axes(tmp_path: Path) -> None:
    text = "g (float[2,3,4] x) => (float[2,3,7] y) { y = Pad(x, pads, , axes) }"
    path = write(
        tmp_path / "m.onnx", text, 18, pads=np.array([1, 2], np.int64), axes=np.array([-1], np.int64)
    )
    assert "R.nn.pad(x" in check(path, normal(2, 3, 4))


TRANSFORMER = """
g (int64[1,6] ids, int64[1,6] mask) => (float[1,6,8] hidden, float[1,8] pooled) {
  words = Gather(table, ids)
  shape = Shape(ids)
  length = Gather(shape, one)
  positions = Range(zero, length, one)
  placed = Gather(places, positions)
  summed = Add(words, placed)
  normed = LayerNormalization<axis = -1, epsilon = 0.00001>(summed, gain, offset)
  q0 = MatMul(normed, wq)
  split = Constant<value_ints = [1, 6, 2, 4]>()
  q1 = Reshape(q0, split)
  q = Transpose<perm = [0, 2, 1, 3]>(q1)
  kt = Transpose<perm = [0, 2, 3, 1]>(q1)
  v = Transpose<perm = [0, 2, 1, 3]>(q1)
  raw = MatMul(q, kt)
  scaled = Div(raw, root)
  wide = Unsqueeze(mask, axes)
  real = Cast<to = 1>(wide)
  hole = Sub(unit, real)
  bias = Mul(hole, low)
  masked = Add(scaled, bias)
  weights = Softmax<axis = -1>(masked)
  mixed = MatMul(weights, v)
  back = Transpose<perm = [0, 2, 1, 3]>(mixed)
  joined = Constant<value_ints = [0, 0, -1]>()
  flat = Reshape(back, joined)
  h1 = Add(flat, normed)
  cdf = Div(h1, sqrt2)
  erf = Erf(cdf)
  erf1 = Add(erf, unit)
  gate = Mul(h1, erf1)
  gelu = Mul(gate, half)
  mean = ReduceMean<axes = [-1], keepdims = 1>(gelu)
  centred = Sub(gelu, mean)
  square = Pow(centred, two)
  variance = ReduceMean<axes = [-1], keepdims = 1>(square)
  spread = Sqrt(variance)
  hidden = Div(centred, spread)
  first = Gather<axis = 1>(hidden, zero)
  pooled = Tanh(first)
}
"""


def test_transformer_operators_and_shape_arithmetic(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx",
        TRANSFORMER,
        table=normal(20, 8),
        places=normal(16, 8),
        wq=normal(8, 8),
        gain=np.ones(8, np.float32),
        offset=np.zeros(8, np.float32),
        zero=np.array(0, np.int64),
        one=np.array(1, np.int64),
        axes=np.array([1, 2], np.int64),
        root=np.array(2, np.float32),
        unit=np.array(1, np.float32),
        low=np.array(-10000, np.float32),
        sqrt2=np.array(1.41421356, np.float32),
        half=np.array(0.5, np.float32),
        two=np.array(2, np.float32),
    )
    ids = np.array([[3, 7, 1, 19, 0, 0]], np.int64)
    mask = np.array([[1, 1, 1, 1, 0, 0]], np.int64)
    check(path, ids, mask, absolute=1e-4)


def test_quantised_graph_keeps_its_quantisation(tmp_path: Path) -> None:
    text = """g (int8[1,2,5,5] q) => (int8[1,3,3,3] r) {
      x = DequantizeLinear(q, sx, zx)
      w = DequantizeLinear<axis = 0>(k, sw, zw)
      y = Conv(x, w)
      r = QuantizeLinear(y, sy, zy)
    }"""
    generator = np.random.default_rng(0)
    path = write(
        tmp_path / "m.onnx",
        text,
        k=generator.integers(-128, 128, (3, 2, 3, 3)).astype(np.int8),
        sx=np.array(0.05, np.float32),
        zx=np.array(-4, np.int8),
        sw=np.array([0.01, 0.02, 0.03], np.float32),
        zw=np.zeros(3, np.int8),
        sy=np.array(0.4, np.float32),
        zy=np.array(7, np.int8),
    )
    text = check(path, generator.integers(-128, 128, (1, 2, 5, 5)).astype(np.int8), absolute=1, relative=0)
    assert text.count("R.dequantize") == 2
    assert text.count("R.quantize") == 1
    _, interface = import_model(path, ImportOptions("m"))
    assert interface.inputs[0].quant == Quantisation(scale=np.float32(0.05).item(), zero_point=-4)
    assert interface.outputs[0].quant == Quantisation(scale=np.float32(0.4).item(), zero_point=7)


def test_inputs_that_nothing_reads_stay(tmp_path: Path) -> None:
    """The user's signature is the file's, whatever folding removes."""
    text = (
        "g (float[1,4] x, float[2,2] unused) => (float[1,4] y, float[1,4] z) { y = Exp(x) z = Identity(x) }"
    )
    path = write(tmp_path / "m.onnx", text)
    _, interface = import_model(path, ImportOptions("m"))
    assert [port.name for port in interface.inputs] == ["x", "unused"]
    assert [port.name for port in interface.outputs] == ["y", "z"]
    check(path, normal(1, 4), normal(2, 2))


def test_outputs_that_are_constant(tmp_path: Path) -> None:
    text = "g (float[1,4] x) => (float[1,4] y, int64[2] shape) { y = Exp(x) shape = Shape(x) }"
    check(write(tmp_path / "m.onnx", text), normal(1, 4))


def test_old_files_list_their_weights_among_the_inputs(tmp_path: Path) -> None:
    text = "g (float[1,4] x, float[4,3] w) => (float[1,3] y) { y = MatMul(x, w) }"
    path = write(tmp_path / "m.onnx", text, w=normal(4, 3))
    _, interface = import_model(path, ImportOptions("m"))
    assert [port.name for port in interface.inputs] == ["x"]


def test_weights_of_a_branch_keep_their_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Initialisers of 64 bits in a branch of an If with a constant condition do not become int32."""
    monkeypatch.setattr(
        "kiln.frontend.onnx.model.canonicalise", lambda model, *_: onnx.shape_inference.infer_shapes(model)
    )
    text = """g (int64[5000] x) => (int64[5000] y) {
      y = If (yes) < then_branch = a () => (int64[5000] p) { p = Add(x, large) },
                     else_branch = b () => (int64[5000] q) { q = Neg(x) } > }"""
    path = write(tmp_path / "m.onnx", text, yes=np.array(True))
    model = onnx.load(path)
    branch = next(item.g for item in model.graph.node[0].attribute if item.name == "then_branch")
    branch.initializer.append(onnx.numpy_helper.from_array(np.arange(5000) + 2**40, "large"))
    onnx.save(model, path)
    check(path, np.arange(5000))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_images_of_few_channels_are_resized_along_one_axis_after_the_other(mode: str, tmp_path: Path) -> None:
    sizes = np.array([2, 3, 11, 23], np.int64)
    text = f'g (float[2,3,7,9] x) => (float[2,3,11,23] y) {{ y = Resize<mode="{mode}">(x, , , sizes) }}'
    assert "resize2d" not in check(write(tmp_path / "m.onnx", text, sizes=sizes), normal(2, 3, 7, 9))


def test_antialiased_linear_resizes_leave_out_what_is_outside(tmp_path: Path) -> None:
    kind = 'mode="linear", antialias=1, exclude_outside=1'
    text = f"g (float[1,2,5,7] x) => (float[1,2,2,3] y) {{ y = Resize<{kind}>(x, , scales) }}"
    scales = np.array([1, 1, 0.5, 0.5], np.float32)
    check(write(tmp_path / "m.onnx", text, opset=18, scales=scales), normal(1, 2, 5, 7))
