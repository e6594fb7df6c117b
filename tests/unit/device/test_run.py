"""The input that `run` makes from an image, and the text that it makes from scores; no bundle runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config.interface import Dimension, Interface, Quantisation
from kiln.config.slice_records import RunConfig
from kiln.device.bundle import Bundle
from kiln.device.check.execute import Outcome
from kiln.device.check.run import _classes, _inputs, real_values
from kiln.errors import KilnError
from kiln.golden.schema import GoldenEntry
from PIL import Image
from records import golden_file, golden_tensor, port

NAMES = ["cat", "dog", "newt", "owl", "pike", "rat", "seal"]
QUANT = Quantisation(scale=0.5, zero_point=-10)
INTERFACE = Interface(
    model="zoo",
    inputs=[port("image", [1, 2, 2, 3], "int8", QUANT)],
    outputs=[port("boxes", [1, 4]), port("scores", [1, 7], "int8", QUANT)],
)
PREPROCESS = {"size": [2, 2], "scale": 1.0, "layout": "NHWC", "mean": [100.0]}


def config(**more: Any) -> RunConfig:
    labels = {"kind": "list", "names": NAMES}
    content = {"name": "zoo", "preprocess": PREPROCESS, "labels": labels, "run": {"output": "scores"}, **more}
    if content["run"]:
        content["run"] = {"image": {"kind": "file", "path": "zoo.png"}, **content["run"]}
    return RunConfig.model_validate(content)


def outcome(scores: list[int]) -> Outcome:
    return Outcome(outputs=[[np.zeros((1, 4), np.float32), np.array([scores], np.int8)]], nanoseconds=[5])


def test_best_classes_in_order_as_reals() -> None:
    found = _classes(outcome([-10, 30, -10, 50, 0, 30, 1]), config(), INTERFACE)
    assert [(row["class"], row["score"]) for row in found] == [
        ("owl", 30.0),
        ("dog", 20.0),
        ("rat", 20.0),
        ("seal", 5.5),
        ("pike", 5.0),
    ]


def test_softmax_and_top() -> None:
    found = _classes(
        outcome([0, 2, 0, 0, 0, 0, 0]), config(run={"output": "scores", "softmax": True, "top": 7}), INTERFACE
    )
    assert sum(row["score"] for row in found) == pytest.approx(1)
    assert found[0]["score"] == pytest.approx(np.e / (np.e + 6))


def test_labels_that_do_not_fit() -> None:
    with pytest.raises(KilnError, match="model 'zoo': 7 labels for 4 scores"):
        _classes(outcome([0] * 7), config(run={"output": "boxes"}), INTERFACE)
    with pytest.raises(KilnError, match="is called 'skores', there are: boxes, scores"):
        _classes(outcome([0] * 7), config(run={"output": "skores"}), INTERFACE)


def test_real_values() -> None:
    values = real_values(np.array([-128, 127], np.int8), Quantisation(scale=2.0, zero_point=1))
    assert values.tolist() == [-258.0, 252.0]


def test_a_picture_becomes_the_input(tmp_path: Path) -> None:
    path = tmp_path / "grey.png"
    Image.new("RGB", (4, 4), (110, 90, 255)).save(path)
    (tensor,), source, picture = _inputs(Bundle(tmp_path, "zoo"), config(), INTERFACE, path)
    assert picture and source == str(path) and tensor.dtype == np.int8
    # (pixel - 100) / 0.5 - 10, clipped
    assert tensor[0, 1, 1].tolist() == [10, -30, 127]


def test_a_preprocess_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "grey.png"
    Image.new("RGB", (4, 4)).save(path)
    with pytest.raises(KilnError, match=r"makes \[1, 3, 2, 2\], input 'image' takes \[1, 2, 2, 3\]"):
        _inputs(Bundle(tmp_path, "zoo"), config(preprocess={**PREPROCESS, "layout": "NCHW"}), INTERFACE, path)


def test_a_missing_picture(tmp_path: Path) -> None:
    with pytest.raises(KilnError, match=r"absent\.png: cannot be read as an image"):
        _inputs(Bundle(tmp_path, "zoo"), config(), INTERFACE, tmp_path / "absent.png")


def test_without_a_picture_the_first_golden_vector_is_taken(tmp_path: Path) -> None:
    golden = tmp_path / "golden"
    golden.mkdir()
    (golden / "a.bin").write_bytes(b"\1\2")
    entry = golden_tensor("image", [2], "int8", file="a.bin")
    content = golden_file([GoldenEntry(name="random1", inputs=[entry], outputs=[])])
    (golden / "golden.json").write_text(content.model_dump_json())
    tensors, source, picture = _inputs(Bundle(tmp_path, "zoo"), config(run=None), INTERFACE, None)
    assert (tensors[0].tolist(), source, picture) == ([1, 2], "golden vector random1", False)


def _dynamic(*shape: Any) -> Interface:
    """The interface with dimensions, and a second input of the picture's width."""
    dims = [Dimension(name="batch", min=1, max=8), Dimension(name="width", min=2, max=64, multiple=2)]
    inputs = [port("image", shape, "int8", QUANT), port("mask", ["width"], "int8")]
    return INTERFACE.model_copy(update={"inputs": inputs, "dims": dims})


def test_a_picture_decides_the_sizes(tmp_path: Path) -> None:
    golden = tmp_path / "golden"
    golden.mkdir()
    vectors = []
    for width in (8, 2):
        (golden / f"{width}.bin").write_bytes(bytes(range(width)))
        entry = golden_tensor("mask", [width], "int8", file=f"{width}.bin")
        dims = {"batch": 1, "width": width}
        vectors.append(GoldenEntry(name="v", bucket="b", dims=dims, inputs=[entry] * 2, outputs=[]))
    (golden / "golden.json").write_text(golden_file(vectors).model_dump_json())
    path = tmp_path / "grey.png"
    Image.new("RGB", (4, 4)).save(path)
    interface = _dynamic("batch", 2, "width", 3)
    (tensor, mask), _, _ = _inputs(Bundle(tmp_path, "zoo"), config(), interface, path)
    assert tensor.shape == (1, 2, 2, 3) and mask.tolist() == [0, 1]
    wide = config(preprocess={**PREPROCESS, "size": [2, 16]})
    with pytest.raises(KilnError, match="'zoo': no golden vector has batch 1, width 16: nothing to give"):
        _inputs(Bundle(tmp_path, "zoo"), wide, interface, path)


@pytest.mark.parametrize(
    ("shape", "size", "message"),
    [
        (
            ("batch", 2, "width", 3),
            [2, 66],
            "the image, preprocessed: width is 66, allowed 2..64, multiples of 2",
        ),
        (
            ("batch", 2, "width", 3),
            [2, 3],
            "the image, preprocessed: width is 3, allowed 2..64, multiples of 2",
        ),
        (
            ("batch", 4, "width", 3),
            [2, 2],
            r"makes \[1, 2, 2, 3\], input 'image' takes \[batch, 4, width, 3\]",
        ),
        (("batch", "width", "width", 3), [2, 4], "input 'image' axis 2: 4, but elsewhere 'width' is 2"),
        ((["*", "batch", 2], 2, 2, 3), [2, 2], r"input 'image' takes \[batch \* 2, 2, 2, 3\]"),
    ],
)
def test_a_picture_of_sizes_that_are_not_taken(
    tmp_path: Path, shape: tuple[Any, ...], size: list[int], message: str
) -> None:
    path = tmp_path / "grey.png"
    Image.new("RGB", (4, 4)).save(path)
    settings = config(preprocess={**PREPROCESS, "size": size, "resize": "stretch"})
    with pytest.raises(KilnError, match=message):
        _inputs(Bundle(tmp_path, "zoo"), settings, _dynamic(*shape), path)
