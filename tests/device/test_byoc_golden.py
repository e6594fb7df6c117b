"""Models that libraries compute in part agree with their reference like those that Kiln computes alone."""

from __future__ import annotations

import pytest
from kiln.files import read_json

from .building import Project

# 1x1 convolutions with residuals and clips; dense layers of fixed and of open sizes.
PAIRS = [("x86_64", "mobilenet_v2"), ("x86_64", "paraphrase_minilm_l3")]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("target", "model"), PAIRS)
def test_openblas_agrees_with_the_reference(project: Project, target: str, model: str) -> None:
    project.make(f"target={target}", f"model={model}", "byoc=openblas", "test", "-j2")
    results = read_json(project.build / ".stages" / target / model / "test.json")
    for output in (output for vector in results["vectors"] for output in vector["outputs"]):
        assert output["error"] <= output["limit"]
    manifest = read_json(project.build / target / model / "manifest.json")
    (library,) = manifest["libraries"]
    assert library["heap"] == "library"
    assert library["licence"].startswith("BSD-3-Clause AND GPL-3.0-or-later WITH GCC-exception-3.1")
    assert (project.build / target / model / "licences" / "openblas.txt").is_file()
    plan = read_json(project.build / ".stages" / target / model / "plan" / "plan.json")
    external = {kernel["symbol"] for kernel in plan["kernels"] if "external" in kernel}
    taken = [step for bucket in plan["buckets"] for step in bucket["steps"] if step["kernel"] in external]
    assert len(taken) >= 18
