"""A model with weights in 16, 8 and 4 bits agrees with its reference on every processor, and is small."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.files import read_json

from . import compact_network
from .building import Project

pytestmark = pytest.mark.slow

# The kernels of other processors are in tests/conformance/test_kernels_compact.py.
HEAVY = ("x86_64", "armv7", "cortex_m3", "cortex_m55", "riscv64")
TARGETS = ["cortex_m4", *(pytest.param(name, marks=pytest.mark.heavy) for name in HEAVY)]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compact_network.write(tmp_path_factory.mktemp("compact") / "compact.onnx")


@pytest.mark.heavy
@pytest.mark.parametrize("target", TARGETS)
def test_outputs_agree_and_parameters_stay_small(project: Project, network: Path, target: str) -> None:
    printed = project.make(f"target={target}", f"model={network}", "test")
    assert printed.count("max error") >= 3
    params = read_json(project.build / ".stages" / target / "compact" / "plan" / "plan.json")["params"]
    stored = {tensor["dtype"] for tensor in params["tensors"]}
    assert {"int4", "int8", "float16"} <= stored
    assert params["bytes"] < 0.36 * compact_network.FLOAT_BYTES
