"""Writes under a mask, `x[mask] = values`, and counts of PyTorch models: their ONNX files in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytestmark = pytest.mark.heavy
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch onnxscript")
pytest.importorskip("onnxscript", reason="PyTorch's ONNX exporter is not installed: pip install onnxscript")


class Writes(torch.nn.Module):
    """The results of each of `writes`, which changes a copy of x [4, n, 6]."""

    def __init__(self, writes: list[Callable[[Any, Any], None]]) -> None:
        super().__init__()
        self.writes = writes

    def forward(self, x: Any) -> Any:
        made = []
        for write in self.writes:
            made.append(x.clone())
            write(made[-1], x)
        return tuple(made)


def rows(x: Any) -> Any:
    """A mask [4, n]."""
    return x[..., 0] > 0


def put(target: Any, index: Any, values: Any, accumulate: bool = False) -> None:
    """target[index] = values, or their sums, in a lambda; None: all of an axis."""
    if accumulate:
        target.index_put_(index, values, accumulate)
    else:
        target[tuple(slice(None) if one is None else one for one in index)] = values


SAME: list[Callable[[Any, Any], None]] = [
    lambda a, x: put(a, (rows(x),), torch.tensor(0.0)),
    lambda a, x: put(a, (rows(x),), x[0, 0]),
    lambda a, x: put(a, (rows(x),), x[0, :1]),
    lambda a, x: put(a, (x[:, 0, 0] > 0,), x[:1, :, :1]),
    lambda a, x: put(a, (x > 0.5,), torch.tensor([7.0])),
    lambda a, x: put(a, (None, rows(x)[0]), x[:, :1]),
    lambda a, x: put(a, (None, x[0] > 0), x[:, 0, :1]),
    lambda a, x: put(a, (None, None, x[0, 0] > 0), x[:, :, :1]),
    lambda a, x: put(a, (rows(x),), x[0, 0], True),
]
OWN: list[Callable[[Any, Any], None]] = [
    lambda a, x: put(a, (rows(x),), x[rows(x)] * 3),
    lambda a, x: put(a, (rows(x),), x[rows(x)][:, :1]),
    lambda a, x: put(a, (x > 0.5,), x[x > 0.5] + 1),
    lambda a, x: put(a, (rows(x),), x[rows(x)], True),
    lambda a, x: put(a, (None, rows(x)[0]), x[:, rows(x)[0]] * 2),
    lambda a, x: put(a, (None, rows(x)[0]), x[0, rows(x)[0]]),
    lambda a, x: put(a, (None, None, x[0, 0] > 0), x[0, 0, x[0, 0] > 0]),
    lambda a, x: put(a, (None, x[0] > 0), x[:, x[0] > 0] + 1),
]


@pytest.mark.parametrize(("writes", "counts"), [(SAME, False), (OWN, True)], ids=["same", "own"])
def test_writes_under_a_mask(tmp_path: Path, writes: list[Callable[[Any, Any], None]], counts: bool) -> None:
    """Values that all true elements share are written without counting these, a size only the run knows."""
    import onnxruntime
    from kiln.frontend.torch.export_stage import convert
    from kiln.frontend.torch.trace_stage import export

    path, net = tmp_path / "net.pt2", Writes(writes)
    columns = torch.export.Dim("n", min=2, max=9)
    path.write_bytes(export("net", net, (torch.ones(4, 3, 6),), ({1: columns},)))
    file = convert(path)
    operators = {node.op_type for node in onnx.load_from_string(file).graph.node}
    assert ("NonZero" in operators) == counts
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for size in (2, 9):
        x = torch.randn(4, size, 6, generator=torch.Generator().manual_seed(size))
        for given in (x, -x.abs(), x.abs() + 1):
            for made, wanted in zip(session.run(None, {"x": given.numpy()}), net(given), strict=True):
                np.testing.assert_array_equal(made, wanted.numpy())


class Counts(torch.nn.Module):
    """How often each expert is chosen."""

    def forward(self, x: Any) -> Any:
        chosen, first = x.topk(2, dim=-1).indices, x.argmax(-1)
        made = [torch.bincount(chosen.flatten(), minlength=6), torch.bincount(first.int(), minlength=8)]
        return *made, torch.bincount(x.argmin(1, keepdim=True).reshape(-1), minlength=6)


def test_counts_of_places_have_a_fixed_size(tmp_path: Path) -> None:
    import onnxruntime
    from kiln.frontend.torch.export_stage import convert
    from kiln.frontend.torch.trace_stage import export

    path, rows = tmp_path / "net.pt2", torch.export.Dim("n", min=2, max=9)
    path.write_bytes(export("net", Counts(), (torch.ones(4, 6),), ({0: rows},)))
    file = convert(path)
    assert "ReduceMax" not in {node.op_type for node in onnx.load_from_string(file).graph.node}
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
    for made, wanted in zip(session.run(None, {"x": x.numpy()}), Counts()(x), strict=True):
        np.testing.assert_array_equal(made, wanted.numpy())
