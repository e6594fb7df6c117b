"""Float models in the forms that exporters write: what quantise makes of them is as exact as of any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.command_line.quantise import prepare
from kiln.command_line.quantise.parallel import join_parallel
from kiln.command_line.quantise.run import quantise
from kiln.errors import KilnError
from kiln.frontend.onnx.plain_session import plain_session
from networks import normal, operators_of
from onnx import numpy_helper

WEIGHTS = normal(2, 0.3, w=(8, 6), t=(6, 8), v=(6, 6), b=(6,), rows=(3, 1), s=(6,))
LEAST_DB = 30.0


def save(path: Path, text: str, opset: int = 17, **weights: Any) -> Path:
    """Write the graph `text` with those of `weights`, and of `WEIGHTS`, that it declares."""
    declared = 'ir_version: 8, opset_import: ["" : {}]'
    model = onnx.parser.parse_model(f"<{declared.format(opset)}> g {text}")
    del model.graph.initializer[:]
    for value in list(model.graph.value_info):
        array = np.asarray({**WEIGHTS, **weights}[value.name])
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        model.graph.initializer.append(numpy_helper.from_array(array.astype(dtype), value.name))
    del model.graph.value_info[:]
    onnx.save(model, str(path))
    return path


def samples(model: Path, seed: int = 3) -> Path:
    """Eight samples of the one input of `model`."""
    session = plain_session(str(model))
    (x,) = session.get_inputs()
    value = np.random.default_rng(seed).normal(0, 1, (8, *x.shape))
    np.save(model.with_suffix(".npy"), value.astype({"tensor(float16)": "f2"}.get(x.type, "f4")))
    return model.with_suffix(".npy")


def rounded(model: Path) -> tuple[float, list[str]]:
    """The SNR of the quantised form of `model`, and its operators."""
    out = model.with_name(f"{model.stem}_int8.onnx")
    result = quantise(str(model), samples(model), out)
    onnx.checker.check_model(onnx.load(str(out)), full_check=True)
    return result.figures.snr, operators_of(out)


# What follows a product, and is computed in floats or as one table: the limit before it is not lost.
LIMITS = {
    "norm": "r = Relu(a) y = LayerNormalization(r, s, b)",
    "softmax": "r = Relu(a) y = Softmax(r)",
    "square": "r = Relu(a) q = Mul(r, r) y = Neg(q)",
    "cut": "r = Clip(a, low, high) q = Mul(r, r) y = Neg(q)",
    "apart": "r = Clip(a, half, high) y = MatMul(r, v)",
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_results_in_floats_stay(tmp_path: Path, name: str) -> None:
    inputs = "(float[2,8] x) => (float[2,6] y)"
    weights = "<float[8,6] w, float[6] b, float[6] s, float[6,6] v, float low, float half, float high>"
    text = f"{inputs} {weights} {{ a = Gemm(x, w, b) {LIMITS[name]} }}"
    snr, operators = rounded(save(tmp_path / "net.onnx", text, low=0, half=0.5, high=1))
    assert snr > LEAST_DB
    assert {"Relu", "Clip"} & set(operators)


@pytest.mark.parametrize("product", [
    "Gemm<transA=1, transB=1, alpha=0.5, beta=2.0>(x, t, b)", "Gemm<transA=1, beta=0.0>(x, w, b)",
    "Gemm<transA=1, beta=3.0>(x, w, rows)",
])  # fmt: skip
def test_factors_and_biases_of_products(tmp_path: Path, product: str) -> None:
    weights = "<float[8,6] w, float[6,8] t, float[6] b, float[3,1] rows>"
    net = save(tmp_path / "net.onnx", f"(float[8,3] x) => (float[3,6] y) {weights} {{ y = {product} }}")
    assert rounded(net)[0] > LEAST_DB


@pytest.mark.parametrize("opset", [8, 11, onnx.defs.onnx_opset_version()])
def test_early_and_new_operator_sets(tmp_path: Path, opset: int) -> None:
    text = "(float[3,8] x) => (float[3,6] y) <float[8,6] w, float[6] b> { a = Gemm(x, w, b) y = Relu(a) }"
    assert rounded(save(tmp_path / "net.onnx", text, opset))[0] > LEAST_DB


def test_weights_of_16_bits_become_int8(tmp_path: Path) -> None:
    weights = "<float16[8,6] w, float16[6] b>"
    text = f"(float16[2,8] x) => (float16[2,6] y) {weights} {{ a = MatMul(x, w) c = Add(a, b) y = Relu(c) }}"
    net = save(tmp_path / "net.onnx", text)
    snr, _ = rounded(net)
    assert snr > LEAST_DB
    stored = onnx.load(str(tmp_path / "net_int8.onnx")).graph.initializer
    assert [one.data_type for one in stored if list(one.dims) == [8, 6]] == [onnx.TensorProto.INT8]
    save(net, "(float[2,8] x) => (bfloat16[2,6] y) <float[8,6] w> { a = MatMul(x, w) y = Cast<to = 16>(a) }")
    with pytest.raises(
        KilnError, match="'y' is bfloat16, which ONNX Runtime, that calibrates, does not take"
    ):
        quantise(str(net), None, tmp_path / "out.onnx")


def test_weights_in_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "(float[2,8] x) => (float[2,6] y) <float[8,6] w> { y = MatMul(x, w) }"
    net = save(tmp_path / "net.onnx", text)
    onnx.save(
        onnx.load(str(net)), str(net), save_as_external_data=True, location="net.data", size_threshold=0
    )
    assert rounded(net)[0] > LEAST_DB
    monkeypatch.setattr(prepare, "_MOST_BYTES", 100)
    with pytest.raises(KilnError, match=r"192 bytes of weights, allowed: 100, .* the key 'cut'"):
        quantise(str(net), None, tmp_path / "out.onnx")


def test_what_stays_in_float_is_said(tmp_path: Path) -> None:
    weights = "<float[8,6] w, float[6,6] v>"
    text = f"(float[2,8] x) => (float[2,6] y) {weights} {{ a = FusedMatMul(x, w) y = MatMul(a, v) }}"
    net = save(tmp_path / "net.onnx", text)
    model = onnx.load(str(net))
    model.graph.node[0].domain = "com.microsoft"
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, str(net))
    warning = quantise(str(net), samples(net), tmp_path / "out.onnx").warning
    assert "stay in float: FusedMatMul of com.microsoft: quantise the file that" in warning
    save(net, "(double[2,8] x) => (double[2,6] y) <double[8,6] w> { y = MatMul(x, w) }")
    with pytest.raises(
        KilnError, match=r"nothing to quantise: .*; stay in float: products of float64: export"
    ):
        quantise(str(net), None, tmp_path / "out.onnx")


BRANCHES = {
    "trained": "a = Conv<pads = [1,1,1,1]>(x, k3, b) c = Conv(x, k1) d = BatchNormalization(x, s, b, m, q) "
    "e = Add(a, c) y = Add(e, d)",
    "scaled": "a = Conv<pads = [1,1,1,1]>(x, k3) c = Conv(x, k1, b) e = Sub(c, a) f = Mul(e, f1) "
    "g = Add(f, x) h = Div(g, two) y = Add(h, f1)",
    "grouped": "a = Conv<pads = [1,1,1,1], group = 3>(x, g3) c = Conv<group = 3>(x, g1, b) "
    "d = BatchNormalization(x, s, b, m, q) y = Sum(d, a, x, c)",
    "gaps": "a = Conv<pads = [2,2,2,2], dilations = [2,2]>(x, k3) c = Conv<pads = [2,0,2,0]>(x, column) "
    "e = Conv(x, k1) f = Add(a, c) y = Add(f, e)",
}
JOINED = {"trained": 1, "scaled": 1, "grouped": 1, "gaps": 2}


@pytest.mark.parametrize("name", BRANCHES)
def test_parallel_convolutions_become_one(tmp_path: Path, name: str) -> None:
    """The column of `gaps` has other taps than the kernel with gaps, which takes up the single one."""
    arrays = normal(5, 0.5, k3=(6, 6, 3, 3), k1=(6, 6, 1, 1), column=(6, 6, 5, 1), g3=(6, 2, 3, 3),
                    g1=(6, 2, 1, 1), f1=(6, 1, 1), m=(6,))  # fmt: skip
    weights = ", ".join(f"float{list(value.shape)} {key}" for key, value in arrays.items())
    text = (
        f"(float[1,6,7,7] x) => (float[1,6,7,7] y) <{weights}, float[6] s, float[6] b, float[6] q, float two>"
    )
    net = save(tmp_path / "net.onnx", f"{text} {{ {BRANCHES[name]} }}", q=np.arange(1, 7), two=2.0, **arrays)
    model = onnx.shape_inference.infer_shapes(onnx.load(str(net)))
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"
    x = np.random.default_rng(0).normal(size=(1, 6, 7, 7)).astype("f4")
    want = plain_session(model.SerializeToString()).run(None, {"x": x})[0]
    assert join_parallel(model) == 1
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node].count("Conv") == JOINED[name]
    got = plain_session(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
