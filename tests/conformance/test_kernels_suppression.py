"""Boxes of detectors: TensorFlow Lite's DetectionPostProcess, against LiteRT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flatbuffers import flexbuffers
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from kiln.graph.pipeline import simplify
from tflite_files import Tensor, write

from .lowered import Compiled, runnable

BOXES, CLASSES, MOST = 20, 3, 6


def detector(path: Path, regular: bool, least: float) -> Path:
    """Boxes of (20, 4) anchors and scores of three classes and the background to the best six."""
    random = np.random.default_rng(0)
    anchors = np.concatenate([random.random((BOXES, 2)), random.random((BOXES, 2)) * 0.4 + 0.2], 1)
    anchors[3] = anchors[7] = anchors[8]
    about = {
        "max_detections": MOST, "max_classes_per_detection": 1, "detections_per_class": 4,
        "use_regular_nms": regular, "nms_score_threshold": least, "nms_iou_threshold": 0.4,
        "num_classes": CLASSES, "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0,
    }  # fmt: skip
    options = flexbuffers.Builder()
    with options.Map():
        for key, value in about.items():
            options.Key(key)
            {bool: options.Bool, int: options.Int, float: options.Float}[type(value)](value)
    outputs = [("boxes", (1, MOST, 4)), ("classes", (1, MOST)), ("scores", (1, MOST)), ("count", (1,))]
    tensors = [
        Tensor("where", (1, BOXES, 4)),
        Tensor("what", (1, BOXES, CLASSES + 1)),
        Tensor("anchors", (BOXES, 4), data=anchors.astype("float32")),
        *(Tensor(name, shape) for name, shape in outputs),
    ]
    return write(
        path, tensors, "TFLite_Detection_PostProcess", bytes(options.Finish()), [0, 1, 2], [3, 4, 5, 6]
    )


@pytest.mark.parametrize(
    ("regular", "least"),  # with the last, nothing is found
    [
        pytest.param(
            regular, least, marks=[] if least == 0.3 or (regular and least > 1) else [pytest.mark.heavy]
        )
        for regular in (False, True)
        for least in (0.3, 0.95, 1.5)
    ],
)
def test_boxes_are_those_of_the_reference(tmp_path: Path, regular: bool, least: float) -> None:
    path = detector(tmp_path / "m.tflite", regular, least)
    module, _ = import_model(path, ImportOptions("m"))
    compiled = Compiled(simplify(module), runnable("x86_64"), tmp_path / "made").load()
    reference, counts = open_reference(path), set()
    for seed in range(3):
        random = np.random.default_rng(seed)
        given = [
            random.normal(size=(1, BOXES, 4)).astype("float32"),
            random.random((1, BOXES, CLASSES + 1)).astype("float32"),
        ]
        got, want = compiled.run(given), reference.run(given)
        count = int(want[3][0])
        counts.add(count)
        assert got[3] == want[3]
        for ours, theirs in zip(got[:3], want[:3], strict=True):
            np.testing.assert_allclose(ours[:, :count], theirs[:, :count], rtol=1e-5, atol=1e-5)
            assert not ours[:, count:].any()  # LiteRT leaves what was there
    assert (counts == {0}) is (least > 1)
