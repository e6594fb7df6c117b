"""Bundles whose outputs have a size that is in the data: built, tested against ONNX Runtime, and run."""

from __future__ import annotations

import platform
from pathlib import Path

import kiln
import numpy as np
import onnx
import onnxruntime
import pytest
from kiln.runtime.library import RunError

from .building import Project

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundles are loaded on this machine"),
]
# What masked_select and nonzero become, and boxes that are kept of those that a threshold leaves; the batch
# is open.
PICK = """
<ir_version: 8, opset_import: ["": 17]>
g (float[b,6] x) => (float[n] y, int64[2,n] where, float[m,6] more, float[6] sum, float[k,4] boxes)
<float half = {0.5}, float two = {2.0}, int64[1] first = {0}, int64[1] second = {1}, int64[2] both = {0, 1},
 int64[3] parts = {4, 1, 1}, int64[1] most = {3}, float[1] overlap = {0.1}, int64 box = {2}>
{
  high = Greater(x, half) where = NonZero(high) at = Transpose<perm = [1, 0]>(where)
  picked = GatherND(x, at) y = Mul(picked, two)
  row = ReduceMax<axes = [1], keepdims = 0>(x) good = Greater(row, half)
  rows = Compress<axis = 0>(x, good) more = Concat<axis = 0>(rows, x)
  sum = ReduceSum<keepdims = 0>(rows, first)
  corners, score, rest = Split<axis = 1>(rows, parts) line = Squeeze(score, second)
  all = Unsqueeze(corners, first) scores = Unsqueeze(line, both)
  kept = NonMaxSuppression(all, scores, most, overlap) place = Gather<axis = 1>(kept, box)
  boxes = Gather<axis = 0>(corners, place)
}
"""
KEYS = """
source: {kind: file, path: ../pick.onnx}
dims: {b: {min: 1, max: 4, buckets: [1]}}
bounds: {where: 12}
golden: {inputs: [{kind: random, seed: 1, low: -1.0, high: 0.8}]}
"""


@pytest.fixture(scope="module")
def pick(project: Project) -> Path:
    """The bundle of PICK for this machine, tested against its reference."""
    onnx.save(onnx.parser.parse_model(PICK), project.folder / "pick.onnx")
    (project.folder / "models/pick.yaml").write_text(KEYS)
    printed = project.make("target=x86_64", "model=pick", "test")
    assert "max error" in printed
    return project.build / "x86_64" / "pick"


def test_outputs_have_the_shape_of_the_run(project: Project, pick: Path) -> None:
    session = onnxruntime.InferenceSession(project.folder / "pick.onnx")
    random = np.random.default_rng(0)
    with kiln.load(pick) as net:
        assert net.plan((4, 6)).outputs == ((12,), (2, 12), (8, 6), (6,), (3, 4))
        for batch, share in ((1, 0.0), (1, 1.0), (2, 1.0), (4, 0.4), (4, 0.0)):
            x = np.where(random.random((batch, 6)) < share, 0.75, 0).astype(np.float32)
            for ours, theirs in zip(net(x), session.run(None, {"x": x}), strict=True):
                assert ours.shape == theirs.shape
                np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_run_that_finds_too_many(pick: Path) -> None:
    with kiln.load(pick) as net:
        with pytest.raises(RunError, match=r"KILN_TOO_MANY: where: 13 elements, allowed 0\.\.12"):
            net(np.arange(24, dtype=np.float32).reshape(4, 6) - 10.4)
        y, where, *_ = net(np.arange(24, dtype=np.float32).reshape(4, 6) - 11.4)
        assert y.shape == (12,) and where.shape == (2, 12)


def test_memory_of_the_caller_is_for_the_bound(pick: Path) -> None:
    x, memory = np.eye(4, 6, dtype=np.float32), np.full(12, 7, np.float32)
    with kiln.load(pick) as net:
        output = net.run({"x": x}, out={"y": memory})["y"]
        assert output.shape == (4,) and np.shares_memory(output, memory)
        bound = net.bind({"x": x})
        assert bound()["y"].shape == (4,)
        x[0] = 1
        assert bound()["y"].shape == (9,)


def test_the_header_says_what_is_counted(pick: Path) -> None:
    header = (pick / "include/pick.h").read_text()
    assert "kiln_output_shape(&session, i, shape)" in header
    assert "n_where: of where, 0..min(b, 2) * 6" in header


@pytest.mark.heavy
@pytest.mark.parametrize("target", ["armv7", "aarch64"])
def test_under_emulation(project: Project, pick: Path, target: str) -> None:
    assert "max error" in project.make(f"target={target}", "model=pick", "test")
