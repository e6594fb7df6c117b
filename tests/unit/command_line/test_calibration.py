"""Calibration of models with state, whose runs follow one another, and of models with dynamic sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from kiln.command_line.quantise.calibration import calibration_samples
from kiln.command_line.quantise.run import quantise
from kiln.command_line.samples import SamplePort, samples_from_file
from kiln.config import load_model
from kiln.errors import KilnError
from kiln.sources.npy import load_npz

Array = np.ndarray[Any, Any]
# h' = tanh(x w + h u): the range of the state follows from the steps before.
CELL = """<ir_version: 8, opset_import: ["" : 17]>
cell (float[FRAMES,4] x, float[1,4] h) => (float[FRAMES,4] y, float[1,4] h_out)
<float[4,4] w = {WEIGHTS}, float[4,4] u = {WEIGHTS}>
{
    a = MatMul(x, w)
    b = MatMul(h, u)
    c = Add(a, b)
    y = Tanh(c)
    h_out = Max(b, h)
}
"""


def cell(folder: Path, frames: str = "1", **config: Any) -> Path:
    """The YAML file of a model with the state h."""
    weights = np.random.default_rng(1).normal(size=16).round(2)
    text = CELL.replace("FRAMES", frames).replace("{WEIGHTS}", "{" + ", ".join(map(str, weights)) + "}")
    (folder / "cell.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    path = folder / "cell.yaml"
    source = {"kind": "file", "path": str(folder / "cell.onnx")}
    path.write_text(
        yaml.safe_dump({"source": source, "state": {"h": {"output": "h_out", "initial": 0.25}}, **config})
    )
    return path


def samples(
    path: Path, data: Path | None, frames: int | None = 1
) -> tuple[list[dict[str, Array]], list[Array]]:
    """The samples, and the states that a counter as the float model was given."""
    seen: list[Array] = []

    def step(given: Any) -> Any:
        seen.append(given["h"])
        return {"y": given["x"], "h_out": given["h"] + 1}

    ports = [SamplePort(name, np.dtype("float32"), (rows, 4)) for name, rows in (("x", frames), ("h", 1))]
    return [dict(one) for one in calibration_samples(load_model(str(path)), data, ports, step).runs], seen


def test_the_state_is_handed_on(tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, x=np.ones((5, 1, 4), np.float32))
    drawn, _ = samples(cell(tmp_path), data)
    assert [one["h"].tolist() for one in drawn] == [[[number + 0.25] * 4] for number in range(5)]
    np.savez(data, x=np.ones((2, 1, 4), np.float32), h=np.full((2, 1, 4), 7, np.float32))
    drawn, seen = samples(cell(tmp_path), data)  # states that the data have
    assert [one["h"][0, 0] for one in drawn] == [7, 7] and not seen


def test_golden_inputs_are_sequences(tmp_path: Path) -> None:
    """Each input set begins anew, and its runs have inputs of their own."""
    drawn, _ = samples(cell(tmp_path, golden={"runs": 2}), None)
    assert [one["h"][0, 0] for one in drawn] == [0.25, 1.25] * 3
    assert len({one["x"].tobytes() for one in drawn}) == 6


def test_a_model_with_state_is_quantised(tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, x=np.random.default_rng(2).normal(size=(20, 1, 4)).astype(np.float32))
    result = quantise(str(cell(tmp_path)), data, tmp_path / "out.onnx")
    assert result.figures.snr > 25
    wrong = cell(tmp_path, state={"h": "nothing"})
    with pytest.raises(KilnError, match="state 'h': no output 'nothing', the file has y, h_out"):
        quantise(str(wrong), data, tmp_path / "out.onnx")
    wrong = cell(tmp_path, state={"h": {"output": "h_out", "initial": [1, 2, 3]}})
    with pytest.raises(KilnError, match=r"state 'h': initial has the shape \[3\], the input has \[1, 4\]"):
        quantise(str(wrong), data, tmp_path / "out.onnx")


@pytest.mark.parametrize(
    ("sizes", "rows"), [((2, 200, 1), 64), ((2, 9, 1), 9), ((100, 200, 1), 100), ((5, 200, 5), 60)]
)
def test_dynamic_sizes_are_those_of_the_model(tmp_path: Path, sizes: tuple[int, int, int], rows: int) -> None:
    dims = {"frames": dict(zip(("min", "max", "multiple"), sizes, strict=True))}
    shapes = {"x": {"shape": ["frames", 4]}, "h": {"shape": [1, 4]}}
    drawn, _ = samples(cell(tmp_path, '"frames"', dims=dims, inputs=shapes), None, frames=None)
    assert {one["x"].shape for one in drawn} == {(rows, 4)}


@pytest.mark.parametrize(
    ("declared", "rows"), [("Frames", 40), (["+", ["*", 2, "Frames"], 1], 81), (None, 1)]
)
def test_dynamic_sizes_have_the_names_of_the_file(tmp_path: Path, declared: Any, rows: int) -> None:
    """Where `inputs` of the YAML file is silent; names of the file are in lower case in `dims`."""
    config = load_model(str(cell(tmp_path, '"Frames"', dims={"frames": {"min": 2, "max": 40}}, state={})))
    port = SamplePort("x", np.dtype("float32"), (None, 4), declared=(declared, 4))
    drawn = calibration_samples(config, None, [port], lambda given: given).runs
    assert {one["x"].shape for one in drawn} == {(rows, 4)}


def test_masks_are_ones(tmp_path: Path) -> None:
    """As in golden vectors: no element of the golden inputs is padding."""
    config = load_model(str(cell(tmp_path, inputs={"x": {"mask": True}}, state={})))
    drawn = calibration_samples(
        config, None, [SamplePort("x", np.dtype("float32"), (1, 4))], lambda given: given
    )
    assert all(one["x"].min() == 1 for one in drawn.runs)


def test_a_npy_file_has_the_samples_of_the_only_input(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "x.npy", x)
    model, ports = load_model(str(cell(tmp_path))), [SamplePort("x", np.dtype("float32"), (1, 4))]
    runs = samples_from_file(tmp_path / "x.npy", model, ports).runs
    assert [run["x"].tolist() for run in runs] == [[row] for row in x.tolist()]
    shapes = r"'x' has the shape \[3, 4\], allowed: \[samples, 1, 5\] or \[samples, 5\]$"
    with pytest.raises(KilnError, match=shapes):
        samples_from_file(tmp_path / "x.npy", model, [SamplePort("x", np.dtype("float32"), (1, 5))])
    with pytest.raises(KilnError, match=r"serves one input, the model has x, h; use a .npz file"):
        samples_from_file(tmp_path / "x.npy", model, [*ports, SamplePort("h", np.dtype("float32"), (1, 4))])
    with pytest.raises(KilnError, match=r"x\.npy: .* one array of numpy\.save; numpy\.savez"):
        load_npz(tmp_path / "x.npy")
    # The state comes from the runs before, so x is the only input that the data contain.
    assert [run["h"][0, 0] for run in samples(cell(tmp_path), tmp_path / "x.npy")[0]] == [0.25, 1.25, 2.25]


def test_a_file_that_cannot_be_written_leaves_none(tmp_path: Path) -> None:
    net = cell(tmp_path)
    (tmp_path / "out.json").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KilnError, match=r"out\.json: cannot write "):
        quantise(str(net), None, tmp_path / "out.onnx")
    assert sorted(tmp_path.iterdir()) == before
