"""Commands read a PyTorch model as the ONNX file that it becomes, with the dimensions of the model.

The archives have no program, and PyTorch's exporter is replaced by a file: neither needs PyTorch.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from kiln.command_line import model_files
from kiln.command_line.model_files import graph_of, traced_by_build
from kiln.command_line.own_process import run_stage
from kiln.command_line.quantise.run import quantise
from kiln.config import load_model
from kiln.errors import KilnError
from kiln.frontend.cut_stage import run as cut_stage
from kiln.frontend.onnx.size_names import name_sizes
from kiln.sources.torch_model import with_sizes
from kiln.stage import Stage
from kiln.stages.model import CutStage, ExportStage, TraceStage

from unit.sources.test_torch_archive import symbol, write

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[s0,4] x, float[s0,s1] mask) => (float[s0,3] y, float[s1] total)
<float[4,3] w = {WEIGHTS}, int64[1] axis = {0}>
{
    product = MatMul(x, w)
    positive = Relu(product)
    y = Tanh(positive)
    total = ReduceSum<keepdims = 0>(mask, axis)
}
"""
DIMS = {"x_0": {"min": 2, "max": 6}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with net.pt2 and a replacement of its exporter."""
    shapes = {"x": [symbol("s0"), 4], "mask": [symbol("s0"), symbol("s1")]}
    write(tmp_path / "net.pt2", shapes, {"s0": (2, 6), "s1": (3, 3)})
    weights = np.random.default_rng(1).normal(size=12).round(2)

    def run(stage: Stage) -> None:
        if isinstance(stage, TraceStage):
            stage.out.write_bytes((tmp_path / "net.pt2").read_bytes())
        else:
            assert isinstance(stage, ExportStage)
            model = onnx.parser.parse_model(
                NET.replace("{WEIGHTS}", "{" + ", ".join(map(str, weights)) + "}")
            )
            onnx.save(model, str(stage.out))

    monkeypatch.setattr(model_files, "run_stage", run)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def described(folder: Path, **keys: object) -> str:
    (folder / "part.yaml").write_text(json.dumps({"source": {"kind": "file", "path": "net.pt2"}, **keys}))
    return str(folder / "part.yaml")


def shapes_of(path: Path) -> dict[str, list[int | str]]:
    graph = onnx.load(str(path)).graph
    return {
        value.name: [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }


def test_the_graph_has_the_dimensions_of_the_model(folder: Path) -> None:
    model, path = graph_of(load_model("net.pt2"), folder / "work", "compare", (".onnx",))
    wanted = {"x": ["x_0", 4], "mask": ["x_0", "mask_1"], "y": ["x_0", 3], "total": ["mask_1"]}
    assert shapes_of(path) == wanted
    assert {name: (dim.min, dim.max) for name, dim in model.dims.items()} == {"x_0": (2, 6), "mask_1": (3, 3)}
    assert (model.format, model.cut, model.inputs) == ("onnx", None, {})


def test_names_and_sizes_of_the_yaml_file_are_those_of_the_graph(folder: Path) -> None:
    inputs = {"x": {"shape": ["batch", 4], "layout": "NC"}, "mask": {"shape": ["batch", 3]}}
    name = described(
        folder, inputs=inputs, dims={"batch": {"min": 2, "max": 4}}, golden={"reference": "torch"}
    )
    model, path = graph_of(load_model(name), folder / "work", "compare", (".onnx",))
    assert shapes_of(path) == {"x": ["batch", 4], "mask": ["batch", 3], "y": ["batch", 3], "total": [3]}
    assert model.inputs["x"].layout == "NC" and "mask" not in model.inputs
    assert model.golden.reference == "auto"  # of the ONNX file


def test_a_part_of_a_function(folder: Path) -> None:
    """An inner tensor is an input, with the dimensions of the inputs that the part lacks."""
    cut = {"inputs": ["product"], "outputs": {"found": "y"}}
    name = described(
        folder,
        source={"kind": "python", "function": "nets:small"},
        cut=cut,
        inputs={"mask": {"shape": ["x_0", 3]}, "product": {"layout": "NC"}},
        dims=DIMS,
    )
    model, path = graph_of(load_model(name), folder / "work", "compare", (".onnx",))
    assert shapes_of(path) == {"product": ["x_0", 3], "found": ["x_0", 3]}
    assert list(model.inputs) == ["product"] and list(model.dims) == ["x_0"]


def test_a_build_and_a_command_cut_the_same_part(folder: Path) -> None:
    cut = {"inputs": ["product"], "outputs": {"found": "y"}}
    name = described(folder, cut=cut, inputs={"mask": {"shape": ["x_0", 3]}}, dims=DIMS)
    model, shapes = with_sizes(load_model(name), folder / "net.pt2", Path("net.pt2"))
    assert not model.inputs and shapes == {"x": ["x_0", 4], "mask": ["x_0", 3]}
    part = graph_of(load_model(name), folder / "work", "compare", (".onnx",))[1]
    (folder / "cut.json").write_text(json.dumps({"cut": cut}))
    stage = CutStage(
        config=folder / "cut.json", source=folder / "work/whole.onnx", sizes=json.dumps(shapes),
        out=folder / "cut.onnx",
    )  # fmt: skip
    cut_stage(stage)
    assert (folder / "cut.onnx").read_bytes() == part.read_bytes()


def test_a_dimension_that_no_input_of_the_part_has_needs_a_size(folder: Path) -> None:
    name = described(folder, cut={"inputs": ["product"], "outputs": {"found": "y"}})
    with pytest.raises(KilnError) as raised:
        graph_of(load_model(name), folder / "work", "compare", (".onnx",))
    assert str(raised.value).endswith(
        "cut: no input of the part has the dimension 'mask_1', axis 1 of input 'mask': give that axis one "
        "size, a number in 'inputs: {mask: {shape: […]}}'"
    )


def test_the_program_is_quantised(folder: Path) -> None:
    data = folder / "data.npz"
    drawn = np.random.default_rng(2)
    runs = {"x": drawn.normal(size=(20, 2, 4)), "mask": drawn.normal(size=(20, 2, 3))}
    np.savez(data, **{name: run.astype(np.float32) for name, run in runs.items()})  # type: ignore[arg-type]
    quantise("net.pt2", data, folder / "out.onnx")
    assert shapes_of(folder / "out.onnx")["x"] == ["x_0", 4]


def test_expressions_of_sizes_are_replaced() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[n,3] x, float["8*h"] y) => (float["2*n"] z, float["8*h"] w, float[u] v) { z = Identity(x) }"""
    model = onnx.parser.parse_model(text)
    name_sizes(model, {"x": ["batch", 3], "y": ["y_0"], "absent": [1]})
    shapes = {
        value.name: [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {"x": ["batch", 3], "y": ["y_0"], "z": ["batch * 2"], "w": ["y_0"], "v": ["u"]}


def test_the_reference_of_a_function_is_what_its_build_has_exported(folder: Path) -> None:
    model = load_model(described(folder, source={"kind": "python", "function": "nets:small"}))
    source = traced_by_build(model).source.model_dump()
    assert source["path"] == str(folder / "build/.stages/models/part/traced.pt2")


def test_a_stage_that_fails_is_one_line(folder: Path) -> None:
    with pytest.raises(KilnError, match=r"^absent\.pt2: .*(no such file|No such file|need the package)"):
        run_stage(ExportStage(source=Path("absent.pt2"), out=folder / "out.onnx"))


def test_other_formats_are_refused(folder: Path) -> None:
    (folder / "net.tflite").write_bytes(b"")
    for command in ("quantise", "reduce"):
        with pytest.raises(KilnError, match=rf"model 'net': {command} accepts \.onnx and \.pt2 files"):
            graph_of(load_model("net.tflite"), folder, command, (".onnx",))
