"""Golden vectors: made by the reference, the same bytes every time, refused where they prove nothing."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.__main__ import main
from kiln.config.data import ImageInput, NormalInput, RandomInput
from kiln.config.interface import Interface
from kiln.config.source import FileSource
from kiln.errors import KilnError
from kiln.golden.compare import read_tensor
from kiln.golden.inputs import make_set, set_names
from kiln.golden.reference import open_reference
from kiln.golden.stored_ports import stored
from records import port
from tflite_files import Tensor, write

IMAGE = {"kind": "file", "path": "absent.jpg"}

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x, int64[2] n) => (float[2,3] y, int64[2] m) { y = BODY(x) m = Neg(n) }
"""


@pytest.fixture
def build(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """A function that imports a model and makes its vectors; returns (status, folder, text on stderr)."""

    def call(source: Path, name: str = "golden", **config: Any) -> tuple[int, Path, str]:
        settings, imported, out = tmp_path / "config.json", tmp_path / "import", tmp_path / name
        settings.write_text(json.dumps({"name": "m"}))
        shared = ["--config", str(settings), "--source", str(source)]
        assert main(["import", *shared, "--out", str(imported)]) == 0
        settings.write_text(json.dumps({"name": "m", **config}))
        interface = str(imported / "interface.json")
        status = main(["golden", *shared, "--interface", interface, "--out", str(out)])
        return status, out, capfd.readouterr().err

    return call


def onnx_file(path: Path, body: str = "Exp") -> Path:
    path.write_bytes(onnx.parser.parse_model(MODEL.replace("BODY", body)).SerializeToString())
    return path


def tflite_file(path: Path) -> Path:
    tensors = [Tensor("x", (1, 64), "int8", 0.05, 4), Tensor("y", (1, 64), "int8", 1 / 256, -128)]
    return write(path, tensors, schema.BuiltinOperator.LOGISTIC, None, [0], [1])


def test_the_reference_reports_nothing_to_its_publisher(tmp_path: Path) -> None:
    """With telemetry on, ONNX Runtime keeps events below HOME and a session in TMPDIR, and sends both."""
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.mkdir()
    temporary.mkdir()
    removed = ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")
    inherited = {name: value for name, value in os.environ.items() if name not in removed}
    subprocess.run(
        [sys.executable, "-c", "import kiln, onnxruntime; onnxruntime.get_available_providers()"],
        env={**inherited, "HOME": str(home), "TMPDIR": str(temporary)}, check=True,
    )  # fmt: skip
    assert [*home.rglob("*"), *temporary.rglob("*")] == []


def load(folder: Path, port: dict[str, Any]) -> Any:
    content = (folder / port["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == port["sha256"]
    return read_tensor(folder / port["file"], port["dtype"], port["shape"])


def test_vectors_of_an_onnx_model(tmp_path: Path, build: Any) -> None:
    status, out, printed = build(onnx_file(tmp_path / "m.onnx"))
    assert (status, printed) == (0, "")
    golden = json.loads((out / "golden.json").read_text())
    assert golden["model"] == "m"
    assert golden["reference"]["name"] == "onnxruntime"
    assert golden["reference"]["settings"]["graph_optimization_level"] == "ORT_DISABLE_ALL"
    assert [vector["name"] for vector in golden["vectors"]] == ["random_1", "random_2", "random_3"]
    seen = set()
    for vector in golden["vectors"]:
        x, n = (load(out, port) for port in vector["inputs"])
        y, m = (load(out, port) for port in vector["outputs"])
        np.testing.assert_allclose(y, np.exp(x), rtol=1e-6)
        assert m.tolist() == (-n).tolist()
        assert [port["name"] for port in vector["inputs"] + vector["outputs"]] == ["x", "n", "y", "m"]
        seen.add(x.tobytes())
    assert len(seen) == 3
    files = {
        port["file"]
        for vector in golden["vectors"]
        for side in ("inputs", "outputs")
        for port in vector[side]
    }
    assert {path.name for path in out.iterdir()} == files | {"golden.json"}


def test_runs_in_sequence_need_a_state(tmp_path: Path, build: Any) -> None:
    status, out, printed = build(onnx_file(tmp_path / "m.onnx"), golden={"runs": 2})
    assert (status, out.exists()) == (2, False)
    assert printed.startswith("kiln: error: model 'm': golden.runs: 2, but the model has no state that a run")


@pytest.mark.parametrize(("kind", "resolver"), [("auto", "BUILTIN"), ("builtin_ref", "BUILTIN_REF")])
def test_vectors_of_a_tflite_model(tmp_path: Path, build: Any, kind: str, resolver: str) -> None:
    golden = {
        "reference": kind,
        "inputs": [{"kind": "random", "seed": 9}, {"kind": "random", "seed": 9, "low": -3, "high": 3}],
    }
    status, out, printed = build(tflite_file(tmp_path / "m.tflite"), golden=golden)
    assert (status, printed) == (0, "")
    golden = json.loads((out / "golden.json").read_text())
    assert golden["reference"] == {
        "name": "LiteRT",
        "version": golden["reference"]["version"],
        "settings": {"op_resolver": resolver, "threads": 1},
    }
    wide, narrow = golden["vectors"]
    assert wide["outputs"][0]["quantised"]
    x = load(out, wide["inputs"][0])
    want = np.rint(256 / (1 + np.exp(-0.05 * (x.astype(float) - 4)))) - 128
    assert np.abs(load(out, wide["outputs"][0]) - np.clip(want, -128, 127)).max() <= 1
    assert len(np.unique(x)) > 30
    assert set(np.unique(load(out, narrow["inputs"][0]))) == set(range(-3, 4))


def test_same_bytes_every_time(tmp_path: Path, build: Any) -> None:
    golden = {
        "inputs": [{"kind": "random", "seed": 1}, {"kind": "normal", "seed": 1, "mean": 2.0, "std": 0.5}]
    }
    source = onnx_file(tmp_path / "m.onnx")
    folders = [build(source, name, golden=golden)[1] for name in ("first", "second")]
    contents = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]
    assert contents[0] == contents[1]


def test_drawn_values_are_pinned() -> None:
    """Drawn values stay the same: other values would change every golden vector and every bundle."""
    entries = [port("x", [3])]
    [values] = make_set(RandomInput(kind="random", seed=1, low=-1.0, high=1.0), entries, None)
    np.testing.assert_array_equal(values, np.array([0.023643249, 0.90092736, -0.71168077], np.float32))
    [values] = make_set(NormalInput(kind="normal", seed=1), entries, None)
    np.testing.assert_allclose(values, [0.345584, 0.821618, 0.330437], rtol=1e-5)


def test_sets_have_unique_names() -> None:
    image = ImageInput(kind="image", source=FileSource(kind="file", path="cat.jpg"))
    specs = [*[RandomInput(kind="random", seed=1)] * 2, image, image]
    assert set_names(specs) == ["random_1", "random_1_1", "image", "image_3"]


def test_booleans_and_wide_integers_stay_small() -> None:
    entries = [
        port("b", [64], "bool"),
        port("i", [64], "int64"),
        port("u", [4096], "uint8"),
    ]
    b, i, u = make_set(RandomInput(kind="random", seed=1), entries, None)
    assert b.dtype == bool and set(b.tolist()) == {False, True}
    assert set(i.tolist()) == {0, 1}
    assert (u.min(), u.max()) == (0, 255)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"golden": {"reference": "builtin"}},
            "golden.reference 'builtin' cannot run it, allowed: auto, onnxruntime",
        ),
        (
            {"golden": {"inputs": [{"kind": "image", "source": IMAGE}]}},
            "kind 'image' needs the model's 'preprocess'",
        ),
        (
            {
                "golden": {"inputs": [{"kind": "image", "source": IMAGE}]},
                "preprocess": {"input": "z", "size": [8, 8], "layout": "NCHW"},
            },
            "preprocess.input: 'z' is not an input of the model; known: x, n",
        ),
        (
            {
                "golden": {"inputs": [{"kind": "image", "source": IMAGE}]},
                "preprocess": {"size": [8, 8], "layout": "NCHW"},
            },
            "preprocess: key 'input' is missing; the inputs of the model are x, n",
        ),
        (
            {"preprocess": {"input": "x", "size": [8, 8], "layout": "NCHW"}},
            "model 'm': preprocess: size, channels and layout make [1, 3, 8, 8], but input 'x' is [2, 3]",
        ),
        (
            {"preprocess": {"input": "z", "size": [8, 8], "layout": "NCHW"}},
            "preprocess.input: 'z' is not an input of the model; known: x, n",
        ),
        ({"golden": {"inputs": [{"kind": "tensors", "tensors": {}}]}}, "gives no tensor for input 'x'"),
        (
            {"golden": {"inputs": [{"kind": "tensors", "tensors": dict.fromkeys("xnz", IMAGE)}]}},
            "golden.inputs: no input is called 'z', there are: x, n",
        ),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, build: Any, config: dict[str, Any], message: str) -> None:
    status, out, printed = build(onnx_file(tmp_path / "m.onnx"), **config)
    assert status == 2
    assert printed.startswith("kiln: error: ") and printed.count("\n") == 1
    assert message in printed
    assert not out.exists()


def test_an_output_without_a_finite_value_is_refused(tmp_path: Path, build: Any) -> None:
    golden = {"inputs": [{"kind": "random", "seed": 1, "low": -2.0, "high": -1.0}]}
    status, out, printed = build(onnx_file(tmp_path / "m.onnx", "Log"), golden=golden)
    assert status == 2 and not out.exists()
    assert "output 'y' of random_1 has no finite value in the reference" in printed


def test_tensors_given_as_files(tmp_path: Path, build: Any) -> None:
    x, n = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([5, 7], np.int64)
    sources = {}
    for name, value in (("x", x), ("n", n)):
        np.save(tmp_path / f"{name}.npy", value)
        sources[name] = {"kind": "file", "path": str(tmp_path / f"{name}.npy")}
    golden = {"inputs": [{"kind": "tensors", "tensors": sources}]}
    status, out, _ = build(onnx_file(tmp_path / "m.onnx"), golden=golden)
    assert status == 0
    [vector] = json.loads((out / "golden.json").read_text())["vectors"]
    assert load(out, vector["outputs"][1]).tolist() == [-5, -7]
    np.save(tmp_path / "n.npy", n.astype(np.int32))
    status, _, printed = build(onnx_file(tmp_path / "m.onnx"), "again", golden=golden)
    assert status == 2 and "is int32[2], but input 'n' is int64[2]" in printed


def test_what_onnx_runtime_says_is_told_without_its_own_sources(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy")
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    newest = [onnx.helper.make_opsetid("", 99)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=newest, ir_version=8), tmp_path / "m.onnx")
    with pytest.raises(KilnError, match=r"m\.onnx: the reference cannot load it: [^/]*Opset 99 is") as caught:
        open_reference(tmp_path / "m.onnx")
    assert "onnxruntime_src" not in str(caught.value)


def test_a_reference_that_cannot_run_names_the_users_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(
        tmp_path / "m.tflite", [Tensor("x", (1, 4), "int32"), Tensor("y", (1, 4), "int32")],
        schema.BuiltinOperator.RELU, None, [0], [1],
    )  # fmt: skip
    face = Interface(inputs=[port("x", [1, 4], "int32")], outputs=[port("y", [1, 4], "int32")])
    golden = {"inputs": [{"kind": "random", "seed": 1, "low": 0, "high": 4}]}
    (tmp_path / "face.json").write_text(face.model_dump_json())
    (tmp_path / "config.json").write_text(json.dumps({"name": "m", "golden": golden}))
    files = ["--interface", str(tmp_path / "face.json"), "--config", str(tmp_path / "config.json")]
    files += ["--called", "mine/net.tflite", "--out", str(tmp_path / "out")]
    assert main(["golden", "--source", str(path), *files]) == 2
    line = capfd.readouterr().err
    assert line.startswith("kiln: error: mine/net.tflite: the reference, LiteRT, cannot run it: "), line
    assert "'dims'" not in line and "key 'golden'" in line, line  # the file fixes all sizes
    assert not (tmp_path / "out").exists()


def test_files_older_than_the_reference_are_to_be_converted(tmp_path: Path) -> None:
    header = '<ir_version: 3, opset_import: ["": 6]>'
    model = onnx.parser.parse_model(header + "g (float[2] x) => (float[2] y) { y = PRelu(x, x) }")
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(KilnError, match=r"operators of opset 6: convert it with onnx\.version_converter"):
        open_reference(tmp_path / "m.onnx")


def test_stored_elements_without_axes_keep_their_shape() -> None:
    one = onnx.numpy_helper.to_array(onnx.helper.make_tensor("x", onnx.TensorProto.BFLOAT16, [], [1.5]))
    assert stored(one, onnx.TensorProto.BFLOAT16).shape == ()
