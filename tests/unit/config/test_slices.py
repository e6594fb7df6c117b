"""A change of one key changes the slices that read it, and no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kiln.config import Model, canonical_json, load_model, slice_records, stage_config
from kiln.config.records import parse
from kiln.config.slice_records import ModelConfig
from kiln.config.weights import Weights
from kiln.paths import data_dir
from kiln.stages import SLICES

RECORDS: dict[str, type[ModelConfig]] = {
    "import": slice_records.ImportConfig,
    "padding": slice_records.ImportConfig,
    "specialize": slice_records.SpecializeConfig,
    "edges": slice_records.EdgesConfig,
    "golden": slice_records.GoldenConfig,
    "lower": slice_records.LowerConfig,
    "weights": slice_records.WeightsConfig,
    "precision": slice_records.PrecisionConfig,
    "plan": slice_records.PlanConfig,
    "bundle": slice_records.BundleConfig,
    "run": slice_records.RunConfig,
}
CHANGES = [
    ("tolerance: {levels: 1}", "tolerance: {levels: 2}", {"tolerance"}),
    ("seed: 2", "seed: 3", {"golden"}),
    ("version: 0.20.0", "version: 0.20.1", {"fetch"}),
    ("filter: bilinear", "filter: bicubic", {"golden", "run"}),
    ("licence: Apache", "licence: apache", {"bundle"}),
    ("tolerance:", "homepage: https://a.example\ntolerance:", {"bundle"}),
    ("[airplane", "[aeroplane", {"run"}),
    ("tolerance:", "params: {storage: file}\ntolerance:", {"plan"}),
    ("tolerance:", "threads: none\ntolerance:", {"lower"}),
    ("tolerance:", "precision: fp16\ntolerance:", {"lower", "precision", "tolerance"}),
    ("tolerance:", "precision: tf32\ntolerance:", {"lower", "precision", "tolerance"}),
    ("tolerance:", "precision: bf16\ntolerance:", {"lower", "precision", "tolerance"}),
    ("tolerance:", "weights: int8\ntolerance:", {"weights", "precision", "tolerance"}),
    ("tolerance:", "budget: {ram_bytes: 64KiB}\ntolerance:", {"budget", "lower"}),
    (
        "tolerance:",
        "dims: {n: {min: 1, max: 2}}\ntolerance:",
        {"import", "padding", "specialize", "edges"},
    ),
    (
        "tolerance:",
        "special_cases: [{input: input_1_int8, value: zeros}]\ntolerance:",
        {"golden", "specialize"},
    ),
]


@pytest.mark.parametrize(("old", "new", "changed"), CHANGES)
def test_only_readers_change(old: str, new: str, changed: set[str], tmp_path: Path) -> None:
    text = (data_dir("models") / "resnet.yaml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "resnet.yaml"
    slices = []
    for content in (text, text.replace(old, new, 1)):
        path.write_text(content, encoding="utf-8")
        model = load_model(path)
        slices.append({stage: canonical_json(stage_config(model, stage)) for stage in SLICES})
    assert {stage for stage in SLICES if slices[0][stage] != slices[1][stage]} == changed


@pytest.mark.parametrize("name", RECORDS)
def test_records_have_the_keys_that_stages_declare(name: str) -> None:
    record = RECORDS[name]
    assert record.model_fields.keys() == {"name", "format", *SLICES[name]}
    if "weights" in SLICES[name]:
        model = load_model("resnet").model_copy(update={"weights": Weights(type="int4", block=32)})
    else:
        model = load_model("efficientnet_lite0")
    content = stage_config(model, name)
    assert parse(record, json.loads(canonical_json(content)), name).model_dump(mode="json") == content


def test_every_key_is_read_by_a_stage() -> None:
    read = {key for keys in SLICES.values() for key in keys}
    # `buckets` reaches the stages as buckets.json, `byoc` as byoc.json, `variants` as target.json;
    # `limits` are the processes'.
    elsewhere = {"name", "format", "aliases", "buckets", "byoc", "limits", "variants"}
    assert read | elsewhere == set(Model.model_fields)


def test_a_bucket_more_changes_no_slice_of_the_others(tmp_path: Path) -> None:
    text = (data_dir("models") / "resnet.yaml").read_text(encoding="utf-8")
    path = tmp_path / "resnet.yaml"
    slices = []
    for buckets in ("[1]", "[1, {pad: 4}]"):
        path.write_text(f"{text}dims: {{n: {{min: 1, max: 8, buckets: {buckets}}}}}\n", encoding="utf-8")
        model = load_model(path)
        slices.append({s: canonical_json(stage_config(model, s)) for s in SLICES if s != "edges"})
    assert slices[0] == slices[1]


def test_unknown_stage() -> None:
    with pytest.raises(ValueError, match="no slice 'lowr'"):
        stage_config(load_model("resnet"), "lowr")
