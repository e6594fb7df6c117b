"""Padding is measured: each trap is found by the name of the operator that falls into it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.config.boxes import Box, BoxList
from kiln.config.dims import Segment
from kiln.config.interface import Dimension, Interface
from kiln.config.padding import PaddingProof
from kiln.config.slice_records import GoldenConfig
from kiln.errors import KilnError
from kiln.golden.adversarial import attacks
from kiln.golden.padding import cut, share_of_padding
from kiln.golden.vectors import make_vectors
from records import port
from tflite_files import Tensor, write

X = "float[batch,seq,4] x"
MASK = "float[batch,seq] mask"
PAD = Segment(strategy="pad", min=5, max=16, multiple=1, size=16)
ONE = Segment(strategy="exact", min=1, max=1, multiple=1, size=1)
DIMS = [Dimension(name="batch", min=1, max=2), Dimension(name="seq", min=1, max=16)]


def model(path: Path, body: str, inputs: str = X, output: str = "float[batch,seq,4] y") -> Path:
    """An ONNX file from onnx's text form; nodes are called after their position."""
    text = f'<ir_version: 8, opset_import: ["" : 17]>\ng ({inputs}) => ({output}) {{ {body} }}'
    made = onnx.parser.parse_model(text)
    for index, node in enumerate(made.graph.node):
        node.name = f"n{index}"
    path.write_bytes(made.SerializeToString())
    return path


def interface(inputs: list[tuple[str, list[Any]]], output: list[Any], dtype: str = "float32") -> Interface:
    ports = [port(name, shape, dtype) for name, shape in inputs]
    return Interface(model="m", inputs=ports, outputs=[port("y", output, dtype)], dims=DIMS)


def verify(
    path: Path,
    *,
    mask: bool = False,
    output: tuple[Any, ...] = ("batch", "seq", 4),
    pad: float | None = None,
    batch: Segment = ONE,
    measured: bool = False,
    x: tuple[Any, ...] = ("batch", "seq", 4),
) -> dict[str, Any]:
    """padding.json for one bucket that pads seq 5..16 to 16."""
    ports: dict[str, Any] = {"x": {"mask": False, "pad": pad}}
    inputs: list[tuple[str, list[Any]]] = [("x", list(x))]
    if mask:
        inputs.append(("mask", ["batch", "seq"]))
        ports["mask"] = {"mask": True, "pad": None}
    bucket = Box(name="seq_pad16", dims={"batch": batch, "seq": PAD})
    buckets = BoxList(dims=DIMS, fallback="error", buckets=[bucket])
    config = GoldenConfig.model_validate({"name": "m", "inputs": ports})
    fill = {name: 0 if name == "mask" else pad or 0 for name, _ in inputs}
    proofs = {"seq_pad16": PaddingProof(proof="measured", fill=fill)} if measured else None
    vectors = make_vectors(
        config, {"absolute": 1e-5, "relative": 1e-4}, path, interface(inputs, list(output)), buckets, proofs
    )
    assert vectors[2] is not None
    return vectors[2]


POOLED = {"output": ("batch", 4)}
# name → body, what is seen by, and how verify() is called; `seq` is axis 1 of x
TRAPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mean": (
        "a = Relu(x) y = ReduceMean <axes: ints = [1], keepdims: int = 0> (a)",
        "ReduceMean (node 'n1')",
        POOLED,
    ),
    "max of negatives": (
        "a = Abs(x) b = Neg(a) y = ReduceMax <axes: ints = [1], keepdims: int = 0> (b)",
        "ReduceMax (node 'n2')",
        POOLED,
    ),
    "softmax": ("a = Relu(x) y = Softmax <axis: int = 1> (a)", "Softmax (node 'n1')", {}),
    "instance norm": (
        "s = Constant <value = float[16] {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}> () "
        "o = Constant <value = float[4] {1, 1, 1, 1}> () z = Constant <value = float[4] {0, 0, 0, 0}> () "
        "t = Transpose <perm: ints = [0, 2, 1]> (x) a = InstanceNormalization(t, o, z) "
        "y = Transpose <perm: ints = [0, 2, 1]> (a)",
        "InstanceNormalization (node 'n4')",
        {},
    ),
    "layer norm by hand": (
        "m = ReduceMean <axes: ints = [1, 2], keepdims: int = 1> (x) y = Sub(x, m)",
        "ReduceMean (node 'n0')",
        {},
    ),
    "attention": (
        "t = Transpose <perm: ints = [0, 2, 1]> (x) s = MatMul(x, t) p = Softmax <axis: int = 2> (s) "
        "y = MatMul(p, x)",
        "Softmax (node 'n2')",
        {},
    ),
    "reversed": (
        "s = Constant <value = int64[1] {-1}> () e = Constant <value = int64[1] {-9223372036854775807}> () "
        "a = Constant <value = int64[1] {1}> () r = Relu(x) y = Slice(r, s, e, a, s)",
        "Slice (node 'n4')",
        {},
    ),
    "count from the shape": (
        "one = Constant <value = int64[1] {1}> () a = ReduceSum <keepdims: int = 0> (x, one) s = Shape(x) "
        "i = Constant <value = int64 {1}> () n = Gather(s, i) f = Cast <to: int = 1> (n) y = Div(a, f)",
        "Div (node 'n6')",
        POOLED,
    ),
    "quantised by the whole tensor": (
        "b = Exp(x) q, s, z = DynamicQuantizeLinear(b) y = DequantizeLinear(q, s, z)",
        "DynamicQuantizeLinear (node 'n1')",
        {"pad": 9.0},
    ),
}


@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_refused_by_the_operator_that_falls_into_it(tmp_path: Path, name: str) -> None:
    body, seen, how = TRAPS[name]
    shape = "float[batch,4] y" if how is POOLED else "float[batch,seq,4] y"
    with pytest.raises(KilnError) as caught:
        verify(model(tmp_path / "m.onnx", body, output=shape), **how)
    message = str(caught.value)
    assert message.startswith(
        "model 'm': dims.seq: pad 16 changes output 'y': with seq 5 padded to 16 (batch 1) "
    )
    assert f"; the first operator that sees the padding is {seen};" in message
    assert "inputs.<name>.mask" in message and "allowed" in message


WIDE = "u = Constant <value = int64[1] {2}> () w = Unsqueeze(mask, u) "
MASKED = {
    "softmax": (
        f"{WIDE} i = Constant <value = float {{1.0}}> () h = Constant <value = float {{-1e9}}> () "
        "k = Sub(i, w) b = Mul(k, h) l = Add(x, b) y = Softmax <axis: int = 1> (l)",
        "float[batch,seq,4] y",
        ("batch", "seq", 4),
    ),
    "norm": (
        f"{WIDE} one = Constant <value = int64[1] {{1}}> () n = ReduceSum <keepdims: int = 1> (w, one) "
        "a = Mul(x, w) s = ReduceSum <keepdims: int = 1> (a, one) m = Div(s, n) d = Sub(x, m) e = Mul(d, w) "
        "q = Mul(e, e) t = ReduceSum <keepdims: int = 1> (q, one) v = Div(t, n) "
        "c = Constant <value = float {0.001}> () g = Add(v, c) r = Sqrt(g) y = Div(e, r)",
        "float[batch,seq,4] y",
        ("batch", "seq", 4),
    ),
    "mean": (
        "u = Constant <value = int64[1] {2}> () w = Unsqueeze(mask, u) a = Mul(x, w) "
        "one = Constant <value = int64[1] {1}> () s = ReduceSum <keepdims: int = 0> (a, one) "
        "n = ReduceSum <keepdims: int = 0> (w, one) y = Div(s, n)",
        "float[batch,4] y",
        ("batch", 4),
    ),
    "attention": (
        "i = Constant <value = float {1.0}> () big = Constant <value = float {-10000.0}> () "
        "k = Sub(i, mask) b = Mul(k, big) u = Constant <value = int64[1] {1}> () c = Unsqueeze(b, u) "
        "t = Transpose <perm: ints = [0, 2, 1]> (x) s = MatMul(x, t) l = Add(s, c) "
        "p = Softmax <axis: int = 2> (l) y = MatMul(p, x)",
        "float[batch,seq,4] y",
        ("batch", "seq", 4),
    ),
}


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_makes_it_neutral(tmp_path: Path, name: str) -> None:
    body, shape, output = MASKED[name]
    path = model(tmp_path / "m.onnx", body, f"{X}, {MASK}", shape)
    findings = verify(path, mask=True, output=output)
    checked = findings["buckets"][0]["checked"]
    assert [one["sizes"]["seq"] for one in checked] == [5, 11, 16]
    assert [one["vector"].endswith("_masked") for one in checked] == [False, True, False]


def test_a_mask_that_does_not_hide_it_is_told(tmp_path: Path) -> None:
    body = (
        "a = Softmax <axis: int = 1> (x) u = Constant <value = int64[1] {2}> () w = Unsqueeze(mask, u) "
        "y = Mul(a, w)"
    )
    path = model(tmp_path / "m.onnx", body, f"{X}, {MASK}")
    with pytest.raises(
        KilnError, match=r"Softmax \(node 'n0'\); the mask 'mask' does not hide it; use exact"
    ):
        verify(path, mask=True)


NEUTRAL = {
    "elementwise": "a = Exp(x) y = Tanh(a)",
    "per token": (
        "w = Constant <value = float[4] {1, 2, 3, 4}> () a = Mul(x, w) y = Softmax <axis: int = 2> (a)"
    ),
    "shapes": (
        "s = Shape(x) f = Constant <value = int64[2] {-1, 4}> () a = Reshape(x, f) b = Relu(a) "
        "y = Reshape(b, s)"
    ),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_models_that_do_not_mind(tmp_path: Path, name: str) -> None:
    findings = verify(model(tmp_path / "m.onnx", NEUTRAL[name]))
    [bucket] = findings["buckets"]
    assert bucket["name"] == "seq_pad16" and bucket["dims"] == {"seq": {"min": 5, "max": 16, "size": 16}}
    assert bucket["mean_padding"] == pytest.approx(1 - 10.5 / 16)
    assert [one["padding"] for one in bucket["checked"]] == [0.6875, 0.3125, 0.0]
    assert all(o["error"] <= o["limit"] for one in bucket["checked"] for o in one["outputs"])
    json.dumps(findings, allow_nan=False)


def test_the_border_of_the_second_convolution(tmp_path: Path) -> None:
    """One convolution pads with the same zeros as the bucket; a second one reads other values there."""
    weights = "w = Constant <value = float[2,2,3] {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}> ()"
    inputs, output = "float[batch,2,seq] x", "float[batch,2,seq] y"
    how = {"x": ("batch", 2, "seq"), "output": ("batch", 2, "seq")}
    one = f"{weights} y = Conv <pads: ints = [1, 1]> (x, w)"
    verify(model(tmp_path / "one.onnx", one, inputs, output), **how)
    two = f"{weights} a = Conv <pads: ints = [1, 1]> (x, w) y = Conv <pads: ints = [1, 1]> (a, w)"
    with pytest.raises(KilnError, match=r"sees the padding is Conv \(node 'n2'\)"):
        verify(model(tmp_path / "two.onnx", two, inputs, output), **how)
    with pytest.raises(KilnError, match=r"sees the padding is Conv \(node 'n1'\)"):
        verify(model(tmp_path / "one.onnx", one, inputs, output), **how, pad=3.0)


def test_the_value_that_pads_decides(tmp_path: Path) -> None:
    path = model(
        tmp_path / "m.onnx",
        "y = ReduceMax <axes: ints = [1], keepdims: int = 0> (x)",
        output="float[batch,4] y",
    )
    verify(path, output=("batch", 4), pad=-1000.0)
    with pytest.raises(KilnError, match="ReduceMax"):
        verify(path, output=("batch", 4), pad=1000.0)


def test_an_axis_merged_by_a_reshape_is_followed(tmp_path: Path) -> None:
    """With two rows, the elements of the second are not the first ones; only the softmax changes them."""
    body = (
        "f = Constant <value = int64[2] {-1, 4}> () s = Shape(x) a = Reshape(x, f) b = Exp(a) "
        "c = Reshape(b, s) y = Softmax <axis: int = 1> (c)"
    )
    two = {"strategy": "exact", "min": 2, "max": 2, "multiple": 1, "size": 2}
    with pytest.raises(KilnError, match=r"sees the padding is Softmax \(node 'n5'\)"):
        verify(model(tmp_path / "m.onnx", body), batch=two)


def test_the_dimension_at_fault_is_found_among_several(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", "y = Softmax <axis: int = 1> (x)")
    both = {"strategy": "pad", "min": 1, "max": 2, "multiple": 1, "size": 2}
    with pytest.raises(
        KilnError, match=r"dims.seq: pad 16 changes output 'y': with seq 5 padded to 16 \(batch 1\)"
    ):
        verify(path, batch=both)


def test_a_tflite_model_is_refused_too(tmp_path: Path) -> None:
    options = schema.ReducerOptionsT()
    options.keepDims = False
    axes = Tensor("axes", (1,), "int32", data=np.array([1], np.int32))
    tensors = [Tensor("x", (1, 16, 4)), axes, Tensor("y", (1, 4))]
    path = write(tmp_path / "m.tflite", tensors, schema.BuiltinOperator.MEAN, options, [0, 1], [2])
    with pytest.raises(KilnError, match=r"sees the padding is MEAN \(node 'y'\)"):
        verify(path, output=("batch", 4))


def test_a_tflite_model_that_does_not_mind(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.tflite",
        [Tensor("x", (1, 16, 4)), Tensor("y", (1, 16, 4))],
        schema.BuiltinOperator.LOGISTIC,
        None,
        [0],
        [1],
    )
    assert len(verify(path)["buckets"][0]["checked"]) == 3


def test_shares_and_cuts() -> None:
    assert share_of_padding({"seq": 48, "batch": 1}, {"seq": 64}) == 0.25
    tensor = np.arange(12).reshape(3, 4)
    assert cut(tensor, (2, 3)).tolist() == [[0, 1, 2], [4, 5, 6]]
    assert cut(tensor, (4, 4)) is tensor and cut(tensor, (12,)) is tensor


MAX = "y = ReduceMax <axes: ints = [1], keepdims: int = 0> (x)"


def test_measured_padding_meets_adversarial_data(tmp_path: Path) -> None:
    """Negative data show that a maximum over padded zeros is wrong, golden inputs of both signs do not."""
    path = model(tmp_path / "m.onnx", f"a = Relu(x) {MAX.replace('(x)', '(a)')}", output="float[batch,4] y")
    verify(path, output=("batch", 4))
    verify(path, output=("batch", 4), pad=0.0, measured=True)
    with pytest.raises(KilnError, match=r"with data as drawn, with huge numbers in the padding, seq 5"):
        verify(path, output=("batch", 4), measured=True)
    path = model(tmp_path / "n.onnx", MAX, output="float[batch,4] y")
    verify(path, output=("batch", 4))
    with pytest.raises(KilnError, match=r"with data all negative, seq 5 .* is ReduceMax \(node 'n0'\)"):
        verify(path, output=("batch", 4), pad=0.0, measured=True)


def test_what_mixes_nothing_holds_against_all_data(tmp_path: Path) -> None:
    findings = verify(model(tmp_path / "m.onnx", NEUTRAL["per token"]), measured=True)
    assert findings["buckets"][0]["proof"] == "measured" and findings["buckets"][0]["fill"] == {"x": 0}


def test_attacks_stay_in_the_range_of_integers() -> None:
    tensors = [np.array([3, 9], "int64"), np.array([1.0, -2.0], "float32"), np.array([1, 0], "int32")]
    fill = {"ids": 0, "x": 0.0, "mask": 0}
    found = list(attacks(tensors, ["ids", "x", "mask"], fill, ["mask"], ["mask"]))
    assert [attack.name.split(",")[0] for attack in found] == [
        *["as drawn"] * 3, "all negative", "all negative", "all positive", "all positive", "huge", "huge"
    ]  # fmt: skip
    assert all(set(attack.inputs[0]) <= {3, 9} and attack.inputs[2] is tensors[2] for attack in found)
    assert (found[3].inputs[1] < 0).all() and (found[5].inputs[1] > 0).all()
    assert np.abs(found[7].inputs[1]).max() == pytest.approx(1e18, rel=1e-2)
    assert np.isnan(found[0].fill["x"]) and [attack.fill["ids"] for attack in found[:3]] == [9, 9, 3]
    assert found[3].fill == fill and all(attack.fill["mask"] == 0 for attack in found)
