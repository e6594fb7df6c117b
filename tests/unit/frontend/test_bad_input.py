"""What a user may hand to `import` by mistake: one line on stderr, status 2, nothing written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from kiln.__main__ import main
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from relaxed import virtual_machine

from .model_files import GOOD, onnx_file, tflite_file


def test_good_files_are_imported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "import.json"
    settings.write_text(json.dumps({"name": "m"}))
    for source in (onnx_file(tmp_path / "m.onnx"), tflite_file(tmp_path / "m.tflite")):
        out = tmp_path / source.suffix
        assert main(["import", "--config", str(settings), "--source", str(source), "--out", str(out)]) == 0
        assert sorted(path.name for path in out.iterdir()) == [
            "interface.json",
            "module.json",
            "params.safetensors",
        ]
    assert capfd.readouterr() == ("", "")


def test_the_stage_imports_for_a_bucket(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = onnx_file(tmp_path / "m.onnx", GOOD.replace("1,4", "n,4"))
    config, bucket = tmp_path / "import.json", tmp_path / "bucket.json"
    config.write_text(json.dumps({"name": "m", "dims": {"n": {"min": 1, "max": 8}}}))
    part = {"strategy": "dynamic", "min": 1, "max": 8, "multiple": 1, "size": None}
    bucket.write_text(json.dumps({"name": "all", "dims": {"n": part}}))
    files = ["--config", str(config), "--source", str(source), "--out", str(tmp_path / "out")]
    assert main(["import", "--bucket", str(bucket), *files]) == 0
    content = json.loads((tmp_path / "out" / "interface.json").read_text())
    assert [entry["shape"] for entry in (*content["inputs"], *content["outputs"])] == [["n", 4], ["n", 4]]
    bucket.unlink()
    assert main(["import", "--bucket", str(bucket), *files]) == 2
    assert str(bucket) in capfd.readouterr().err


@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
def test_missing_empty_folder_and_text(tmp_path: Path, refused: Any, suffix: str) -> None:
    source = tmp_path / f"m{suffix}"
    assert "no such model file" in refused(source)
    source.write_bytes(b"")
    assert "is empty" in refused(source)
    source.write_text("This is a README, not a model.\n" * 40)
    assert "plain text" in refused(source)
    source.write_bytes(bytes(range(256)) * 40)
    assert str(source) in refused(source)
    source.unlink()
    source.mkdir()
    assert "cannot read" in refused(source)


def test_other_formats(tmp_path: Path, refused: Any) -> None:
    source = tmp_path / "m.h5"
    source.write_bytes(b"\x89HDF")
    assert "unknown model format '.h5', allowed: .onnx, .tflite" in refused(source)


def test_onnx_cut_short(tmp_path: Path, refused: Any) -> None:
    content = onnx_file(tmp_path / "whole.onnx").read_bytes()
    source = tmp_path / "m.onnx"
    for length in range(1, len(content), 3):
        source.write_bytes(content[:length])
        assert str(source) in refused(source)


def test_onnx_with_operators_that_nothing_knows(tmp_path: Path, refused: Any) -> None:
    text = GOOD.replace("b = Exp(a)", "c = Frobnicate(a) b = Twist(c)")
    model = onnx.parser.parse_model(text)
    model.graph.node[1].name = "layer3/frob"
    source = tmp_path / "m.onnx"
    source.write_bytes(model.SerializeToString())
    message = refused(source)
    assert "Frobnicate (node layer3/frob)" in message
    assert "Twist (node with output b); Frobnicate, Twist are not operators of ONNX" in message


def test_onnx_with_operators_that_cannot_be_imported(tmp_path: Path, refused: Any) -> None:
    text = GOOD.replace("b = Exp(a)", "b = Bernoulli(a)")
    model = onnx.parser.parse_model(text)
    model.graph.node[1].name = "the_draw"
    source = tmp_path / "m.onnx"
    source.write_bytes(model.SerializeToString())
    message = refused(source)
    assert "operators that cannot be imported: Bernoulli (node the_draw)" in message
    assert "'cut: {inputs: [b]}'" in message  # numbers drawn at random can be an input


@pytest.mark.parametrize(
    ("domain", "told"),
    [
        ("com.microsoft.nchwc", "ONNX Runtime has optimised the file for one processor: build the file from"),
        ("qonnx.custom_op.general", "as QuantizeLinear and DequantizeLinear (QDQ or QCDQ)"),
    ],
)
def test_onnx_with_operators_of_another_tool(tmp_path: Path, refused: Any, domain: str, told: str) -> None:
    model = onnx.parser.parse_model(GOOD.replace("b = Exp(a)", "b = ReorderInput(a)"))
    model.graph.node[1].domain = domain
    model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    source = tmp_path / "m.onnx"
    source.write_bytes(model.SerializeToString())
    assert told in refused(source)


def test_onnx_operator_in_a_form_that_cannot_be_imported(tmp_path: Path, refused: Any) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1,4,4] x, float[1,1,3,3] w) => (float[1,1,2,2] y) {
      y = Conv<auto_pad: string = "SIDEWAYS">(x, w)
    }"""
    message = refused(onnx_file(tmp_path / "m.onnx", text))
    assert "Conv (node with output y): attribute 'auto_pad' is 'SIDEWAYS', allowed: NOTSET, SAME_" in message


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("Add(a, q)", r"Add \(node with output y\): its input 'q' is not the output of a node, nor an input"),
        ("Add(a, c) c = Abs(y)", ": its input '[cy]' is computed from its own result: the graph has a cycle"),
    ],
)
def test_onnx_that_reads_what_it_does_not_have(tmp_path: Path, refused: Any, wrong: str, said: str) -> None:
    message = refused(onnx_file(tmp_path / "m.onnx", GOOD.replace("Add(a, b)", wrong)))
    assert re.search(said, message), message


def damaged_weight(path: Path, **fields: Any) -> Path:
    """GOOD plus a weight w, whose fields are set, in place of b."""
    model = onnx.parser.parse_model(GOOD.replace("Add(a, b)", "Add(a, w)"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 4), "float32"), "w"))
    for name, value in fields.items():
        setattr(model.graph.initializer[0], name, value)
    path.write_bytes(model.SerializeToString())
    return path


def test_onnx_with_a_weight_of_another_size_or_type(tmp_path: Path, refused: Any) -> None:
    path = tmp_path / "m.onnx"
    message = refused(damaged_weight(path, raw_data=b"\0" * 20))
    assert "the weight 'w' has 20 bytes, allowed for [1, 4] of type float32: 16" in message
    assert "the weight 'w' is of type number 77" in refused(damaged_weight(path, data_type=77))


@pytest.mark.parametrize(
    ("kind", "number", "allowed"),
    [
        ("INT8", 300, "int8: -128 to 127"),
        ("UINT8", -1, "uint8: 0 to 255"),
        ("INT16", 1 << 15, "int16: -32768"),
    ],
)
def test_an_integer_that_its_type_does_not_have(
    tmp_path: Path, refused: Any, kind: str, number: int, allowed: str
) -> None:
    """Other readers cut off bits: a zero point of 300 became 44."""
    model = onnx.parser.parse_model(GOOD)
    model.graph.initializer.add(name="z", data_type=getattr(onnx.TensorProto, kind), int32_data=[number])
    onnx.save(model, tmp_path / "m.onnx")
    assert f"the weight 'z' has the element {number}, allowed for {allowed}" in refused(tmp_path / "m.onnx")


def test_onnx_of_an_operator_set_that_is_not_known(tmp_path: Path, refused: Any) -> None:
    newest = onnx.defs.onnx_opset_version()
    message = refused(onnx_file(tmp_path / "m.onnx", GOOD.replace(": 17", f": {newest + 1}")))
    assert f"operator set {newest + 1}, known: up to {newest}; export the model with an older" in message
    message = refused(onnx_file(tmp_path / "two.onnx", GOOD.replace(": 17", ': 17, "ai.onnx" : 11')))
    assert "of the operator sets 11, 17 at once" in message


def test_onnx_runtimes_operators_need_no_import(tmp_path: Path) -> None:
    """ONNX Runtime, too, runs files that do not import its own operators."""
    text = GOOD.replace("Add(a, b)", "com.microsoft.Gelu(a)")
    module, _ = import_model(onnx_file(tmp_path / "m.onnx", text), ImportOptions("m"))
    assert "gelu" in module.script()


def test_onnx_with_a_sparse_weight(tmp_path: Path, refused: Any) -> None:
    """A sparse weight is imported as a dense one; an index outside of it is refused."""
    model = onnx.parser.parse_model(GOOD.replace("Add(a, b)", "Add(a, w)"))
    weight = model.graph.sparse_initializer.add()
    weight.dims.extend([1, 4])
    weight.values.CopyFrom(onnx.numpy_helper.from_array(np.array([5, 7], "float32"), "w"))
    weight.indices.CopyFrom(onnx.numpy_helper.from_array(np.array([1, 3]), "at"))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    module, _ = import_model(path, ImportOptions("m"))
    outputs = virtual_machine(module)["main"](tvm.runtime.tensor(np.ones((1, 4), "float32"))).numpy()
    assert outputs.tolist() == [[1, 6, 1, 8]]
    weight.indices.CopyFrom(onnx.numpy_helper.from_array(np.array([1, 4]), "at"))
    path.write_bytes(model.SerializeToString())
    assert "the sparse weight 'w'" in refused(path)


def test_onnx_input_without_a_shape(tmp_path: Path, refused: Any) -> None:
    model = onnx.parser.parse_model(GOOD)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert "input 'x' has no shape; give it with 'inputs: {x: {shape: […]}}'" in refused(path)
    module, _ = import_model(path, ImportOptions("m", shapes={"x": (1, 4)}))
    assert "(1, 4)" in module.script()


def test_onnx_with_a_dynamic_dimension(tmp_path: Path, refused: Any) -> None:
    source = onnx_file(tmp_path / "m.onnx", GOOD.replace("[1,4]", "[N,4]"))
    message = refused(source)
    assert (
        "input 'x' axis 0 ('N') is dynamic and has no range; give a range with dims=n:1..8 on the command "
        "line or 'dims: {n: {min: 1, max: 8}}', or its size with 'inputs: {x: {shape: […]}}' in the model's"
    ) in message
    several = onnx_file(tmp_path / "several.onnx", GOOD.replace("[1,4]", "[N,M]"))
    assert (
        "2 sizes are dynamic and have no range: input 'x' axis 0 ('N') and axis 1 ('M'); give ranges with "
        "dims=n:1..8,m:1..8 on the command line or 'dims: {n: {min: 1, max: 8}, m: {min: 1, max: 8}}', or "
        "all sizes with 'inputs: {x: "
    ) in refused(several)
    named = onnx.load(source)
    named.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "seq len"
    onnx.save(named, tmp_path / "named.onnx")
    assert "dims: {seq_len: {min: 1" in refused(tmp_path / "named.onnx")
    assert "ranges over 1..8" in refused(tmp_path / "named.onnx", dims={"seq_len": {"min": 1, "max": 8}})
    named.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "seq_LEN"
    onnx.save(named, tmp_path / "twice.onnx")
    ranges = {"seq_len": {"min": 1, "max": 8}}
    assert "'seq len' of input 'x' and 'seq_LEN' of input 'x' have the same key, dims.seq_len" in refused(
        tmp_path / "twice.onnx", dims=ranges
    )
    assert "same key" not in refused(
        tmp_path / "twice.onnx", inputs={"x": {"shape": ["seq_len", 4]}}, dims=ranges
    )
    assert "no such input" in refused(source, inputs={"input": {"shape": [1, 4]}})
    assert "axis 1 is 4 in the file" in refused(source, inputs={"x": {"shape": [1, 5]}})
    assert "ranges over 1..8" in refused(source, dims={"n": {"min": 1, "max": 8}})


@pytest.mark.parametrize("make", [onnx_file, tflite_file])
@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"inputs": {"z": {}}}, "inputs.z: the model has no such input; known: x"),
        (
            {"inputs": {"x": {"dtype": "int8"}}},
            "inputs.x.dtype: 'int8', but the input is float32 in the file",
        ),
        ({"outputs": {"z": {"layout": "NC"}}}, "outputs.z: the model has no such output; known: y"),
        ({"outputs": {"y": {"dtype": "int8"}}}, "outputs.y.dtype: 'int8', but the output is float32"),
        ({"outputs": {"y": {"shape": [4]}}}, "outputs.y.shape: 1 axes, but the output has 2"),
        ({"outputs": {"y": {"shape": [1, 5]}}}, "outputs.y.shape: axis 1 is 5, but 4 in the model"),
    ],
)
def test_what_contradicts_the_file_is_refused(
    make: Any, config: dict[str, Any], says: str, tmp_path: Path, refused: Any
) -> None:
    assert says in refused(make(tmp_path / f"m.{make.__name__.partition('_')[0]}"), **config)


def test_damaged_configuration(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "import.json"
    source = onnx_file(tmp_path / "m.onnx")
    settings.write_text('{"name":')
    assert (
        main(["import", "--config", str(settings), "--source", str(source), "--out", str(tmp_path / "o")])
        == 2
    )
    assert "not valid JSON" in capfd.readouterr().err
    assert not (tmp_path / "o").exists()


def test_onnx_with_weights_in_another_file(tmp_path: Path, refused: Any) -> None:
    model = onnx.parser.parse_model(GOOD.replace("Exp(a)", "Add(a, w)"))
    weights = onnx.numpy_helper.from_array(np.ones((1, 4), np.float32), "w")
    model.graph.initializer.append(weights)
    source, apart = tmp_path / "m.onnx", {"save_as_external_data": True, "size_threshold": 0}
    onnx.save(model, source, location="m.weights", **apart)
    import_model(source, ImportOptions("m"))
    (tmp_path / "m.weights").unlink()
    message = refused(source)
    assert (
        "its weights are in another file (m.weights), which is damaged or missing in the folder of the model"
        in message
    )
    assert str(tmp_path / "m.weights") not in message


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("string", "file cut: {inputs: [TENSOR]}"),
        ("complex64", "type complex64, allowed: bfloat16, "),
    ],
)
def test_onnx_of_a_type_that_nothing_computes(tmp_path: Path, refused: Any, kind: str, told: str) -> None:
    text = GOOD.replace("float", kind).replace("a = Relu(x) b = Exp(a) y = Add(a, b)", "y = Identity(x)")
    assert told in refused(onnx_file(tmp_path / "m.onnx", text))
