"""Every shipped model, imported and compiled by TVM alone, agrees with its reference on the golden inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from kiln.config import load_model, stage_config
from kiln.config.boxes import Box
from kiln.config.dims import whole
from kiln.config.sizes import evaluate
from kiln.golden.compare import compare, limits_for
from kiln.golden.inputs import make_set, set_names
from kiln.golden.reference import open_reference
from symbolic import runner

from .models import compile_on_host, imported, source

MODELS = (
    "resnet",
    "blazeface",
    "ppocr_cls",
    "pplcnet_orientation",
    "efficientnet_lite0",
    "mobilenet_v2",
    "resnet18",
    "resnet50",
    "vit_tiny",
)
# With dynamic sizes: some that are small, so that TVM's kernels take seconds.
OPEN = {
    "efficientnet_lite0_batch": [{"batch": 2}],
    "magika": [{"batch": 1}, {"batch": 7}],
    "minilm_l6": [{"batch": 1, "seq": 1}, {"batch": 2, "seq": 77}],
    "paraphrase_minilm_l3": [{"batch": 1, "seq": 1}, {"batch": 3, "seq": 77}],
    "ppocr_det": [{"height": 32, "width": 96}, {"height": 64, "width": 32}],
    "ppocr_rec": [{"width": 32}, {"width": 136}],
    "silero_vad": [{"batch": 1}, {"batch": 5}],
}


# In the gate: a recurrent network of dynamic sizes. Others are compared there through all stages, in
# tests/device: a quantised network, one with depthwise convolutions, a sentence encoder with its attention.
GATE = ("silero_vad",)


def marked(names: Iterable[str]) -> list[Any]:
    """Parameter sets of models, heavy for those that are not in GATE."""
    return [pytest.param(name, marks=[] if name in GATE else [pytest.mark.heavy]) for name in names]


@pytest.mark.parametrize("name", marked(MODELS))
def test_import_agrees_with_the_reference(name: str) -> None:
    model = load_model(name)
    module, interface = imported(name)
    run = compile_on_host(module)
    tolerance = stage_config(model, "tolerance")["tolerance"]
    specs = model.golden.inputs
    reference = open_reference(source(name), model.golden.reference)
    for spec, label in zip(specs, set_names(specs), strict=True):
        inputs = make_set(spec, interface.inputs, model.preprocess)
        for got, want, entry in zip(run(inputs), reference.run(inputs), interface.outputs, strict=True):
            result = compare(got, want, limits_for(tolerance, entry.name), entry.quant is not None)
            print(f"{name} {label} {entry.name}: error {result.error:.3g}, limit {result.limit:.3g}")
            assert result.passed, f"{label} {entry.name}: {result.detail}"


@pytest.mark.slow
@pytest.mark.parametrize("name", marked(OPEN))
def test_import_for_all_sizes_agrees_with_the_reference(name: str) -> None:
    model = load_model(name)
    bucket = Box(name="all", dims={dim: whole(box) for dim, box in model.dims.items()})
    module, interface = imported(name, bucket=bucket)
    tolerance = stage_config(model, "tolerance")["tolerance"]
    masks = [name for name, port in model.inputs.items() if port.mask]
    run, reference = runner(module), open_reference(source(name))
    for sizes in OPEN[name]:
        inputs = make_set(model.golden.inputs[0], interface.at(sizes).inputs, None, masks)
        results = zip(run(inputs, sizes), reference.run(inputs), interface.outputs, strict=True)
        for got, want, entry in results:
            assert list(got.shape) == [evaluate(size, sizes) for size in entry.shape]
            result = compare(got, want, limits_for(tolerance, entry.name), entry.quant is not None)
            print(f"{name} {sizes} {entry.name}: error {result.error:.3g}, limit {result.limit:.3g}")
            assert result.passed, f"{sizes} {entry.name}: {result.detail}"
