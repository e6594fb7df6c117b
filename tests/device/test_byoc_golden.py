"""Models that libraries compute in part agree with their reference like those that Kiln computes alone."""

from __future__ import annotations

import pytest
from kiln.files import read_json

from .building import Project

# Convolutions with residuals and clips; dense layers of fixed and of open sizes.
# The number: steps that are the library's, at the least.
PAIRS = [
    ("openblas", "x86_64", "mobilenet_v2", 35),
    ("openblas", "x86_64", "paraphrase_minilm_l3", 18),
    ("onednn", "x86_64", "mobilenet_v2", 53),
    ("onednn", "x86_64", "resnet18", 21),
    ("onednn", "x86_64", "vit_tiny", 61),
]
LICENCES = {
    "openblas": "BSD-3-Clause AND GPL-3.0-or-later WITH GCC-exception-3.1",
    "onednn": "Apache-2.0 AND BSD-3-Clause",
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("backend", "target", "model", "steps"), PAIRS)
def test_models_agree_with_their_references(
    project: Project, backend: str, target: str, model: str, steps: int
) -> None:
    project.make(f"target={target}", f"model={model}", f"byoc={backend}", "test", "-j2")
    results = read_json(project.build / ".stages" / target / model / "test.json")
    for output in (output for vector in results["vectors"] for output in vector["outputs"]):
        assert output["error"] <= output["limit"]
    manifest = read_json(project.build / target / model / "manifest.json")
    (library,) = manifest["libraries"]
    assert library["heap"] == "library"
    assert library["licence"].startswith(LICENCES[backend])
    assert (project.build / target / model / "licences" / f"{backend}.txt").is_file()
    plan = read_json(project.build / ".stages" / target / model / "plan" / "plan.json")
    external = {kernel["symbol"] for kernel in plan["kernels"] if "external" in kernel}
    taken = [step for bucket in plan["buckets"] for step in bucket["steps"] if step["kernel"] in external]
    assert len(taken) >= steps
