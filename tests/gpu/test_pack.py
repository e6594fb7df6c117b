"""The pack for a machine with a GPU, run on this machine against the stand-in for the driver."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import yaml
from kiln.config import load_model, load_target
from kiln.sources import generators
from kiln.tune.gpu import folder
from kiln.tune.gpu import times as gpu_times

from . import double, on_gpu, pack
from .conftest import MODEL, SessionProgram

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86-64 machines")


@pytest.mark.heavy
def test_a_pack_runs_where_there_is_no_kiln(
    built: SessionProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A case that cannot be built is named in the end, and the others are in the pack."""

    def build(case: str, work: Path, goal: str | None = None) -> Path:
        raise subprocess.CalledProcessError(2, ["kiln", case])

    monkeypatch.setattr(pack, "build", build)
    candidates = folder.write([], load_target(pack.TARGET), tmp_path / "candidates", tmp_path / "cache")
    options = ["--bundle", f"{MODEL}.int8={built.bundle}", "--candidates", f"{MODEL}.none={candidates.path}"]
    with pytest.raises(SystemExit, match="not built, and not in the pack: broken:fp16"):
        pack.main([str(tmp_path / "pack"), "broken:fp16", *options])
    part_folder = tmp_path / "pack" / "part0"
    environment = {**double.environment(built.driver, kernels=built.kernels), "PYTHONPATH": ""}
    words = [sys.executable, str(part_folder / "on_gpu.py"), "--repeat", "2", "--milliseconds", "1"]
    done = subprocess.run(
        [*words, "--out", str(tmp_path / "out")],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "golden vectors: 1 of 1 bundles are right" in done.stdout
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    (golden,) = results["golden"].values()
    assert golden["faults"] == [] and golden["of_the_limit"] <= 1
    assert golden["same"] == golden["repeated"] == 2
    (times,) = results["time"].values()
    (bucket,) = times.values()
    assert (
        bucket["least"] > 0
        and bucket["in_place"] > 0
        and len(bucket["steps"]) == len(built.plan["buckets"][0]["steps"])
    )
    assert results["converted"] == {f"{MODEL}.int8": {"inputs": 0}}
    assert results["candidates"] == {f"{MODEL}.none": {"timed": 0, "failed": []}}
    lines = (tmp_path / "out" / f"{MODEL}.none.times.tsv").read_text(encoding="utf-8")
    assert gpu_times.read(lines, "times.tsv", candidates.digest).gpu == "Fake GPU"
    assert len(results["sanitize"]) == 4 and len(results["ncu"]) == 1


@pytest.mark.parametrize("model", [pytest.param("mobilenet_v2", marks=pytest.mark.heavy), "vit_tiny"])
def test_a_model_for_batches_computes_each_image(tmp_path: Path, model: str) -> None:
    name = pack.batched(model, 2, tmp_path)
    of_one = tmp_path / "one.onnx"
    source = load_model(model).source
    of_one.write_bytes(generators.generate(source.generator, source.seed, None))
    x = np.random.default_rng(3).standard_normal((2, 3, 224, 224), np.float32)
    one, two = (onnxruntime.InferenceSession(path) for path in (of_one, tmp_path / f"{name}.onnx"))
    (got,) = two.run(None, {"input": x})
    want = [one.run(None, {"input": image[None]})[0][0] for image in x]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_model_with_a_batch_keeps_its_file(tmp_path: Path) -> None:
    name = pack.batched("minilm_l6", 32, tmp_path)
    written = yaml.safe_load((tmp_path / "models" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert written["dims"]["batch"] == {"min": 32, "max": 32, "buckets": [32]}
    assert written["source"]["generator"] == "minilm_l6"


def test_large_parameters_are_cut_and_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = tmp_path / "part0" / "cases" / "large"
    case.mkdir(parents=True)
    content = np.arange(50, dtype="uint8").tobytes()
    (case / "params.bin").write_bytes(content)
    (case / "case.json").write_text('{"model": "large"}', encoding="utf-8")
    assert pack.pieces(case, 1000) == {} and (case / "params.bin").is_file()
    assert pack.pieces(case, 20) == {"params.bin.0": 20, "params.bin.1": 20, "params.bin.2": 10}
    assert not (case / "params.bin").exists()
    monkeypatch.setattr(on_gpu, "HERE", tmp_path / "part0")
    for number in (0, 1, 2):
        piece_folder = tmp_path / f"part{number}" / "pieces" / "large"
        piece_folder.mkdir(parents=True)
        if number == 2:
            with pytest.raises(FileNotFoundError, match=r"params\.bin\.2 is in another part"):
                on_gpu.joined(case)
        (case / f"params.bin.{number}").rename(piece_folder / f"params.bin.{number}")
    on_gpu.joined(case)
    assert (case / "params.bin").read_bytes() == content


def test_batches_that_pytorch_is_timed_with() -> None:
    models = {"vit_tiny", "vit_tiny_batch32", "resnet50_batch8", "minilm_l6", "resnet"}
    assert on_gpu.peers(models) == [("resnet50", 8), ("vit_tiny", 1), ("vit_tiny", 32)]


def test_parts_of_a_pack() -> None:
    sizes = {"a": 50, "b": 30, "c": 20, "d": 9, "huge": 200}
    assert pack.divide(sizes, 60) == [["huge"], ["a", "d"], ["b", "c"]]
