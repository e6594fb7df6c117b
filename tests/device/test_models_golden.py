"""Every shipped model, from its package to its golden vectors, as `scons … test` does it."""

from __future__ import annotations

import pytest
from kiln.config import list_models
from kiln.files import read_json

from .building import Project

MODELS = [summary.name for summary in list_models()]
# ResNet-50 has many times the work of what is left: minutes of an emulator that say nothing more.
EMULATED = [model for model in MODELS if model != "resnet50"]
SMALL = ["resnet", "ppocr_cls"]
PAIRS = [
    *(("x86_64", model) for model in MODELS),
    *((target, model) for target in ("x86_64_v2", "aarch64", "armv7") for model in EMULATED),
    *((target, model) for target in ("host", "x86_64_musl", "aarch64_a76") for model in SMALL),
    *((target, "resnet") for target in ("aarch64_a53", "aarch64_musl")),
]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("target", "model"), PAIRS)
def test_a_model_agrees_with_its_reference(project: Project, target: str, model: str) -> None:
    project.make(f"target={target}", f"model={model}", "test", "-j2")
    results = read_json(project.build / ".stages" / target / model / "test.json")
    assert len(results["vectors"]) >= 3 and len(results["checks"]) >= 150
    for output in (output for vector in results["vectors"] for output in vector["outputs"]):
        assert output["error"] <= output["limit"]
    manifest = read_json(project.build / target / model / "manifest.json")
    for bucket in manifest["buckets"]:
        # Tensors that live at the same time cannot take less; the planner may take a little more.
        assert bucket["lower_bound_bytes"] <= bucket["arena_bytes"] <= 1.25 * bucket["lower_bound_bytes"]
