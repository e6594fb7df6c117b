"""tune and byoc=auto on a GPU, offline: candidates are built, timed by the program, and chosen in a build."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.__main__ import main
from kiln.byoc import gpu_choices
from kiln.byoc.passes import facts_of
from kiln.config import canonical_json, load_target, target_config
from kiln.files import read_json, write_json
from kiln.params import store
from kiln.tune.gpu import subjects
from tvm import relax

from . import double

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is for x86-64 machines")
TARGET = load_target("cuda_sm90")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph: a convolution with bias and ReLU, and a dense layer."""
    draw = np.random.default_rng(1).standard_normal
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 16, 16, 32), "float32"))
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            filters = relax.const(draw((3, 3, 32, 32)).astype("float32"))
            pads = {"padding": (1, 1, 1, 1), "data_layout": "NHWC", "kernel_layout": "HWIO"}
            y = builder.emit(relax.op.nn.conv2d(x, filters, **pads))
            y = builder.emit(relax.op.nn.relu(relax.op.add(y, relax.const(draw(32).astype("float32")))))
            y = builder.emit(relax.op.reshape(y, (256, 32)))
            last = relax.op.matmul(y, relax.const(draw((32, 48)).astype("float32")))
            output = builder.emit_output(builder.normalize(last))
        builder.emit_func_output(output)
    folder = tmp_path_factory.mktemp("graph") / "module"
    store.save(builder.get(), folder)
    return folder


def _stage(tmp_path: Path, name: str, sources: Path, *more: object) -> int:
    (tmp_path / "target.json").write_text(canonical_json(target_config(TARGET)))
    config = {"name": "m", "threads": None, "winograd": "off", "precision": "fp16", "checks": None}
    write_json(tmp_path / "lower.json", config)
    flags = ["--in", sources, "--target", tmp_path / "target.json", "--config", tmp_path / "lower.json"]
    return main([name, *map(str, [*flags, *more])])


# In the gate tests/unit/byoc/test_gpu_choices.py reads and follows measured times.
@pytest.mark.heavy
def test_candidates_are_timed_elsewhere_and_chosen_here(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subjects, "RANKS", 2)
    monkeypatch.setattr(gpu_choices, "FOLDER", tmp_path / "measured")
    monkeypatch.setattr("kiln.tune.gpu.stage.bundled_backends", lambda target: [_triton()])
    tune = ("--out", tmp_path / "tuned.json")
    assert _stage(tmp_path, "tune", sources, *tune) == 0
    assert "no GPU here" in capsys.readouterr().out
    assert read_json(tmp_path / "tuned.json") == {"gpu": None, "kernels": {}}
    folder = tmp_path / "candidates"
    lines = [line.split() for line in (folder / "candidates.txt").read_text().splitlines()]
    launched = [words[2] for words in lines if words[0] == "launch"]
    # What stands between subgraphs in 16 bits is not timed.
    assert launched and all("conv2d" in name or "matmul" in name or "dense" in name for name in launched)
    environment = double.environment(double.driver(tmp_path / "driver"), name="NVIDIA H200")
    command = ["./time_gpu", "candidates.txt", "1", "4194304"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout and done.stdout.count("\ntime\t") == 8
    (folder / "times.tsv").write_text(done.stdout, encoding="utf-8")
    # The stand-in's times are numbers of blocks: what has the fewest is the fastest.
    assert _stage(tmp_path, "tune", sources, *tune) == 0
    printed = capsys.readouterr().out
    assert "2 subgraphs measured on NVIDIA H200" in printed and "reads what" not in printed
    chosen = read_json(tmp_path / "measured" / "nvidia-h200-sm_90.json")["precisions"]["fp16"]
    assert sorted(key.split()[0] for key in chosen) == ["conv2d", "dense"]
    for entry in chosen.values():
        fastest = min(entry["us"], key=lambda name: entry["us"][name])
        worth = entry["us"][fastest] <= 0.97 * entry["us"]["kiln"]
        assert entry["backend"] == (fastest if worth else "kiln")
        # Of Kiln's own tiles too, that with the fewest blocks.
        assert entry["product"].startswith("float16 ") and len(entry["tiles"]["kiln"]) == 4
    facts = facts_of(TARGET, "none", "fp16")
    assert facts.tiles == {key: tuple(entry["tiles"]["triton"]) for key, entry in chosen.items()}
    _choose(sources, tmp_path, chosen, capsys)


def _triton() -> Any:
    from kiln.byoc.registry import load

    return load("triton")


def _choose(sources: Path, tmp_path: Path, known: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """byoc=auto follows the file, and without an entry the rule."""
    key = next(key for key in known if key.startswith("conv2d"))
    path = tmp_path / "measured" / "nvidia-h200-sm_90.json"
    content = read_json(path)
    content["precisions"]["fp16"] = {key: {**known[key], "backend": "kiln"}}
    path.write_text(json.dumps(content), encoding="utf-8")
    write_json(tmp_path / "byoc.json", {"byoc": {"backends": ["auto"]}, "backends": ["triton"], "absent": {}})
    flags = (
        "--byoc",
        tmp_path / "byoc.json",
        "--times",
        tmp_path / "times.json",
        "--out",
        tmp_path / "out.json",
    )
    assert _stage(tmp_path, "byoc-choose", sources, *flags) == 0
    assert "1 of 2 subgraphs were measured on nvidia-h200" in capsys.readouterr().out
    made = read_json(tmp_path / "out.json")
    assert list(made["chosen"].values()) == ["triton"] and key not in made["chosen"]
    assert {part["part"]: part["why"] for part in made["parts"]}[key] == "measured"


def test_a_measured_tile_is_used_again() -> None:
    from kiln.byoc.triton.tiles import GpuLimits, ProductSizes, choose, measured

    sizes, gpu = ProductSizes(256, 48, 288), GpuLimits(227 << 10, 132, 90)
    second = choose(sizes, gpu, 1)
    assert second is not None and second != choose(sizes, gpu)
    numbers = (second.m, second.n, second.k, second.warps, second.stages, second.split)
    assert measured(numbers, sizes, gpu) == second
    assert measured((16, 16, 16, 9, 9, 9), sizes, gpu) is None
    assert choose(sizes, gpu, 10_000) is None
