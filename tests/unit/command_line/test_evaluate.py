"""kiln evaluate: images and their classes, accuracy of both sides, disagreements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.command_line import __main__ as command_line
from kiln.command_line.evaluate import Accuracy, Disagreement, _figures, _named_outputs, as_json, show
from kiln.command_line.samples import SamplePort, Samples, samples_from_file, samples_from_images
from kiln.config import load_model
from kiln.errors import KilnError
from PIL import Image

PORTS = [SamplePort("input_1_int8", np.dtype("int8"), (1, 32, 32, 3), (1.0, -128))]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """cat/a.png, ship/b.png and ship/c.png, each of one colour."""
    for number, name in enumerate(("cat/a.png", "ship/b.png", "ship/c.png")):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (number, number, number)).save(path)
    return tmp_path / "images"


def test_classes_of_images(images: Path) -> None:
    """Names of folders, names and numbers in a .csv file, with and without titles; images without a class."""
    model = load_model("resnet")
    samples = samples_from_images(images, model, PORTS)
    assert samples.labels is not None and samples.labels.tolist() == [3, 8, 8]
    assert [run["input_1_int8"].flat[0] for run in samples.runs] == [-128, -127, -126]
    for title in ("", "image,class\n"):
        (images / "list.csv").write_text(f"{title}ship/c.png,ship\ncat/a.png,5\n")
        samples = samples_from_images(images / "list.csv", model, PORTS)
        assert samples.labels is not None and samples.labels.tolist() == [8, 5]
        assert samples.names == [str(images / "ship/c.png"), str(images / "cat/a.png")]
    assert samples_from_images(images / "ship", model, PORTS).labels is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cat/a.png,tiger\n", "unknown class 'tiger', allowed: airplane, automobile, bird, cat, deer, …"),
        ("cat/z.png,cat\n", "'cat/z.png': no such file in "),
        ("cat/a.png\n", "two columns are expected, image and class"),
        ("", "no image in it"),
    ],
)
def test_wrong_lists(images: Path, content: str, message: str) -> None:
    (images / "list.csv").write_text(content)
    with pytest.raises(KilnError, match=message):
        samples_from_images(images / "list.csv", load_model("resnet"), PORTS)


@pytest.mark.parametrize(("name", "shown"), [("cat", "cat"), ("9" * 5000, f"{'9' * 40}…")])
def test_names_of_classes_need_labels(images: Path, name: str, shown: str) -> None:
    model = load_model("resnet").model_copy(update={"labels": None})
    (images / "list.csv").write_text(f"cat/a.png,{name}\n")
    allowed = "numbers from 0 on, as model 'resnet' has no key 'labels' with their names"
    with pytest.raises(KilnError, match=f"unknown class '{shown}', allowed: {allowed}"):
        samples_from_images(images / "list.csv", model, PORTS)


def test_accuracy_and_disagreements(capsys: pytest.CaptureFixture[str]) -> None:
    """Three samples of seven classes: the reference is right twice, the bundle once."""
    want = [[np.eye(7)[[0]]], [np.eye(7)[[1]]], [np.eye(7)[[2]]]]
    got: Any = [[np.eye(7)[[0]]], [np.eye(7)[[6]]], [np.eye(7)[[2]]]]
    samples = Samples([{}, {}, {}], np.array([0, 1, 5]), names=["a.png", "b.png", "c.png"])
    result = _figures(samples, 0, got, want)
    assert result.reference == Accuracy(pytest.approx(2 / 3), pytest.approx(2 / 3))
    # Equal scores are in the order of the classes: 1 is among the five greatest of b.png, 5 not of c.png.
    assert result.bundle == Accuracy(pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert result.disagreements == [Disagreement("b.png", 1, 1, 6)]
    show("net", "host", result)
    text = capsys.readouterr().out
    assert "the answers differ for 1 of 3 samples\n  b.png: class 1, reference 1, bundle 6\n" in text
    with pytest.raises(KilnError, match="label 9: the output has 7 scores"):
        _figures(Samples([{}], np.array([9])), 0, got[:1], want[:1])
    unknown = _figures(Samples([{}, {}, {}]), 0, want, want)
    assert (unknown.reference, unknown.disagreements, unknown.snr) == (None, [], float("inf"))


def test_samples_with_outputs_of_other_shapes() -> None:
    """A detector finds two boxes, none, and one that the reference does not have."""
    got = [[np.eye(2), np.zeros(3)], [np.zeros((0, 2)), np.zeros(3)], [np.ones((1, 2)), np.ones(3)]]
    want = [got[0], got[1], [np.zeros((0, 2)), np.ones(3)]]
    arrays = _named_outputs(["boxes", "sizes"], got)
    assert list(arrays) == ["boxes[0]", "boxes[1]", "boxes[2]", "sizes"] and arrays["sizes"].shape == (3, 3)
    result = _figures(Samples([{}, {}, {}]), 0, got, want)
    assert result.disagreements == [] and result.snr == pytest.approx(0.0)  # as much noise as signal
    with pytest.raises(KilnError, match="'labels': the output has 0 to 4 scores"):
        _figures(Samples([{}, {}, {}], np.array([0, 1, 2])), 0, got, want)


def test_few_classes_have_no_top_five(capsys: pytest.CaptureFixture[str]) -> None:
    scores: Any = [[np.eye(4)[[0]]], [np.eye(4)[[3]]]]
    result = _figures(Samples([{}, {}], np.array([0, 1])), 0, scores, scores)
    assert as_json(result)["reference"] == {"top_1": 0.5, "top_5": None}
    show("net", "host", result)
    text = capsys.readouterr().out
    assert "top 1" in text and "top 5" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluate", "evaluate: one model is needed"),
        ("evaluate resnet", "evaluate: data is missing: --data FOLDER, FILE.csv or FILE.npz"),
        ("evaluate resnet --data /absent", "/absent: no such file or folder"),
        ("model=resnet evaluate data=/absent", "/absent: no such file or folder"),
    ],
)
def test_wrong_arguments(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(words.split()) == 2
    assert capsys.readouterr().err.startswith(f"kiln: error: {message}")


@pytest.mark.parametrize("model", ["resnet", "silero_vad"])  # with `preprocess` and without
def test_data_of_another_kind(model: str, tmp_path: Path) -> None:
    """A file that holds no samples is not told as images of a model that accepts none."""
    (tmp_path / "x.txt").write_text("0 0 0")
    with pytest.raises(KilnError, match=r"x\.txt: allowed: a \.npz file .*, a folder of images, or a \.csv"):
        samples_from_file(tmp_path / "x.txt", load_model(model), PORTS)
    with pytest.raises(KilnError, match=r"gone: no such file or folder$"):
        samples_from_file(tmp_path / "gone", load_model(model), PORTS)
