"""Operators of a PyTorch that lacks some: PyTorch 2.15 has no aten::cholesky any more."""

from __future__ import annotations

from types import SimpleNamespace

from kiln.frontend.torch.present import Namespace, present


def test_operators_that_pytorch_lacks_are_left_out_of_tables() -> None:
    aten = Namespace(SimpleNamespace(relu=SimpleNamespace(default="aten.relu.default")))
    table = {aten.relu.default: 1, aten.cholesky.default: 2, aten.gone.padding_idx: 3}
    assert len(table) == 3
    assert present(table) == {"aten.relu.default": 1}
