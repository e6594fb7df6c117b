"""Dynamic sizes that torch.export alone refuses: examples of one image, and conditions on remainders."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.errors import KilnError

from conformance.torch_builds import build

pytestmark = pytest.mark.heavy
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch onnxscript")
pytest.importorskip("onnxscript", reason="PyTorch's ONNX exporter is not installed: pip install onnxscript")

NETS = '''
import torch
from torch import nn
from torch.export import Dim

class Spectrogram(nn.Module):
    """Frames of a sound, each with a token before it, as libraries compute them."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 9))

    def forward(self, x):
        f = torch.stft(x.reshape(-1, x.shape[-1]), 16, 8, window=torch.ones(16), return_complex=True)
        size = f.reshape(x.shape[:-1] + f.shape[-2:]).abs().transpose(1, 2)
        return torch.cat([self.token.expand(x.shape[0], -1, -1), size], 1)

def sound():
    torch.manual_seed(0)
    shapes = {0: Dim("batch", max=3), 1: Dim("n", min=20, max=90)}
    return Spectrogram(), (torch.randn(1, 40),), (shapes,)
'''
Dim: Any = torch.export.Dim


def test_a_spectrogram_of_any_length_from_an_example_of_one_sound(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETS, encoding="utf-8")
    done = build(tmp_path, "model=nets:sound", "test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "batch 1..3, n 20..90" in done.stdout


class Add(torch.nn.Module):
    """A sum that reads the number of rows of its first input."""

    def forward(self, x: Any, y: Any) -> Any:
        return x.expand(x.shape[0], -1) + y


class Halved(torch.nn.Module):
    """Rows in pairs, of which there must be an even number."""

    def forward(self, x: Any) -> Any:
        return x.view(x.shape[0] // 2, 2, -1).sum(1) if x.shape[0] % 2 == 0 else x.sum(0)


class Cut(torch.nn.Module):
    """The first ten columns of a spectrogram's frames, for sounds that have them."""

    def forward(self, x: Any) -> Any:
        f = torch.stft(x, 16, 8, window=torch.ones(16), return_complex=True).abs()
        return f.reshape(x.shape[:-1] + f.shape[-2:]), x[:, :10]


def axes_of(module: Any, inputs: Any, shapes: Any) -> list[list[bool]]:
    """Whether each axis of each input of the exported program is dynamic."""
    import io

    from kiln.frontend.torch.trace_stage import export

    program = torch.export.load(io.BytesIO(export("net", module, inputs, shapes)))
    nodes = program.graph.find_nodes(op="placeholder")
    return [[not isinstance(size, int) for size in node.meta["val"].shape] for node in nodes]


def test_example_inputs_of_one_row() -> None:
    rows, one = Dim("rows", max=5), torch.ones(1, 3)
    assert axes_of(Add(), (one, one), ({0: rows}, {0: rows})) == [[True, False]] * 2
    assert axes_of(Add(), {"x": one, "y": one}, {"y": (rows, None), "x": [rows, None]}) == [[True, False]] * 2
    assert axes_of(Add(), (one, one), ({0: rows}, None)) == [[True, False], [False, False]]
    assert axes_of(Add(), (one, one), None) == [[False, False]] * 2
    assert axes_of(Add(), (one, one), ({0: torch.export.Dim.AUTO}, None)) == [[False, False]] * 2
    for shapes in (({0: rows}, {1: 3 * rows}), ({0: Dim("rows", max=1)}, None)):  # 3 * rows: computed from 1
        with pytest.raises(KilnError, match=r"a size of 1 in the example inputs"):
            axes_of(Add(), (one, one), shapes)


def test_a_condition_that_fails_for_some_sizes_is_told() -> None:
    with pytest.raises(KilnError, match=r"PyTorch suggests .*2\*_rows") as told:
        axes_of(Halved(), (torch.ones(4, 3),), ({0: Dim("rows", min=3, max=9)},))
    assert "\n" not in str(told.value)
    with pytest.raises(KilnError, match=r"does not take all sizes of n, allowed: n in \d+..90"):
        axes_of(Cut(), (torch.ones(2, 40),), ({1: Dim("n", min=4, max=90)},))
    many = 2 * Dim("_rows", min=2, max=9)
    assert axes_of(Halved(), (torch.ones(4, 3),), ({0: many},)) == [[True, False]]


class Padded(torch.nn.Module):
    """Zeros after the columns, in number a function of theirs."""

    def __init__(self, number: Callable[[Any], Any]) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.pad(x, (0, self.number(x.shape[1])))


def test_sizes_that_are_rounded(tmp_path: Path) -> None:
    import onnxruntime
    from kiln.frontend.torch.export_stage import convert
    from kiln.frontend.torch.trace_stage import export

    shapes = ({1: Dim("n", min=9, max=90)},)
    numbers: list[Callable[[Any], Any]] = [
        lambda n: math.ceil(n / 8) * 8 - n,
        lambda n: math.ceil((n + 2 * 3 - 5) / 4 + 1),
        lambda n: math.floor(99 / n) + math.floor(40 + n / -3),
        lambda n: n - math.floor(n / 2 / 3 - 1),
        lambda n: math.trunc(0.75 * n / 7) + math.trunc((5 - n) / 20) + 9,
        lambda n: abs(40 - n) + abs(n - 50) // 2,
    ]
    for number in numbers:
        path = tmp_path / "net.pt2"
        path.write_bytes(export("net", Padded(number), (torch.ones(1, 12),), shapes))
        session = onnxruntime.InferenceSession(convert(path), providers=["CPUExecutionProvider"])
        for n in range(9, 91):
            assert session.run(None, {"x": np.ones((1, n), np.float32)})[0].shape == (1, n + number(n))
    refused: list[Callable[[Any], Any]] = [
        lambda n: math.ceil(n * 0.07), lambda n: math.trunc(n / 49 * 49), lambda n: round(n / 3 + 0.25)
    ]  # fmt: skip
    for number in refused:
        with pytest.raises(KilnError, match=r"^net: (ceil|trunc|round) of a number .* such as -\(-n // 8\)"):
            export("net", Padded(number), (torch.ones(1, 12),), shapes)
