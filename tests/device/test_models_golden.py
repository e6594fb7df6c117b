"""Every shipped model, from its package to its golden vectors, as `scons … test` does it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kiln.config import list_models
from scons_real import copy_tree, scons

MODELS = [summary.name for summary in list_models()]
# ResNet-50 has forty times the work of what is left here: minutes of an emulator that say nothing more.
SMALL = ["resnet", "blazeface", "ppocr_cls", "mobilenet_v2"]
PAIRS = [
    *(("x86_64", model) for model in MODELS),
    *((target, model) for target in ("aarch64", "armv7") for model in SMALL),
    *((target, "resnet") for target in ("host", "x86_64_v2", "x86_64_musl", "aarch64_a76", "aarch64_musl")),
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One project for all, so that what a model's targets share is made once."""
    return copy_tree(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(("target", "model"), PAIRS)
def test_a_model_agrees_with_its_reference(project: Path, target: str, model: str) -> None:
    said = scons(project, f"target={target}", f"model={model}", "test", "-j2")
    assert said.count("max error") >= 3, said
    manifest = json.loads((project / f"build/{target}/{model}/manifest.json").read_text())
    for bucket in manifest["buckets"]:
        # Tensors that live at the same time cannot take less; the planner may take a little more.
        assert bucket["lower_bound_bytes"] <= bucket["arena_bytes"] <= 1.25 * bucket["lower_bound_bytes"]
