"""kiln quantise --target: the times of the float model, of the result and of the candidates of the search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.command_line import __main__ as command_line
from kiln.command_line import timed_copies
from kiln.command_line.timed_copies import Timing, refuse_emulator
from kiln.errors import KilnError
from onnx import numpy_helper, parser

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,16] x) => (float[1,8] y) { a = MatMul(x, v) b = Relu(a) y = MatMul(b, w) }"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """net.onnx, its data, and a `bench` that needs a millisecond for each quantised tensor."""
    model, random = parser.parse_model(TEXT), np.random.default_rng(3)
    for name, shape in (("v", (16, 8)), ("w", (8, 8))):
        weight = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.save(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=random.standard_normal((16, 1, 16)).astype(np.float32))

    def bench(command: str, configuration: Path, words: list[str]) -> dict[str, Any]:
        assert (command, words) == ("quantise", ["target=host", "byoc=none"])
        graph = onnx.load(json.loads(configuration.read_text())["source"]["path"]).graph
        count = sum(node.op_type == "QuantizeLinear" for node in graph.node)
        runs = [
            {"bucket": bucket, "threads": threads, "median": count + extra}
            for bucket, extra in (("small", 0.25), ("large", 0.5)) for threads in (1, 2)
        ]  # fmt: skip
        return {"time_unit": "ms", "runs": runs}

    monkeypatch.setattr(timed_copies, "bench_of", bench)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_frontier_shows_times(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["quantise", "net.onnx", "--data", "data.npz"]
    assert command_line.main([*words, "--byoc", "none"]) == 2
    assert "--byoc is for the times of --target or --device, which is" in capsys.readouterr().err
    assert command_line.main(words) == 0  # without a target nothing is timed
    assert "time" not in capsys.readouterr().out
    whole = json.loads(Path("net_int8.json").read_text())["quantised"]
    assert whole["time"] is None
    assert (
        command_line.main(
            [*words, "--min-snr", f"{whole['snr'] + 0.2}", "--target", "host", "--byoc", "none"]
        )
        == 0
    )
    assert capsys.readouterr().out.count("time, ms") == 2
    figures = json.loads(Path("net_int8.json").read_text())
    assert figures["float"]["time"] == {"unit": "ms", "buckets": {"small": 0.25, "large": 0.5}}
    frontier = [one["time"]["buckets"]["small"] - 0.25 for one in figures["frontier"]]
    assert len(frontier) > 1 and frontier == sorted(frontier, reverse=True) and frontier[-1] > 0
    kept = [one["kept"] for one in figures["frontier"]].index(figures["quantised"]["kept"])
    assert figures["quantised"]["time"] == figures["frontier"][kept]["time"]


def test_times_under_an_emulator_mean_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.device.check.host_cpu.obstacle", lambda target: "another processor")
    with pytest.raises(
        KilnError, match=r"^quantise: target 'aarch64' does not run on this machine, and times"
    ):
        refuse_emulator("quantise", Timing("aarch64", None), instructions=True)
    refuse_emulator("quantise", Timing("cortex_m4", None), instructions=True)
    refuse_emulator("quantise", Timing("aarch64", "pi4"), instructions=True)
    with pytest.raises(KilnError, match=r"^costs: target 'cortex_m4' does not run"):
        refuse_emulator("costs", Timing("cortex_m4", None))
