"""Buckets that pad, built and run: a fill that no maximum sees, a refusal by name, and measured data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from kiln.files import read_json
from kiln.stage import Output
from kiln.stages import STAGES
from sentence_encoder import LONGEST, WORDS, encoder

from .building import Project

pytestmark = pytest.mark.slow

PORTS = ("float[1,seq,3] x, int32[1,seq] i", "float[1,3] y, int32[1] z")
PEAK = "y = ReduceMax <axes: ints = [1], keepdims: int = 0> (x) "
LOW = "z = ReduceMin <axes: ints = [1], keepdims: int = 0> (i) "
MEAN = "y = ReduceMean <axes: ints = [1], keepdims: int = 0> (x)"


def _model(project: Project, name: str, body: str, ports: str, outputs: str, bucket: str) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]>\ng ({ports}) => ({outputs}) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
    path = project.folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    (project.folder / f"models/{name}.yaml").write_text(
        f"source: {{kind: file, path: ../{path.name}}}\n"
        f"dims: {{seq: {{min: 12, max: 32, buckets: [{bucket}]}}}}\n"
    )


@pytest.mark.heavy
def test_a_maximum_of_negative_numbers_is_their_maximum(project: Project) -> None:
    _model(project, "peak", PEAK + LOW, *PORTS, "{pad: 32}")
    project.make("target=x86_64", "model=peak", "test")
    rng = np.random.default_rng(1)
    runs = []
    for size in (12, 19, 32):
        numbers = -1 - rng.random((1, size, 3), "float32")
        runs.append([numbers, rng.integers(5, 99, (1, size), "int32")])
    for (x, i), (y, z) in zip(runs, project.outputs("x86_64", "peak", runs), strict=True):
        np.testing.assert_array_equal(y, x.max(1))
        np.testing.assert_array_equal(z, i.min(1))


@pytest.mark.parametrize(
    ("sizes", "softmax", "first"),
    [
        ("min: 1, max: 8, buckets: [{pad: 8}], fallback: error", 1, "n1"),
        pytest.param("min: 0, max: 8", 0, "n0", marks=pytest.mark.heavy),
    ],
    ids=["only_bucket_pads", "no_rows"],
)
def test_rows(project: Project, sizes: str, softmax: int, first: str) -> None:
    """The axis of an output is the dimension, not the size it is padded to; no rows overlap nothing."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[n,4] x) => (float[n,3] y)
        <float[4,3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}}>
        {{ t = MatMul(x, w) u = Softmax<axis=1>(t) y = Softmax<axis={softmax}>(u) }}"""
    name = f"rows_{first}"
    onnx.save(onnx.parser.parse_model(text), project.folder / f"{name}.onnx")
    (project.folder / f"models/{name}.yaml").write_text(
        f"source: {{kind: file, path: ../{name}.onnx}}\ndims: {{n: {{{sizes}}}}}\n"
    )
    printed = project.make("target=x86_64", f"model={name}", "test")
    assert f"vector {first}_random_1: max error" in printed and "FAILED" not in printed
    interface = read_json(project.build / f".stages/models/{name}/interface.json")
    assert interface["outputs"][0]["shape"] == ["n", 3]


@pytest.mark.heavy
def test_stages_write_exactly_the_files_that_they_declare(project: Project) -> None:
    _model(project, "peak", PEAK + LOW, *PORTS, "{pad: 32}")
    project.make("target=x86_64", "model=peak", "test")
    folders = {
        "import": "import", "simplify": "simplify", "specialize": "specialize", "lower": "lower",
        "plan": "plan", "source": "emit-source",
    }  # fmt: skip
    for folder, stage in folders.items():
        [declared] = [one.kind.files for one in STAGES[stage].fields() if isinstance(one.kind, Output)]
        places = [path for path in (project.build / ".stages").rglob(folder) if "peak" in path.parts]
        assert places
        for stage_folder in places:
            written = {
                str(path.relative_to(stage_folder)) for path in stage_folder.rglob("*") if path.is_file()
            }
            assert written == {name.format(model="peak") for name in declared}


@pytest.mark.parametrize(
    ("bucket", "says"),
    [
        ("{pad: 32}", "model 'mean': dims.seq: pad 32 is not proven neutral: ReduceMean node n0"),
        (
            "{pad: {to: 32, assume: measured}}",
            "the first operator that sees the padding is ReduceMean (node 'n0')",
        ),
    ],
)
def test_a_mean_is_refused_by_name(project: Project, bucket: str, says: str) -> None:
    _model(project, "mean", MEAN, "float[1,seq,3] x", "float[1,3] y", bucket)
    done = project.scons("target=x86_64", "model=mean")
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path(project.build / "x86_64/mean").exists()


_ENCODER = f"""
source: {{kind: file, path: ../encoder.onnx}}
inputs:
  ids: {{shape: [batch, seq], dtype: int64}}
  mask: {{shape: [batch, seq], dtype: int64, mask: true}}
dims:
  batch: {{min: 1, max: 3, buckets: [1]}}
  seq: {{min: 1, max: {LONGEST}, buckets: [{{exact: 8}}, {{pad: 24}}]}}
golden: {{inputs: [{{kind: random, seed: 1, inputs: {{ids: {{low: 0, high: {WORDS - 1}}}}}}}]}}
tolerance: {{absolute: 1e-5, relative: 1e-4}}
"""


@pytest.mark.heavy  # Silero VAD in test_models_golden.py has buckets of each kind in the gate
def test_a_sentence_encoder_in_buckets_of_each_kind(project: Project) -> None:
    """Exact, padded with a mask, and all other sizes, which share one copy of the parameters."""
    encoder(project.folder / "encoder.onnx")
    (project.folder / "models/encoder.yaml").write_text(_ENCODER)
    printed = project.make("target=x86_64", "model=encoder", "test")
    assert "checks of repeated runs, guards and wrong arguments ok" in printed
    results = read_json(project.build / ".stages/x86_64/encoder/test.json")
    assert len({vector["bucket"] for vector in results["vectors"]}) == 3
    for output in (output for vector in results["vectors"] for output in vector["outputs"]):
        assert output["error"] <= output["limit"]
