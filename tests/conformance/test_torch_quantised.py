"""Quantised PyTorch programs, as PT2E quantisation writes them, are built and agree with PyTorch itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.torch_builds import build, passes

pytestmark = pytest.mark.heavy

NETS = '''
import torch
import torch.ao.quantization.fx._decomposed
from torch import nn
from torch.export import Dim

LEVELS = torch.ops.quantized_decomposed
BYTES, SIGNED = (0, 127, torch.uint8), (-128, 127, torch.int8)

class Levels(nn.Module):
    """Levels of half a byte's range, of channels, and with scales that are computed from the data."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (4, 6), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(4, dtype=torch.float64) * 0.01 + 0.001)
        self.register_buffer("zeros", torch.tensor([0, 3, -2, 0]))

    def forward(self, x):
        given = 0.05, 3, *BYTES
        x = LEVELS.dequantize_per_tensor(LEVELS.quantize_per_tensor(x * 4, *given), *given)
        weight = LEVELS.dequantize_per_channel(self.weight, self.scales, None, 0, -127, 127, torch.int8)
        y = nn.functional.linear(x, weight)
        channels = self.scales * 3, self.zeros, 1, -20, 90, torch.int8
        made = [x, LEVELS.dequantize_per_channel(LEVELS.quantize_per_channel(y, *channels), *channels)]
        for kind in (LEVELS.choose_qparams.tensor, LEVELS.choose_qparams_symmetric.tensor):
            scale, zero = kind(y, *SIGNED[:2], 1e-5, torch.int8)
            levels = LEVELS.quantize_per_tensor.tensor(y, scale, zero, *SIGNED)
            made += [levels.int(), LEVELS.dequantize_per_tensor.tensor(levels, scale, zero, *SIGNED)]
        return tuple(made)

def levels():
    torch.manual_seed(0)
    return Levels(), (torch.randn(3, 6),), ({0: Dim("rows", max=5)},)

class Tokens(nn.Module):
    """Embeddings halfway between two levels, which PyTorch rounds by a product and Kiln by a quotient."""

    def __init__(self):
        super().__init__()
        table = (torch.arange(-96, 96).reshape(12, 16) + 0.5) * 0.03
        self.table = nn.Embedding.from_pretrained(table)

    def forward(self, x):
        given = 0.03, 0, *SIGNED
        return LEVELS.dequantize_per_tensor(LEVELS.quantize_per_tensor(self.table(x), *given), *given).sum(2)

def tokens():
    return Tokens(), (torch.arange(12).reshape(1, 12),)

class Words(nn.Module):
    def forward(self, x):
        return LEVELS.quantize_per_tensor(x, 0.05, 0, -32768, 32767, torch.int16).int()

def words():
    return Words(), (torch.randn(3, 6),)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("torch_quantised")
    (made / "nets.py").write_text(NETS, encoding="utf-8")
    return made


def test_levels_of_every_kind(folder: Path) -> None:
    passes(folder, "levels")


def test_values_of_tokens_between_two_levels(folder: Path) -> None:
    """The limit allows another level there, as the reference with other embeddings and scales has it."""
    passes(folder, "tokens")


def test_levels_of_16_bits_are_refused_in_one_line(folder: Path) -> None:
    done = build(folder, "model=nets:words")
    assert done.returncode != 0
    assert "quantize of a type other than int8 and uint8; quantise to 8 bits" in done.stderr
    assert "Traceback" not in done.stderr
