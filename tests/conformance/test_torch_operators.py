"""Operators that Kiln converts in place of PyTorch's exporter: groups, histograms, complex numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.test_torch import build

pytestmark = pytest.mark.heavy

NETS = '''
import torch
from torch import nn
from torch.export import Dim

class Groups(nn.Module):
    """Rows and columns of groups, each with a matrix of its own, in bfloat16, and histograms."""

    def __init__(self):
        super().__init__()
        self.matrices = nn.Parameter(torch.randn(3, 16, 8))
        self.register_buffer("ends", torch.tensor([2, 2, 7], dtype=torch.int32))

    def forward(self, x, few):
        w, ends = self.matrices.bfloat16(), self.ends
        of_rows = torch._grouped_mm(x.bfloat16(), w, offs=ends)[:7].float()
        of_columns = torch._grouped_mm(w.transpose(1, 2), x.bfloat16().T, offs=ends)[:, :7].float()
        of_few = torch._grouped_mm(few.bfloat16(), w, offs=torch.tensor([1, 1, 2], dtype=torch.int32)).float()
        counts = [torch.histc(x, 7, -1, 1), torch.histc(x, 5), torch.histc(x[0, :1].repeat(3), 4)]
        return of_rows, of_columns, of_few, torch.cat(counts)

def groups():
    torch.manual_seed(0)
    rows = Dim("rows", min=8, max=12)
    return Groups(), (torch.randn(9, 16), torch.randn(2, 16)), ({0: rows}, None)

class Complex(nn.Module):
    """Arithmetic, functions, products and moves of complex numbers; a real network does not change."""

    def forward(self, x, weight):
        c, w = torch.view_as_complex(x), torch.view_as_complex(weight)  # [n, 4, 5], [5, 5]
        moved = torch.cat([c.unsqueeze(-1).expand(-1, -1, -1, 2)[..., 1], c.repeat(1, 2, 1)[:, 1:4]], 1)
        moved = moved.roll(1, -1).flip(1).transpose(1, 2).split([3, 2], 1)[0].mT
        drawn = torch.where(c.real > 0, c, 0j) + c.masked_fill(c.imag > 0, 2j) + torch.zeros_like(c)
        chosen = c[:, torch.tensor([2, 0])] * c.gather(1, torch.ones_like(x[:, :2, :, 0], dtype=torch.int64))
        written = torch.zeros_like(c)
        written[:, 1:3] = c[:, 2:] * 1j
        sums = 1.5 - c.mean(-1) / (c.abs().sum(-1) + 1) - c.real[:, :, 0] * w[0, :4] + (1 / (w[0, :4] + 3))
        curves = torch.sqrt(c) + torch.exp(c) + torch.log(c) * torch.sin(c) + c**3 + torch.tanh(c) + c.sgn()
        products = c @ w + torch.einsum("bij,jk->bik", c, w.conj()) + nn.functional.linear(c, w)
        results = moved.flatten(1), drawn, chosen, written.cumsum(1), sums, curves, products
        return tuple(torch.view_as_real(one) for one in results)

def complex_numbers():
    torch.manual_seed(0)
    rows = Dim("rows", max=3)
    return Complex(), (torch.randn(2, 4, 5, 2), torch.randn(5, 5, 2)), ({0: rows}, None)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("torch_operators")
    (made / "nets.py").write_text(NETS, encoding="utf-8")
    return made


def test_groups_of_rows_and_histograms(folder: Path) -> None:
    done = build(folder, "model=nets:groups", "test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_complex_numbers_inside(folder: Path) -> None:
    done = build(folder, "model=nets:complex_numbers", "test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
