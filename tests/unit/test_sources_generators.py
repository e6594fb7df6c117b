"""Generated models: the promised bytes, sane activations, and a network that recognises a cat."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kiln.config import load_model
from kiln.errors import KilnError
from kiln.sources import fetch
from kiln.sources.generators import generate
from kiln.sources.generators._weights import Weights
from kiln.sources.image import load_image, preprocess
from kiln.sources.labels import load_labels


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2"])
def test_seeded_network(name: str) -> None:
    data = generate(name, 0, None)
    assert hashlib.sha256(data).hexdigest() == load_model(name).source.sha256
    model = onnx.load_from_string(data)
    watched = [
        node.output[0] for node in model.graph.node if node.op_type in ("BatchNormalization", "Add", "Gemm")
    ]
    model.graph.output.extend(onnx.ValueInfoProto(name=tensor) for tensor in watched if tensor != "logits")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    inputs = {"input": np.random.default_rng(1).standard_normal((1, 3, 224, 224)).astype(np.float32)}
    spreads = [float(np.std(np.asarray(value))) for value in session.run(None, inputs)]
    assert len(spreads) == len(watched)
    assert min(spreads) > 0.3
    assert max(spreads) < 5.0


def test_seeds_differ() -> None:
    assert generate("mobilenet_v2", 1, None) != generate("mobilenet_v2", 0, None)


def test_unknown_generator() -> None:
    with pytest.raises(KilnError, match=r"unknown generator 'resnet51'; did you mean 'resnet50'\?"):
        generate("resnet51", 0, None)


def test_a_generator_without_its_checkpoint() -> None:
    with pytest.raises(KilnError, match="generator efficientnet_lite0: needs 'weights'"):
        generate("efficientnet_lite0", 0, None)


def test_uniform_values_are_spread_over_their_range() -> None:
    values = Weights(3).uniform((1000,), -2.0, 4.0)
    assert values.dtype == np.float32
    assert -2.0 <= values.min() < -1.9
    assert 3.9 < values.max() < 4.0
    assert abs(float(values.mean()) - 1.0) < 0.2
    # Written out, so that a NumPy that draws other values is noticed here and not in a model's hash.
    assert Weights(0).uniform((3,), 0.0, 1.0).tolist() == [
        0.6369616389274597,
        0.26978665590286255,
        0.0409734845161438,
    ]


def outputs(name: str, **turn: Any) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Scores of a shipped classifier for its own photograph, and its classes."""
    model = load_model(name)
    assert model.run is not None
    assert model.preprocess is not None
    assert model.labels is not None
    session = onnxruntime.InferenceSession(str(fetch(model.source)))
    picture = load_image(fetch(model.run.image), model.run.crop, **turn)
    (scores,) = session.run(None, {session.get_inputs()[0].name: preprocess(picture, model.preprocess)})[:1]
    return np.asarray(scores)[0], load_labels(model.labels)


def test_efficientnet_recognises_the_cat() -> None:
    scores, names = outputs("efficientnet_lite0")
    assert len(names) == scores.size == 1000
    best = [names[index] for index in np.argsort(scores)[::-1][:3]]
    assert set(best) == {"tiger cat", "Egyptian cat", "tabby, tabby cat"}


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
def test_pplcnet_orientation_reads_the_page(turn: int) -> None:
    scores, names = outputs("pplcnet_orientation", rotate=turn)
    assert names[int(scores.argmax())] == str(turn)


@pytest.mark.parametrize(("turn", "answer"), [(0, "upright"), (180, "upside down")])
def test_ppocr_cls_reads_the_heading(turn: int, answer: str) -> None:
    scores, names = outputs("ppocr_cls", rotate=turn)
    assert names[int(scores.argmax())] == answer
