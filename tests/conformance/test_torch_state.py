"""Buffers that a PyTorch module changes when it runs become the model's state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kiln
import numpy as np
import pytest
from kiln.files import read_json
from scons_real import ROOT

pytestmark = pytest.mark.heavy
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch onnxscript")
pytest.importorskip("onnxscript", reason="PyTorch's ONNX exporter is not installed: pip install onnxscript")

NETS = '''
import torch
from torch import nn

class Stream(nn.Module):
    """A module that keeps a cache, known under two names, the last samples, a counter and sums."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 2, 7, 3))
        self.register_buffer("last", torch.arange(5.0)[None], persistent=False)
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("smooth", torch.full((2,), 0.5, dtype=torch.bfloat16))
        self.alias, self.own = self.cache, torch.zeros(3)

    def forward(self, x, place):
        self.alias.index_copy_(2, place, x[None])
        self.cache[:, :, place - 1] = x[None] * 2
        self.last[:, :-1] = self.last[:, 1:].clone()
        self.last[:, -1] = x.sum()
        self.count += 1
        self.own.add_(x[0, 0])
        self.smooth.copy_(self.smooth * 0.5 + x[0, 0, :2])
        mean = self.cache.mean(2)[0] + self.last.sum() + self.count
        return {"mean": mean, "count": self.count, "rest": self.own * self.smooth.float().sum()}


def stream():
    return Stream(), (torch.ones(2, 1, 3), torch.tensor([2]))
'''


def test_runs_keep_what_the_module_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several runs agree with the module's, and so do those after a reset with a new module's."""
    (tmp_path / "kept_nets.py").write_text(NETS, encoding="utf-8")
    words = ["-Q", "-f", str(ROOT / "SConstruct"), "target=host", "model=kept_nets:stream", "test"]
    command = [sys.executable, "-m", "SCons", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.count("_run4: max error") == 3
    monkeypatch.syspath_prepend(str(tmp_path))
    import kept_nets  # type: ignore[import-not-found]

    names = {state["name"] for state in read_json(tmp_path / "build/host/stream/manifest.json")["states"]}
    assert names == {"cache", "last", "count.kept", "smooth", "own"}
    plan = (tmp_path / "build/host/stream/src/stream_plan.c").read_text()
    assert "permute" not in plan
    with kiln.load(tmp_path / "build/host/stream") as net:
        assert [port.name for port in net.inputs] == ["x", "place"]
        assert [port.name for port in net.outputs] == ["mean", "count", "rest"]
        torch.manual_seed(0)
        for _ in range(2):
            module = kept_nets.Stream()
            for run in range(5):
                x, place = torch.randn(2, 1, 3), torch.tensor([1 + run])
                wanted = module(x, place)
                # `rest` is a product with a sum of numbers that PyTorch rounds to bfloat16.
                limits = {"mean": 1e-5, "count": 0.0, "rest": 0.1}
                for got, (key, limit) in zip(net(x.numpy(), place.numpy()), limits.items(), strict=True):
                    np.testing.assert_allclose(got, wanted[key].detach().numpy(), rtol=1e-5, atol=limit)
            net.reset()
