"""Every shipped model, imported and compiled by TVM alone, agrees with its reference on the golden inputs."""

from __future__ import annotations

import pytest
from kiln.config import load_model, stage_config
from kiln.golden.compare import compare, limits_for
from kiln.golden.inputs import make_set, set_names
from kiln.golden.reference import open_reference

from .models import compile_on_host, imported, source

MODELS = (
    "resnet",
    "blazeface",
    "ppocr_cls",
    "pplcnet_orientation",
    "efficientnet_lite0",
    "mobilenet_v2",
    "resnet50",
)


@pytest.mark.parametrize("name", MODELS)
def test_import_agrees_with_the_reference(name: str) -> None:
    model = load_model(name)
    module, interface = imported(name)
    run = compile_on_host(module)
    config = stage_config(model, "golden")
    tolerance = stage_config(model, "tolerance")["tolerance"]
    specs = config["golden"]["inputs"]
    reference = open_reference(source(name), config["golden"]["reference"])
    for spec, label in zip(specs, set_names(specs), strict=True):
        inputs = make_set(spec, interface["inputs"], config["preprocess"])
        for got, want, entry in zip(run(inputs), reference.run(inputs), interface["outputs"], strict=True):
            result = compare(got, want, limits_for(tolerance, entry["name"]), entry["quant"] is not None)
            print(f"{name} {label} {entry['name']}: error {result.error:.3g}, limit {result.limit:.3g}")
            assert result.passed, f"{label} {entry['name']}: {result.detail}"
