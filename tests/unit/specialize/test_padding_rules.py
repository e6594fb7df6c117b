"""Rules of operators for padded operands: the result is proven with a fill value, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.config import model as models
from kiln.config.boxes import Box
from kiln.config.dims import Segment
from kiln.config.interface import Interface
from kiln.config.padding import PaddingProof
from kiln.config.slice_records import ImportConfig
from kiln.errors import KilnError
from kiln.frontend import options
from kiln.frontend.importer import import_model
from kiln.specialize.padding.analysis import RULES, NotProvenError
from kiln.specialize.padding.fill_values import json_fill, typed_fill
from kiln.specialize.padding.fills import proven_fills
from kiln.specialize.padding.stage import padding
from kiln.specialize.padding.values import ANYTHING, FINITE, ValueRange, constant, join, of_array
from onnx import helper
from records import port
from tflite_files import Tensor, write

INF = float("inf")
LONG = "float[1,seq,4] x"
WIDE = "float[1,2,seq] x"
MASKED = f"{LONG}, float[1,seq] mask"
BIAS = (
    "i = Constant <value = float {1}> () h = Constant <value = float {-1e9}> () "
    "k = Sub(i, mask) b = Mul(k, h) u = Constant <value = int64[1] {2}> () bias = Unsqueeze(b, u) "
)
W = "w = Constant <value = float[2,2,3] {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}> () "
ONE = "one = Constant <value = int64[1] {1}> () "
CAUSAL = "".join("1," * (row + 1) + "0," * (15 - row) for row in range(16)).rstrip(",")


def proven(tmp_path: Path, body: str, inputs: str = LONG, **pads: float) -> dict[str, Any]:
    """The fills that are proven for padding seq 5..16 to 16. `pads`: inputs.<name>.pad of the YAML."""
    text = f'<ir_version: 8, opset_import: ["" : 17]>\ng ({inputs}) => (float y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.output[0].CopyFrom(helper.make_empty_tensor_value_info("y"))
    model.graph.output[0].type.tensor_type.elem_type = 1
    inferred = onnx.shape_inference.infer_shapes(model)
    rank = len(inferred.graph.output[0].type.tensor_type.shape.dim)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, [None] * rank))
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    given = {
        value.name: models.Tensor(mask=value.name == "mask", pad=pads.get(value.name))
        for value in model.graph.input
    }
    segment = Segment(strategy="range", min=5, max=16, multiple=1)
    dims = {"seq": {"min": 1, "max": 16}}
    settings = options.from_config(
        ImportConfig.model_validate({"name": "m", "dims": dims}), Box(name="b", dims={"seq": segment})
    )
    module, interface = import_model(path, replace(settings, every_node=True))
    return proven_fills(module, ["seq"], interface, given)


ZERO, LEAST, GREATEST, UNIT = {"x": 0}, {"x": -INF}, {"x": INF}, {"x": 1}
BRANCHES = (
    f"first = Constant <value = int64 {{0}}> () {ONE} a = Gather <axis: int = 1> (x, first) "
    "s = ReduceSum <keepdims: int = 0> (a) l = Constant <value = float {5}> () c = Less(s, l) "
    "b = If(c) <then_branch = t () => (float[1,seq,4] p) { p = Mul(x, x) }, "
    "else_branch = e () => (float[1,seq,4] q) { q = Neg(x) }> "
)
PROVEN: dict[str, tuple[str, str, dict[str, float]]] = {
    "sum of the results of branches": (f"{BRANCHES} y = ReduceSum(b, one)", LONG, ZERO),
    "elementwise": ("a = Exp(x) b = Neg(a) y = Add(a, b)", LONG, ZERO),
    "sum": (f"{ONE} y = ReduceSum(x, one)", LONG, ZERO),
    "sum of squares": ("y = ReduceSumSquare <axes: ints = [1]> (x)", LONG, ZERO),
    "maximum": ("y = ReduceMax <axes: ints = [1]> (x)", LONG, LEAST),
    "minimum": ("y = ReduceMin <axes: ints = [1]> (x)", LONG, GREATEST),
    "product": ("y = ReduceProd <axes: ints = [1]> (x)", LONG, UNIT),
    "maximum behind relu": ("a = Relu(x) y = ReduceMax <axes: ints = [1]> (a)", LONG, ZERO),
    "minimum of a negation": ("a = Neg(x) y = ReduceMin <axes: ints = [1]> (a)", LONG, LEAST),
    "argmax": ("a = ArgMax <axis: int = 1, keepdims: int = 0> (x) y = Cast <to: int = 1> (a)", LONG, LEAST),
    "softmax over another axis": ("y = Softmax <axis: int = 2> (x)", LONG, ZERO),
    "masked softmax": (f"{BIAS} a = Add(x, bias) y = Softmax <axis: int = 1> (a)", MASKED, ZERO),
    "masked log-softmax": (f"{BIAS} a = Add(x, bias) y = LogSoftmax <axis: int = 1> (a)", MASKED, ZERO),
    "masked softmax, written out": (
        f"{BIAS} a = Add(x, bias) m = ReduceMax <axes: ints = [1]> (a) d = Sub(a, m) e = Exp(d) {ONE} "
        "s = ReduceSum(e, one) y = Div(e, s)",
        MASKED,
        ZERO,
    ),
    "where writes the mask": (
        "z = Constant <value = float {0}> () c = Greater(mask, z) u = Constant <value = int64[1] {2}> () "
        "d = Unsqueeze(c, u) f = Constant <value = float {-1e9}> () a = Where(d, x, f) "
        "y = Softmax <axis: int = 1> (a)",
        MASKED,
        ZERO,
    ),
    "layer norm": (
        "g = Constant <value = float[4] {1, 1, 1, 1}> () y = LayerNormalization <axis: int = -1> (x, g)",
        LONG,
        ZERO,
    ),
    "matmul over another axis": (
        "t = Transpose <perm: ints = [0, 2, 1]> (x) y = MatMul(x, t)",
        LONG,
        ZERO,
    ),
    "matmul over the padded axis": (
        "t = Transpose <perm: ints = [0, 2, 1]> (x) y = MatMul(t, x)",
        LONG,
        ZERO,
    ),
    "convolution without padding, twice": (
        f"{W} a = Conv(x, w) b = Conv(a, w) y = Relu(b)",
        WIDE,
        ZERO,
    ),
    "convolution with its own zeros": (f"{W} y = Conv <pads: ints = [1, 1]> (x, w)", WIDE, ZERO),
    "strided convolution": (f"{W} y = Conv <strides: ints = [2]> (x, w)", WIDE, ZERO),
    "max pooling with padding": (
        "y = MaxPool <kernel_shape: ints = [3], pads: ints = [1, 1]> (x)",
        WIDE,
        LEAST,
    ),
    "average pooling that counts the padding": (
        "y = AveragePool <kernel_shape: ints = [3], pads: ints = [1, 1], count_include_pad: int = 1> (x)",
        WIDE,
        ZERO,
    ),
    "a merged axis, and back": (
        "f = Constant <value = int64[2] {-1, 4}> () a = Reshape(x, f) b = Tanh(a) "
        "g = Constant <value = int64[3] {1, -1, 4}> () y = Reshape(b, g)",
        LONG,
        ZERO,
    ),
    "the first token": (
        "i = Constant <value = int64 {0}> () y = Gather <axis: int = 1> (x, i)",
        LONG,
        ZERO,
    ),
    "a token in front": (
        "c = Constant <value = float[1,1,4] {1, 2, 3, 4}> () y = Concat <axis: int = 1> (c, x)",
        LONG,
        ZERO,
    ),
    "ones behind ones": (
        "c = Constant <value = float[1,1,4] {1, 1, 1, 1}> () y = Concat <axis: int = 1> (x, c)",
        LONG,
        UNIT,
    ),
    "cumulative sum": (f"{ONE.replace('int64[1]', 'int64')} y = CumSum(x, one)", LONG, ZERO),
    "every second element": (
        "s = Constant <value = int64[1] {0}> () e = Constant <value = int64[1] {1000}> () "
        "a = Constant <value = int64[1] {1}> () t = Constant <value = int64[1] {2}> () "
        "y = Slice(x, s, e, a, t)",
        LONG,
        ZERO,
    ),
    "a causal mask cut from a table": (
        f"c = Constant <value = float[1,16,16] {{{CAUSAL}}}> () v = Shape(x) "
        "g = Constant <value = int64[1] {1}> () "
        "n = Gather(v, g) o = Constant <value = int64[2] {0, 0}> () e = Concat <axis: int = 0> (n, n) "
        "r = Constant <value = int64[2] {1, 2}> () q = Slice(c, o, e, r) z = Constant <value = float {0}> () "
        "k = Greater(q, z) t = Transpose <perm: ints = [0, 2, 1]> (x) s = MatMul(x, t) "
        "f = Constant <value = float {-1e9}> () l = Where(k, s, f) p = Softmax <axis: int = -1> (l) "
        "y = MatMul(p, x)",
        LONG,
        ZERO,
    ),
    "tokens that are compared with the padding's": (
        "p = Constant <value = int64 {7}> () q = Equal(i, p) f = Constant <value = float {-1e9}> () "
        "r = Constant <value = float {1}> () b = Where(q, f, r) y = ReduceMax <axes: ints = [1]> (b)",
        "int64[1,seq] i",
        {"i": 7},
    ),
    "a slope for each channel": (
        "s = Constant <value = float[2,1] {0.1, 0.2}> () y = PRelu(x, s)",
        WIDE,
        ZERO,
    ),
    "quantised and back": (
        "s = Constant <value = float {0.5}> () z = Constant <value = int8 {3}> () "
        f"q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) {ONE} y = ReduceSum(d, one)",
        LONG,
        ZERO,
    ),
    "a mask of quantised constants": (  # in float32, 255 * (1 / 255) is 1
        "n = Constant <value = uint8 {255}> () s = Constant <value = float {0.003921569}> () "
        "z = Constant <value = uint8 {0}> () i = DequantizeLinear(n, s, z) k = Sub(i, mask) "
        "t = Constant <value = float {1e36}> () h = DequantizeLinear(n, t, z) j = Neg(h) b = Mul(k, j) "
        "u = Constant <value = int64[1] {2}> () bias = Unsqueeze(b, u) a = Add(x, bias) "
        f"p = Softmax <axis: int = 1> (a) q = QuantizeLinear(p, s, z) d = DequantizeLinear(q, s, z) {ONE} "
        "y = ReduceSum(d, one)",
        MASKED,
        ZERO,
    ),
    "integers": (
        "a = ReduceMax <axes: ints = [1]> (i) y = Cast <to: int = 1> (a)",
        "int8[1,seq] i",
        {"i": -128},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROVEN)
def test_proven_with_a_fill(tmp_path: Path, name: str) -> None:
    body, inputs, fills = PROVEN[name]
    proof = proven(tmp_path, body, inputs)
    assert {key: proof[key] for key in fills} == fills and proof.get("mask", 0) == 0


REFUSED: dict[str, tuple[str, str, str]] = {
    "mean": (
        "y = ReduceMean <axes: ints = [1]> (x)",
        LONG,
        "ReduceMean node n0: it reduces axis 1, of size seq, whose padded part is 0; it divides",
    ),
    "softmax": ("a = Relu(x) y = Softmax <axis: int = 1> (a)", LONG, "Softmax node n1: it normalises axis 1"),
    "reversed": (
        "s = Constant <value = int64[1] {-1}> () e = Constant <value = int64[1] {-999}> () "
        f"{ONE} y = Slice(x, s, e, one, s)",
        LONG,
        "Slice node n3: it reverses the padded axis 1",
    ),
    "the last token": (
        "s = Constant <value = int64[1] {-1}> () e = Constant <value = int64[1] {999}> () "
        f"{ONE} y = Slice(x, s, e, one)",
        LONG,
        "Slice node n3: it counts from the end of axis 1",
    ),
    "an element behind": (
        "c = Constant <value = float[1,1,4] {1, 2, 3, 4}> () y = Concat <axis: int = 1> (x, c)",
        LONG,
        "Concat node n1: it puts further elements after the padded ones of axis 1",
    ),
    "ranked": (
        f"{ONE} y, i = TopK <axis: int = 1> (x, one)",
        LONG,
        "TopK node n1: it ranks axis 1, of size seq",
    ),
    "two convolutions with zeros": (
        f"{W} a = Conv <pads: ints = [1, 1]> (x, w) y = Conv <pads: ints = [1, 1]> (a, w)",
        WIDE,
        "Conv node n2: its windows reach into the padded part of axis 2",
    ),
    "an average without its padding": (
        "y = AveragePool <kernel_shape: ints = [3], pads: ints = [1, 1]> (x)",
        WIDE,
        "AveragePool node n0: its windows reach into the padded part of axis 2",
    ),
    "sum and maximum of one input": (
        f"{ONE} a = ReduceSum(x, one) b = ReduceMax <axes: ints = [1]> (x) y = Add(a, b)",
        LONG,
        "ReduceMax node n2: it reduces axis 1",
    ),
    "a mask of NaN": (
        "u = Constant <value = int64[1] {2}> () w = Unsqueeze(mask, u) a = Log(x) b = Neg(x) "
        "c = Log(b) d = Add(a, c) e = Mul(d, w) "
        f"{ONE} y = ReduceSum(e, one)",
        MASKED,
        "ReduceSum node n8: it reduces axis 1, of size seq, whose padded part may hold anything, NaN too",
    ),
    "a merged axis as an output": (
        "t = Transpose <perm: ints = [0, 2, 1]> (x) f = Constant <value = int64[2] {1, -1}> () "
        "y = Reshape(t, f)",
        LONG,
        "output 'y': the padding is between the elements of axis 1, of size 4 * seq: it cannot be cut off",
    ),
    "its size as a number": (
        f"{ONE} s = Shape(x) i = Constant <value = int64 {{1}}> () n = Gather(s, i) "
        "f = Cast <to: int = 1> (n) a = ReduceSum(x, one) y = Div(a, f)",
        LONG,
        "Div node n6: it computes with the size seq, which padding changes",
    ),
    "no rule": (
        "g = Constant <value = int64[1,1] {0}> () a = Tanh(x) y = GatherND <batch_dims: int = 1> (a, g)",
        LONG,
        "GatherND node n2: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_the_operator_that_sees_it(tmp_path: Path, name: str) -> None:
    body, inputs, says = REFUSED[name]
    with pytest.raises(NotProvenError) as caught:
        proven(tmp_path, body, inputs)
    assert str(caught.value).startswith(says)


def test_a_given_value_is_the_only_one_that_is_tried(tmp_path: Path) -> None:
    body = "y = ReduceMax <axes: ints = [1]> (x)"
    assert proven(tmp_path, body, x=-1e9) == {"x": -1e9}
    with pytest.raises(NotProvenError, match="whose padded part is -1000"):
        proven(tmp_path, body, x=-1000.0)


def test_every_rule_is_of_an_operator_that_there_is() -> None:
    import tvm

    known = set(tvm.ir.Op.list_op_names())
    assert {name for name in RULES if f"relax.{name}" not in known} == set()


def test_values_hold_what_their_elements_may_be() -> None:
    assert join(constant(2), constant(-3)) == ValueRange(-3, 2)
    assert constant(float("nan")) == ANYTHING and not constant(-INF).finite
    assert of_array(np.array([1.0, np.nan])) == ANYTHING and of_array(np.array([True])) == ValueRange(1, 1)
    assert FINITE.drop == 0 and ValueRange(-INF, -1e9).drop == -1e9 and ValueRange(offset=-1e4).is_masked
    assert not ValueRange(-INF, -1e9, finite=False).is_masked
    assert json_fill(-INF) == "-inf" and typed_fill("x", "-inf", "float32") == -INF


@pytest.mark.parametrize(
    ("kind", "says"), [("LOGISTIC", None), ("MEAN", "MEAN (output y): it reduces axis 1")]
)
def test_a_tflite_model(tmp_path: Path, kind: str, says: str | None) -> None:
    tensors = [Tensor("x", (1, 16, 4), signature=(1, -1, 4))]
    options_, reads = None, [0]
    if kind == "MEAN":
        options_ = schema.ReducerOptionsT()
        tensors.append(Tensor("axes", (1,), "int32", data=np.array([1], np.int32)))
        reads.append(1)
    shape = (1, 4) if kind == "MEAN" else (1, 16, 4)
    tensors.append(Tensor("y", shape, signature=(1, 4) if kind == "MEAN" else (1, -1, 4)))
    operator = getattr(schema.BuiltinOperator, kind)
    path = write(tmp_path / "m.tflite", tensors, operator, options_, reads, [len(reads)])
    segment = Segment(strategy="pad", min=5, max=16, multiple=1, size=16)
    config = ImportConfig.model_validate(
        {"name": "m", "inputs": {"x": {"shape": [1, "seq", 4]}}, "dims": {"seq": {"min": 1, "max": 16}}}
    )
    ports = [port(name, [1, "seq", 4]) for name in "xy"]
    interface = Interface(model="m", inputs=ports[:1], outputs=ports[1:])
    bucket = Box(name="seq_pad16", dims={"seq": segment})
    if says is None:
        assert padding(config, path, interface, bucket) == PaddingProof(proof="graph", fill={"x": 0})
        return
    with pytest.raises(KilnError) as caught:
        padding(config, path, interface, bucket)
    assert f"model 'm': dims.seq: pad 16 is not proven neutral: {says}" in str(caught.value)
    assert "pad: {to: 16, assume: measured}" in str(caught.value)
    measured = Box(name="seq_pad16", dims={"seq": segment.model_copy(update={"measured": True})})
    assert padding(config, path, interface, measured) == PaddingProof(proof="measured", fill={"x": 0})
