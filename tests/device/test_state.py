"""Models that keep values from run to run: ONNX files with the key `state`, and TFLite's variables."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kiln
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.command_line.compare.run import compare_model
from kiln.command_line.evaluate import evaluate
from kiln.command_line.running import Destination
from kiln.config import load_target
from kiln.files import read_json
from kiln.golden.reference import open_reference
from tflite_graphs import TfliteFile

from .building import Project

Array = npt.NDArray[Any]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundles are loaded on this machine"),
]
# A cell whose state is updated in place, a counter, a queue, two values that change places, a value that is
# an output too, and a cache of which each run writes one row. The batch is dynamic.
CELL = """
<ir_version: 8, opset_import: ["": 17]>
g (float[n,4] x, float[1,4] h_in, float[3] count_in, float[1,3,4] queue_in, float[4] a_in, float[4] b_in,
   float[1,9,4] cache_in, int64[1,1,1] row_in)
=> (float[n,4] y, float[1,4] h_out, float[3] count_out, float[1,3,4] queue_out, float[4] a_out,
    float[4] b_out, float[1,9,4] cache_out, int64[1,1,1] row_out)
<int64 step = {2}, int64 most = {9}, int64[3] row_shape = {1, 1, 4}, float one = {1.0},
 float half = {0.5}, int64[1] first = {1}, int64[1] last = {4}, int64[1] axis = {1}, int64[1] rows = {0}>
{
  mean = ReduceMean<axes=[0], keepdims=1>(x)
  decayed = Mul(h_in, half)
  h_out = Add(decayed, mean)
  count_out = Add(count_in, one)
  row = Unsqueeze(mean, axis)
  whole = Concat<axis=1>(queue_in, row)
  queue_out = Slice(whole, first, last, axis)
  sums = ReduceSum<keepdims=0>(whole, axis)
  counted = ReduceSum<keepdims=0>(count_in)
  a_out = Add(b_in, one)
  b_out = Identity(a_in)
  wave = Tanh(h_out)
  y0 = Add(x, wave)
  y1 = Add(y0, sums)
  y2 = Add(y1, counted)
  y3 = Mul(b_in, half)
  y4 = Add(y2, y3)
  places = Expand(row_in, row_shape)
  cache_out = ScatterElements<axis=1>(cache_in, places, row)
  next_row = Add(row_in, step)
  row_out = Mod(next_row, most)
  seen = ReduceMax<axes=[1], keepdims=0>(cache_out)
  y = Add(y4, seen)
}
"""
KEYS = """
source: {kind: file, path: ../cell.onnx}
dims: {n: {min: 1, max: 3, buckets: [1]}}
state:
  h_in: h_out
  count_in: {output: count_out, initial: [1, 2, 3]}
  queue_in: {output: queue_out, initial: 0.25}
  a_in: {output: a_out, initial: 7}
  b_in: b_out
  cache_in: cache_out
  row_in: {output: row_out, initial: 3}
"""


def stepped(path: Path, given: Sequence[Array]) -> list[Array]:
    """ONNX Runtime's outputs for inputs of successive runs, each with the state of the run before."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    state = {
        "h_in": np.zeros((1, 4), np.float32), "count_in": np.float32([1, 2, 3]),
        "queue_in": np.full((1, 3, 4), 0.25, np.float32), "a_in": np.full(4, 7, np.float32),
        "b_in": np.zeros(4, np.float32), "cache_in": np.zeros((1, 9, 4), np.float32),
        "row_in": np.full((1, 1, 1), 3),
    }  # fmt: skip
    outputs = []
    for x in given:
        y, *new_state = session.run(None, {"x": x, **state})
        state = dict(zip(state, new_state, strict=True))
        outputs.append(y)
    return outputs


@pytest.fixture(scope="module")
def cell(project: Project) -> Path:
    """The bundle of CELL for this machine, tested against its reference."""
    onnx.save(onnx.parser.parse_model(CELL), project.folder / "cell.onnx")
    (project.folder / "models/cell.yaml").write_text(KEYS)
    printed = project.make("target=x86_64", "model=cell", "test")
    assert "_run4: max error" in printed
    return project.build / "x86_64" / "cell"


@pytest.mark.heavy
def test_runs_follow_one_another_and_reset_begins_anew(project: Project, cell: Path) -> None:
    runs = [np.random.default_rng(n).random((1 + n % 3, 4), np.float32) for n in range(6)]
    want = stepped(project.folder / "cell.onnx", runs)
    with kiln.load(cell) as net, net.copy() as copied:
        assert [info.name for info in net.inputs] == ["x"]
        assert [info.name for info in net.outputs] == ["y"]
        for _ in range(2):
            for x, y in zip(runs, want, strict=True):
                np.testing.assert_allclose(net(x), y, rtol=1e-5, atol=1e-5)
                copied(x)  # a session of its own, with a state of its own
            net.reset()
        np.testing.assert_allclose(net(runs[0]), want[0], rtol=1e-5, atol=1e-5)


def test_what_the_bundle_says_of_its_state(cell: Path) -> None:
    manifest = read_json(cell / "manifest.json")
    assert [(state["name"], state["bytes"], state["offset"]) for state in manifest["states"]] == [
        ("a_in", 16, 0), ("b_in", 16, 64), ("cache_in", 144, 128), ("count_in", 12, 320), ("h_in", 16, 384),
        ("queue_in", 48, 448), ("row_in", 8, 512),
    ]  # fmt: skip
    plan = (cell / "src/cell_plan.c").read_text()
    scatters = set(re.findall(r"kilnk_scatter_elements_\w+", plan))
    assert len(scatters) == 1, "the row is written to the state itself, without a copy of the cache"
    header = (cell / "include/cell.h").read_text()
    assert "#define CELL_STATE_BYTES 576u" in header and "kiln_status cell_reset(" in header


def variables_file(path: Path) -> None:
    """A TFLite file: y = x + total; total = total + x; ticks is read only; both are set by CALL_ONCE."""
    operators = schema.BuiltinOperator
    once = schema.CallOnceOptionsT()
    once.initSubgraphIndex = 1

    def handle(name: str, output: int) -> tuple[int, Any, Sequence[int], Sequence[int]]:
        options = schema.VarHandleOptionsT()
        options.container, options.sharedName = "", name
        return operators.VAR_HANDLE, options, [], [output]

    def add(inputs: Sequence[int], output: int) -> tuple[int, Any, Sequence[int], Sequence[int]]:
        return operators.ADD, schema.AddOptionsT(), inputs, [output]

    file = TfliteFile()
    file.graph(
        [
            ("x", "float32", [4]), ("h", "resource", []), ("k", "resource", []), ("before", "float32", [4]),
            ("ticks", "float32", [4]), ("after", "float32", [4]), ("again", "float32", [4]),
            ("y", "float32", [4]),
        ],
        [
            (operators.CALL_ONCE, once, [], []), handle("total", 1), handle("ticks", 2),
            (operators.READ_VARIABLE, None, [1], [3]), (operators.READ_VARIABLE, None, [2], [4]),
            add([3, 0], 5), (operators.ASSIGN_VARIABLE, None, [1, 5], []),
            (operators.READ_VARIABLE, None, [1], [6]), (operators.MUL, schema.MulOptionsT(), [6, 4], [7]),
        ],
        [0], [7],
    )  # fmt: skip
    file.graph(
        [
            ("h", "resource", []), ("k", "resource", []), ("one", "float32", np.arange(1.0, 5.0)),
            ("two", "float32", np.full(4, 2.0)), ("three", "float32", [4]),
        ],
        [
            handle("total", 0), handle("ticks", 1), (operators.ASSIGN_VARIABLE, None, [0, 2], []),
            add([2, 3], 4), (operators.ASSIGN_VARIABLE, None, [1, 4], []),
        ],
        [], [],
    )  # fmt: skip
    file.write(path)


@pytest.mark.heavy
def test_variables_of_a_tflite_file(project: Project) -> None:
    """On this machine, and on an emulated Cortex-M4 without an operating system."""
    variables_file(project.folder / "totals.tflite")
    printed = project.make("target=x86_64,cortex_m4", "model=totals.tflite", "test")
    assert printed.count("_run4: max error") == 6
    bundle = project.build / "x86_64" / "totals"
    states = read_json(bundle / "manifest.json")["states"]
    assert [(state["name"], state["shape"]) for state in states] == [("total", [4])]
    plan = (bundle / "src/totals_plan.c").read_text()
    assert "copy" not in plan  # the sum is written where the total was
    reference = open_reference(project.folder / "totals.tflite")
    with kiln.load(bundle) as net:
        for run in range(3):
            x = np.full(4, run, np.float32)
            np.testing.assert_array_equal(net(x), reference.run([x])[0])
        net.reset()
        reference.reset()
        np.testing.assert_array_equal(net(x), reference.run([x])[0])
        np.testing.assert_array_equal(net(x), (np.float32([1, 2, 3, 4]) + 4) * np.float32([3, 4, 5, 6]))


PADDED = """
<ir_version: 8, opset_import: ["": 17]>
g (float[n,4] x, float[1,4] h_in) => (float[n,4] y, float[1,4] h_out) <float half = {0.5}, float one = {1.0}>
{
  decayed = Mul(h_in, half)
  h_out = Add(decayed, one)
  wave = Tanh(h_in)
  y = Add(x, wave)
}
"""


@pytest.mark.heavy
@pytest.mark.parametrize("pad", ["3", "{to: 3, assume: measured}"])
def test_padding_beside_state(project: Project, pad: str) -> None:
    """Proven or measured: sequences of runs have the reference's outputs."""
    onnx.save(onnx.parser.parse_model(PADDED), project.folder / "padded.onnx")
    dims = f"dims: {{n: {{min: 1, max: 4, buckets: [{{pad: {pad}}}, {{exact: 4}}]}}}}\n"
    text = "source: {kind: file, path: ../padded.onnx}\nstate: {h_in: h_out}\n" + dims
    (project.folder / "models/padded.yaml").write_text(text)
    printed = project.make("target=x86_64", "model=padded", "test")
    assert "n2_random_3_run4: max error" in printed and "FAILED" not in printed, printed


@pytest.mark.heavy
def test_compare_keeps_the_state_of_a_sequence(cell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cell.parents[2])
    compared = compare_model("cell", Destination("x86_64", load_target("x86_64")))
    assert len(compared.rows) > 40 and all(row.difference.passed for row in compared.rows)


@pytest.mark.heavy
def test_samples_of_an_evaluation_follow_one_another(
    project: Project, cell: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle and the reference keep their state from sample to sample."""
    samples = np.random.default_rng(0).random((40, 1, 4), np.float32)
    want = stepped(project.folder / "cell.onnx", list(samples))
    np.savez(tmp_path / "x.npz", x=samples)
    monkeypatch.chdir(project.folder)
    output_file = tmp_path / "y.npz"
    result = evaluate("cell", tmp_path / "x.npz", Destination("x86_64", load_target("x86_64")), output_file)
    assert result.samples == 40 and result.snr > 100.0
    np.testing.assert_allclose(np.load(output_file)["y"], want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("{h_inn: h_out}", "state.h_inn: the model has no such input; did you mean 'h_in'?"),
        ("{h_in: out}", "state.h_in: the model has no output 'out'"),
        ("{h_in: count_out}", "the input is float32[1, 4], but output 'count_out' is float32[3]"),
        ("{x: y}", "axis 0 is n, allowed: a fixed size"),
        (
            "{h_in: {output: h_out, initial: [1, 2]}}",
            "state.h_in.initial: [2] numbers, allowed: one, or [1, 4]",
        ),
        ("{h_in: {output: h_out, initial: zero}}", "a number or a list of numbers expected, got 'zero'"),
        ("{h_in: {output: h_out, first: 1}}", "unknown key"),
    ],
)
def test_refused(project: Project, keys: str, says: str) -> None:
    onnx.save(onnx.parser.parse_model(CELL), project.folder / "cell.onnx")
    text = f"source: {{kind: file, path: ../cell.onnx}}\ndims: {{n: {{min: 1, max: 3}}}}\nstate: {keys}\n"
    (project.folder / "models/bad_state.yaml").write_text(text)
    failed = project.scons("target=x86_64", "model=bad_state")
    assert failed.returncode == 2 and says in failed.stderr.splitlines()[-1]
