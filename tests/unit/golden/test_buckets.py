"""Golden vectors of a model with buckets: which sizes, which input sets, which masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.__main__ import main
from kiln.golden.compare import read_tensor

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (int64[batch,seq] ids, float[batch,seq] mask) => (float[batch,seq] y, float[batch,half] z) {
  f = Cast <to: int = 1> (ids)
  y = Mul(f, mask)
  s = Constant <value = int64[1] {1}> ()
  b = Constant <value = int64[1] {0}> ()
  e = Constant <value = int64[1] {9999}> ()
  t = Constant <value = int64[1] {2}> ()
  z = Slice(y, b, e, s, t)
}
"""
DIMS = [
    {"name": "batch", "min": 1, "max": 4, "multiple": 1},
    {"name": "seq", "min": 1, "max": 512, "multiple": 1},
]


def port(name: str, dtype: str, shape: list[Any]) -> dict[str, Any]:
    return {"name": name, "c_name": name, "dtype": dtype, "shape": shape, "layout": None, "quant": None}


INTERFACE: dict[str, Any] = {
    "model": "m",
    "inputs": [port("ids", "int64", ["batch", "seq"]), port("mask", "float32", ["batch", "seq"])],
    "outputs": [
        port("y", "float32", ["batch", "seq"]),
        port("z", "float32", ["batch", ["//", ["+", "seq", 1], 2]]),
    ],
    "dims": DIMS,
}
GOLDEN = {
    "inputs": [
        {"kind": "random", "seed": 1, "high": 99, "inputs": {"mask": {"low": 5, "high": 9}}},
        {"kind": "random", "seed": 2, "low": 100, "high": 199},
    ]
}


def part(strategy: str, least: int, most: int) -> dict[str, Any]:
    size = most if strategy in ("exact", "pad") else None
    return {"strategy": strategy, "min": least, "max": most, "multiple": 1, "size": size}


BUCKETS = [
    {"name": "batch1_seq16", "dims": {"batch": part("exact", 1, 1), "seq": part("exact", 16, 16)}},
    {"name": "batch1_seq_pad64", "dims": {"batch": part("exact", 1, 1), "seq": part("pad", 1, 64)}},
    {"name": "dynamic", "dims": {"batch": part("dynamic", 1, 4), "seq": part("dynamic", 1, 512)}},
]


class Stage:
    """Runs the stage on MODEL with changed settings."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.out, self.capfd = folder, folder / "golden", capfd
        (folder / "m.onnx").write_bytes(onnx.parser.parse_model(MODEL).SerializeToString())

    def run(
        self, buckets: list[dict[str, Any]] | None = None, interface: Any = None, **config: Any
    ) -> tuple[int, str]:
        settings: dict[str, Any] = {
            "name": "m",
            "golden": GOLDEN,
            "inputs": {"mask": {"mask": True, "pad": None}},
            **config,
        }
        files = {
            "config": settings,
            "interface": interface or INTERFACE,
            "buckets": {"format": 1, "dims": DIMS, "fallback": "dynamic", "buckets": buckets or BUCKETS},
        }
        arguments = ["golden", "--source", str(self.folder / "m.onnx"), "--out", str(self.out)]
        for name, content in files.items():
            (self.folder / f"{name}.json").write_text(json.dumps(content))
            arguments += [f"--{name}", str(self.folder / f"{name}.json")]
        return main(arguments), self.capfd.readouterr().err

    def golden(self) -> Any:
        return json.loads((self.out / "golden.json").read_text())

    def load(self, port: dict[str, Any]) -> Any:
        return read_tensor(self.out / port["file"], port["dtype"], port["shape"])


@pytest.fixture
def stage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Stage:
    return Stage(tmp_path, capfd)


def test_every_bucket_at_its_least_inner_and_greatest_size(stage: Stage) -> None:
    assert stage.run() == (0, "")
    golden = stage.golden()
    assert [(v["name"], v["bucket"]) for v in golden["vectors"]] == [
        ("batch1_seq16_random_1", "batch1_seq16"),
        ("batch1_seq16_random_1_masked", "batch1_seq16"),
        ("batch1_seq1_random_2", "batch1_seq_pad64"),
        ("batch1_seq33_random_1_masked", "batch1_seq_pad64"),
        ("batch1_seq64_random_2", "batch1_seq_pad64"),
        ("batch1_seq65_random_1", "dynamic"),
        ("batch3_seq257_random_2_masked", "dynamic"),
        ("batch4_seq512_random_1", "dynamic"),
    ]
    assert golden["dims"] == DIMS and golden["buckets"] == BUCKETS
    assert [port["shape"] for port in golden["inputs"]] == [["batch", "seq"]] * 2
    for vector in golden["vectors"]:
        batch, seq = vector["dims"]["batch"], vector["dims"]["seq"]
        ids, mask = (stage.load(port) for port in vector["inputs"])
        y, z = (stage.load(port) for port in vector["outputs"])
        assert ids.shape == (batch, seq) and z.shape == (batch, (seq + 1) // 2)
        np.testing.assert_array_equal(y, ids * mask)
        zeros = seq // 4 if vector["name"].endswith("_masked") else 0
        assert (mask[:, : seq - zeros] == 1).all() and (mask[:, seq - zeros :] == 0).all()
        low, high = (0, 99) if "random_1" in vector["name"] else (100, 199)
        assert low <= ids.min() and ids.max() <= high
    files = {port["file"] for v in golden["vectors"] for s in ("inputs", "outputs") for port in v[s]}
    assert {path.name for path in stage.out.iterdir()} == files | {"golden.json", "padding.json"}
    padding = json.loads((stage.out / "padding.json").read_text())
    assert [bucket["name"] for bucket in padding["buckets"]] == ["batch1_seq_pad64"]


def test_few_points_get_every_input_set(stage: Stage) -> None:
    assert stage.run(BUCKETS[:1], inputs={})[0] == 0
    names = [vector["name"] for vector in stage.golden()["vectors"]]
    assert names == ["batch1_seq16_random_1", "batch1_seq16_random_2"]


def test_given_tensors_bring_their_sizes(stage: Stage, tmp_path: Path) -> None:
    def given(seq: int) -> dict[str, Any]:
        np.save(tmp_path / "ids.npy", np.arange(2 * seq, dtype=np.int64).reshape(2, seq))
        np.save(tmp_path / "mask.npy", np.ones((2, seq), np.float32))
        sources = {n: {"kind": "file", "path": str(tmp_path / f"{n}.npy")} for n in ("ids", "mask")}
        return {"inputs": [{"kind": "tensors", "tensors": sources}]}

    assert stage.run(golden=given(7), inputs={}) == (0, "")
    vectors = stage.golden()["vectors"]
    assert [v["name"] for v in vectors if v["dims"] == {"batch": 2, "seq": 7}] == ["batch2_seq7_tensors"]
    assert len(vectors) == 8 and sum(v["name"].endswith("random_1") for v in vectors) == 7
    status, printed = stage.run(golden=given(600), inputs={})
    assert (status, printed) == (
        2,
        "kiln: error: model 'm': golden.inputs: kind 'tensors': seq is 600, allowed 1..512\n",
    )
    status, printed = stage.run(BUCKETS[:2], golden=given(7), inputs={})
    assert status == 2 and "tensors has batch2_seq7, which no bucket serves" in printed


def test_an_output_that_is_not_as_the_import_says(stage: Stage) -> None:
    wrong = json.loads(json.dumps(INTERFACE))
    wrong["outputs"][1]["shape"] = ["batch", ["//", "seq", 2]]
    status, printed = stage.run(interface=wrong)
    assert status == 2 and not stage.out.exists()
    assert "output 'z' of batch1_seq1_random_2 is float32[1, 1] in the reference, float32[1, 0] in" in printed


def test_bounds_for_an_input_that_is_not_there(stage: Stage) -> None:
    golden = {"inputs": [{"kind": "random", "seed": 1, "inputs": {"idz": {"low": 1}}}]}
    status, printed = stage.run(golden=golden)
    assert (status, printed) == (
        2,
        "kiln: error: model 'm': golden.inputs: no input is called 'idz', there are: ids, mask\n",
    )


@pytest.mark.parametrize("value", [0.5, 2.0**70])
def test_a_padding_that_the_type_cannot_hold(stage: Stage, value: float) -> None:
    ports = {"ids": {"mask": False, "pad": value}, "mask": {"mask": True, "pad": None}}
    status, printed = stage.run(inputs=ports)
    assert status == 2 and f"inputs.ids.pad: {value}, allowed for int64: whole numbers in -9223" in printed


def test_same_bytes_every_time(stage: Stage) -> None:
    contents = []
    for _ in range(2):
        assert stage.run()[0] == 0
        contents.append({path.name: path.read_bytes() for path in stage.out.iterdir()})
    assert contents[0] == contents[1]


def test_each_special_content_has_a_vector_in_each_bucket_that_it_fits(stage: Stage, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(16, dtype=np.int64).reshape(1, 16))
    cases = [
        {"input": "mask", "value": "ones"},
        {"input": "ids", "value": "zeros"},
        {"input": "ids", "value": {"kind": "file", "path": str(tmp_path / "ids.npy")}},
    ]
    assert stage.run(special_cases=cases) == (0, "")
    found = {v["name"]: v for v in stage.golden()["vectors"] if "_case" in v["name"]}
    assert list(found) == [
        "batch1_seq16_random_1_case2",
        "batch1_seq16_random_1_case3",
        "batch1_seq33_random_1_case2",
        "batch3_seq257_random_2_case2",
    ]
    for name, vector in found.items():
        ids, mask = (stage.load(port) for port in vector["inputs"])
        assert (mask == 1).all()
        assert ids.tolist() == ([list(range(16))] if name.endswith("3") else np.zeros_like(ids).tolist())
    both = [{"input": "ids", "value": "zeros"}, {"dim": "seq", "range": [20, 31]}]
    assert stage.run(special_cases=[{"all": both}, {"dim": "seq", "exact": 16}]) == (0, "")
    made = {v["name"]: v["dims"]["seq"] for v in stage.golden()["vectors"] if "_case" in v["name"]}
    assert set(made.values()) == {16, 31}  # nearest to the sizes of the other vectors
    # The least multiples of 16 belong to other buckets: the next one is taken.
    assert stage.run(special_cases=[{"dim": "seq", "multiple": 16}]) == (0, "")
    made = {v["bucket"]: v["dims"]["seq"] for v in stage.golden()["vectors"] if "_case" in v["name"]}
    assert len(made) == 3 and all(size % 16 == 0 for size in made.values())
    static = {"name": "static", "dims": {}}
    fixed = json.loads(json.dumps(INTERFACE).replace('"batch"', "1").replace('"seq"', "3"))
    assert stage.run([static], {**fixed, "dims": []}, special_cases=cases[1:2]) == (0, "")
    names = [vector["name"] for vector in stage.golden()["vectors"]]
    assert names == ["random_1", "random_2", "random_2_case1"]
