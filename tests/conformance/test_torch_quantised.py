"""Quantised PyTorch programs, as PT2E quantisation writes them, are built and agree with PyTorch itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.torch_builds import passes

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
    """Levels of 16 and 32 bits, zero points of floats, limits that are tensors, and training's rounding."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randint(0, 256, (12, 8), dtype=torch.uint8))
        self.register_buffer("scales", torch.rand(12) * 0.01 + 0.001)
        self.register_buffer("zeros", torch.rand(12) * 30 + 100)

    def forward(self, x):
        made = []
        for given in ((0.001, 3, -32768, 32767, torch.int16), (0.0001, 30000, 0, 65535, torch.uint16)):
            made.append(LEVELS.dequantize_per_tensor(LEVELS.quantize_per_tensor(x, *given), *given))
        table = LEVELS.dequantize_per_channel(self.table, self.scales, self.zeros, 0, 0, 255, torch.uint8)
        channels = self.scales, self.zeros, 0, 0, 255, torch.uint8
        made += [nn.functional.linear(x, table), LEVELS.quantize_per_channel(table, *channels).int()]
        words = self.scales, self.zeros.int(), 0, -9999, 9999, torch.int16
        made.append(LEVELS.dequantize_per_channel(LEVELS.quantize_per_channel(table, *words), *words))
        made.append(LEVELS.quantize_per_tensor(x, 0.01, 5, -100000, 100000, torch.int32))
        limits = torch.tensor(0.05), torch.tensor(3), torch.tensor(-8), torch.tensor(7), torch.int8
        made.append(LEVELS.quantize_per_tensor.tensor2(x, *limits).int())
        number = torch.tensor([0.05]), torch.tensor([2], dtype=torch.int32)
        zeros = self.zeros[:8].int() - 110
        made += [
            torch.fake_quantize_per_tensor_affine(x, 0.05, 2, -8, 7),
            torch.fake_quantize_per_tensor_affine(x, *number, 0, 15),
            torch.fake_quantize_per_tensor_affine(x, 0.0005, 2, -2000, 2000),
            torch.fake_quantize_per_channel_affine(x, self.scales[:8], zeros, 1, -127, 127),
            torch.fake_quantize_per_channel_affine(x, self.scales[:8], self.zeros[:8] - 110, 1, -127, 127),
            LEVELS.fake_quant_per_channel(x, self.scales[:8], zeros, 1, -127, 127),
        ]
        return tuple(made)

def words():
    torch.manual_seed(0)
    return Words(), (torch.randn(3, 8),)

class Rows(nn.Module):
    """Rows with scales of their own by weights in blocks of 32."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-8, 8, (16, 64), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(16, 2) * 0.01 + 0.001)
        self.register_buffer("zeros", torch.randint(-3, 3, (16, 2)))

    def forward(self, x):
        weight = LEVELS.dequantize_per_channel_group(
            self.weight, self.scales, self.zeros, -8, 7, torch.int8, 32, torch.float32
        )
        made = []
        for choose in (LEVELS.choose_qparams_per_token, LEVELS.choose_qparams_per_token_asymmetric):
            given = *choose(x, torch.int8), *SIGNED
            rows = LEVELS.dequantize_per_token(LEVELS.quantize_per_token(x, *given), *given, torch.float32)
            made += [rows, nn.functional.linear(rows, weight)]
        blocks = self.scales[:3], self.zeros[:3], -8, 7, torch.int8, 32
        return *made, LEVELS.quantize_per_channel_group(x[0], *blocks).int()

def rows():
    torch.manual_seed(0)
    return Rows(), (torch.randn(2, 3, 64),)

class Table(nn.Module):
    """Rows of a table of bytes, whose zero points are floats, as PT2E quantises embeddings."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randint(0, 256, (500, 64), dtype=torch.uint8))
        self.register_buffer("scales", torch.rand(500) * 0.01 + 0.001)
        self.register_buffer("zeros", torch.rand(500) * 30 + 100)

    def forward(self, x):
        given = self.scales, self.zeros, 0, 0, 255, torch.uint8
        return nn.functional.embedding(x, LEVELS.dequantize_per_channel(self.table, *given)).sum(-2)

def table():
    torch.manual_seed(0)
    return Table(), (torch.randint(0, 500, (2, 5)),)

class Eighths(nn.Module):
    """A weight of 8-bit floats, which newer operator sets cast, and a buffer with the name of a node."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randn(12, 8).to(torch.float8_e4m3fn))
        self.register_buffer("zeros", torch.randn(12))

    def forward(self, x):
        bias = torch.minimum(self.zeros, torch.zeros([]))
        return nn.functional.linear(x, self.weight.to(torch.float32) * 0.5, bias)

def eighths():
    torch.manual_seed(0)
    return Eighths(), (torch.randn(3, 8),)
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


@pytest.mark.parametrize("name", ["words", "rows", "eighths"])
def test_levels_that_onnx_18_has_no_operator_for(folder: Path, name: str) -> None:
    passes(folder, name)


def test_tables_with_zero_points_of_floats_stay_bytes(folder: Path) -> None:
    passes(folder, "table")
    manifest = json.loads((folder / "build/host/table/manifest.json").read_text(encoding="utf-8"))
    assert 32000 < manifest["params"]["bytes"] < 40000
