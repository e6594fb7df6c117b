"""Quantising models with graphs nested in If and Loop, and with inputs that are numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from kiln.command_line.quantise.graphs import OnnxGraph
from kiln.command_line.quantise.quantiser import Quantiser
from kiln.command_line.quantise.run import quantise
from kiln.errors import KilnError
from kiln.golden.reference import open_reference
from onnx import numpy_helper

# Both branches read `a`, whose channels differ by a factor of 100, and the weights of the outer product.
BRANCHES = """<ir_version: 8, opset_import: ["" : 17]>
net (float[3,8] x, bool flag, float gain) => (float[3,8] y)
<float[8,8] w, float[8,8] v>
{
    p = MatMul(x, v)
    a = Relu(p)
    b = MatMul(a, w)
    c = Mul(b, gain)
    d = If(flag) <
        then_branch = yes () => (float[3,8] then_y) { then_p = MatMul(a, w)  then_y = Tanh(then_p) },
        else_branch = no () => (float[3,8] else_y) { else_y = Sigmoid(a) }
    >
    y = Add(c, d)
}
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    model, random = onnx.parser.parse_model(BRANCHES), np.random.default_rng(3)
    del model.graph.initializer[:]
    spread = 10.0 ** np.linspace(-2, 0, 8)
    for name, factor in (("v", spread), ("w", np.ones(8))):
        value = (random.standard_normal((8, 8)) * factor).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.save(model, str(tmp_path / "net.onnx"))
    return tmp_path / "net.onnx"


def test_what_nested_graphs_read_stays(net: Path, tmp_path: Path) -> None:
    assert {"a", "w", "y"} <= OnnxGraph(onnx.load(str(net))).outputs
    random, data, out = np.random.default_rng(4), tmp_path / "data.npz", tmp_path / "out.onnx"
    x, flag = random.standard_normal((24, 3, 8)).astype(np.float32), np.arange(24) % 2 == 0
    gain = random.random(24).astype(np.float32)  # a number for each sample
    np.savez(data, x=x, flag=flag, gain=gain)
    quantise(str(net), data, out)
    onnx.checker.check_model(onnx.load(str(out)), full_check=True)
    before, after = open_reference(net), open_reference(out)
    for inputs in zip(x, flag, gain, strict=True):
        arrays = [np.asarray(value) for value in inputs]
        error = np.abs(after.run(arrays)[0] - before.run(arrays)[0]).max()
        assert error < 0.15
    assert quantise(str(net), None, out).figures.snr > 10  # golden inputs that are numbers, too


def test_a_sample_that_the_model_cannot_compute_is_named(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (int64[2] ids) => (float[2,4] y) <float[9,4] table>
    { rows = Gather(table, ids)  y = MatMul(rows, w) }
    """
    model = onnx.parser.parse_model(text)
    del model.graph.initializer[:]
    for name, shape in (("table", (9, 4)), ("w", (4, 4))):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    onnx.save(model, str(tmp_path / "net.onnx"))
    np.savez(tmp_path / "data.npz", ids=np.array([[1, 2], [3, 9]]))
    with pytest.raises(
        KilnError, match=r"data\.npz: sample 1: the reference, onnxruntime, .*idx=9 "
    ) as error:
        quantise(str(tmp_path / "net.onnx"), tmp_path / "data.npz", tmp_path / "out.onnx")
    assert "golden" not in str(error.value)


def test_sizes_that_the_file_names(net: Path, tmp_path: Path) -> None:
    """0 and -1 are dynamic sizes, too."""
    model = onnx.load(str(net))
    for axis, size in enumerate((0, -1)):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
    onnx.save(model, str(tmp_path / "open.onnx"))
    named = Quantiser(tmp_path / "open.onnx", tmp_path).ports()[0]
    assert (named.shape, named.declared) == ((None, None), (None, None))


def test_a_model_that_onnx_runtime_cannot_load_is_named(tmp_path: Path) -> None:
    """As with a shape that the file declares and the nodes do not have; not the file made from it."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[2,4] x) => (float[2,4] y) <float[4,4] w, float[2,3] p> { p = MatMul(x, w)  y = Add(p, x) }
    """
    model = onnx.parser.parse_model(text)
    path = tmp_path / "net.onnx"
    onnx.save(model, str(path))
    with pytest.raises(KilnError, match=r"net.onnx: the reference cannot load it") as refused:
        quantise(str(path), None, tmp_path / "out.onnx")
    assert "prepared" not in str(refused.value)
