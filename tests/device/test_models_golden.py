"""Every shipped model, from its package to its golden vectors, as `scons … test` does it."""

from __future__ import annotations

from typing import Any

import pytest
from kiln.config import list_models
from kiln.emit.simd_check import scalar_kernels
from kiln.files import read_json
from kiln.plan.schema import read_plan

from .building import Project

# Sizes known at build time.
FIXED = [
    "anomaly_detection",
    "blazeface",
    "efficientnet_lite0",
    "mobilenet_v2",
    "pplcnet_orientation",
    "ppocr_cls",
    "resnet",
    "resnet50",
]
# Several buckets: exact, padded, and one for all other sizes. The other shipped models are alike.
OPEN = ["magika", "paraphrase_minilm_l3", "ppocr_det", "ppocr_rec", "silero_vad"]
# ResNet-50 has many times the work of what is left: minutes of an emulator that say nothing more.
EMULATED = [model for model in FIXED if model != "resnet50"]
SMALL = ["resnet", "ppocr_cls"]
# Pairs of the gate: a quantised network, whose bundle other files use too, and a recurrent one, with buckets
# of each kind. The other pairs are heavy. Float networks with depthwise convolutions are in the first command
# of .ci/run and, on ARM, in test_end_to_end_own_models.py; ResNet on armv7 is in test_end_to_end_resnet8.py,
# dense quantised layers in test_bare_machines.py.
GATE = {
    ("x86_64", "resnet"),
    ("x86_64", "silero_vad"),
}
PAIRS = [
    *(("x86_64", model) for model in FIXED + OPEN),
    *((target, model) for target in ("aarch64", "armv7") for model in [*EMULATED, "silero_vad"]),
    *((target, model) for target in ("x86_64_v2",) for model in [*SMALL, "mobilenet_v2", "blazeface"]),
    *((target, model) for target in ("host", "x86_64_musl", "aarch64_a76") for model in SMALL),
    *((target, "resnet") for target in ("aarch64_a53", "aarch64_musl")),
    ("aarch64", "paraphrase_minilm_l3"),
    *(("wasm32", model) for model in (*SMALL, "silero_vad")),
]

# A step of fewer bytes is over before vectors would matter.
LARGE = 1 << 14
# Kernels of larger tensors that may work on single numbers: target, model, label of the step, and why.
SCALAR = {
    ("armv7", "blazeface", "max_pool2d+pad+add+relu"): "42 channels, 6 of padding: a choice for each",
}

pytestmark = pytest.mark.slow


def marked(target: str, model: str) -> Any:
    """One parameter set, heavy where the gate does without it."""
    return pytest.param(target, model, marks=[] if (target, model) in GATE else [pytest.mark.heavy])


def test_the_models_are_shipped() -> None:
    assert {model for _, model in PAIRS} <= {summary.name for summary in list_models()}
    assert set(PAIRS) >= GATE


@pytest.mark.parametrize(("target", "model"), [marked(*pair) for pair in PAIRS])
def test_a_model_agrees_with_its_reference(project: Project, target: str, model: str) -> None:
    project.make(f"target={target}", f"model={model}", "test", "-j2")
    results = read_json(project.build / ".stages" / target / model / "test.json")
    assert len(results["vectors"]) >= 3 and len(results["checks"]) >= 150
    for output in (output for vector in results["vectors"] for output in vector["outputs"]):
        assert output["error"] <= output["limit"]
    stages = project.build / ".stages" / target / model
    plan, vectors = read_plan(stages / "plan/plan.json"), read_json(stages / "objects/vectors.json")
    scalar = scalar_kernels(plan, vectors, LARGE)
    labels = {s.label for bucket in plan.buckets for s in bucket.steps if s.kernel in scalar}
    assert {(target, model, label) for label in labels} <= set(SCALAR)
    manifest = read_json(project.build / target / model / "manifest.json")
    for bucket in manifest["buckets"]:
        # Tensors that live at the same time cannot take less; the planner may take a little more.
        assert bucket["lower_bound_bytes"] <= bucket["arena_bytes"] <= 1.25 * bucket["lower_bound_bytes"]
