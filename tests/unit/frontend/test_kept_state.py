"""The state that the metadata of an ONNX file describes, as PyTorch programs with buffers become."""

from __future__ import annotations

from pathlib import Path

import onnx
from kiln.config.state import KeptValue
from kiln.frontend.importer import import_model
from kiln.frontend.onnx.kept_state import state_of, write_state
from kiln.frontend.options import ImportOptions

STEP = """
<ir_version: 8, opset_import: ["": 17]>
g (float[4] x, float[4] total, int64[1] runs) => (float[4] y, float[4] total_next, int64[1] runs_next)
<int64 one = {1}>
{
  total_next = Add(total, x)
  y = Mul(total_next, x)
  runs_next = Add(runs, one)
}
"""


def step() -> onnx.ModelProto:
    model = onnx.parser.parse_model(STEP)
    entries = {
        "total": {"output": "total_next", "initial": [1.0, 2.0, 3.0, 0.5]},
        "runs": {"output": "runs_next", "initial": 5},
    }
    write_state(model, entries)
    return model


def test_inputs_and_outputs_become_state(tmp_path: Path) -> None:
    onnx.save(step(), tmp_path / "step.onnx")
    _, interface = import_model(tmp_path / "step.onnx", ImportOptions("step"))
    assert [port.name for port in interface.inputs] == ["x"]
    assert [port.name for port in interface.outputs] == ["y"]
    assert [(state.name, state.initial, state.input, state.output) for state in interface.states] == [
        ("total", [1.0, 2.0, 3.0, 0.5], 1, 1), ("runs", 5, 2, 2),
    ]  # fmt: skip


def test_the_models_own_key_comes_first(tmp_path: Path) -> None:
    onnx.save(step(), tmp_path / "step.onnx")
    other = ImportOptions("step", state={"total": KeptValue(output="total_next", initial=9)})
    _, interface = import_model(tmp_path / "step.onnx", other)
    assert [(state.name, state.initial) for state in interface.states] == [("total", 9), ("runs", 5)]


def test_a_part_without_one_end_has_the_other_as_it_is() -> None:
    model = step()
    del model.graph.output[2]
    assert list(state_of(model)) == ["total"]
