"""Options of PyTorch's operators that its exporter ignores, and numbers that are dynamic sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.test_torch import build

pytestmark = pytest.mark.heavy

NETS = '''
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

class Options(nn.Module):
    """Divisors of means, factors of resizes, negative numbers of rows, means of integers."""

    def forward(self, x, i):
        pools = F.avg_pool2d(x, 3, 2, 1, divisor_override=4), F.avg_pool3d(x, 2, divisor_override=-3)
        bags = F.embedding_bag(i[0].abs() % 4, x[0, 0, :4], i[0, :1] * 0, padding_idx=-1, mode="sum")
        resized = F.interpolate(x[None], scale_factor=1.3, mode="trilinear")
        kinds = [(f, m) for f in (1.1, 2.1) for m in ("nearest", "bilinear")]
        images = [F.interpolate(x, scale_factor=factor, mode=mode) for factor, mode in kinds]
        for mode in ("bilinear", "bicubic"):
            images.append(F.interpolate(x, scale_factor=1.3, mode=mode, align_corners=True))
        linear = torch.ops.aten.upsample_linear1d(x[0], [10], False, 1.3)
        place = torch.zeros_like(i)
        means = i.scatter_reduce(1, place, i, "mean"), i.index_reduce(1, place[0], i, "mean")
        return *pools, bags, resized, *images, linear, *means, F.celu(x, 2.0)

def options():
    torch.manual_seed(0)
    return Options(), (torch.randn(2, 3, 8, 8), torch.arange(12).view(3, 4) - 7)

class Types(nn.Module):
    """Types of sums of complex numbers, factors that are complex, and comparisons with numbers."""

    def forward(self, x):
        c, wide = torch.view_as_complex(x), torch.complex128
        sums = c.sum(dtype=wide), c.sum(1, dtype=wide), c.mean(0, dtype=wide), c.cumsum(1, dtype=wide)
        more = torch.add(c, c, alpha=2j), torch.sub(c, c, alpha=1 + 2j), x.sum(2, dtype=torch.complex64)
        norms = torch.linalg.vector_norm(c, dtype=wide), torch.linalg.vector_norm(c, 1, 1, dtype=wide)
        equal = x[..., 0].round().to(torch.complex64)
        return *(torch.view_as_real(one) for one in (*sums, *more)), *norms, equal == 1, equal != 0j

def types():
    torch.manual_seed(0)
    return Types(), (torch.randn(3, 4, 2),)

class Numbers(nn.Module):
    """Factors, shifts and slopes that are dynamic sizes, and means of parts of a dynamic axis."""

    def forward(self, x):
        n = x.shape[0]
        sums = torch.addcmul(x, x, x, value=n), torch.addmm(x, x, x[:1].expand(6, 6), beta=n, alpha=1 / n)
        rolled = x.roll(n // 2, 0), x.roll((n - 1, -n), (1, 0)), x.roll(n), x[:, 0].roll(1 - n)
        curves = F.softplus(x, beta=n), F.leaky_relu(x, 1 / n), F.celu(x, n), F.hardtanh(x * 5, -n, n)
        pools = [F.adaptive_avg_pool2d(x[None], size) for size in ((1, 3), (2, 4), (5, 1))]
        pools += [F.interpolate(x[None, None], scale_factor=1.5, mode="bilinear", align_corners=True)]
        pools += [F.adaptive_avg_pool1d(x.T, 4)]
        return *sums, *rolled, *curves, *pools, x.scatter(1, x[:, :1].long() * 0, n)

def numbers():
    torch.manual_seed(0)
    return Numbers(), (torch.randn(4, 6),), ({0: Dim("rows", min=2, max=9)},)

class Smoothed(nn.Module):
    def forward(self, x):
        return F.cross_entropy(x, torch.tensor([1, 0]), label_smoothing=0.25)

def smoothed():
    return Smoothed(), (torch.randn(2, 3),)

class Dropped(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

def dropped():
    return Dropped(), (torch.randn(2, 3, 4),)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("torch_options")
    (made / "nets.py").write_text(NETS, encoding="utf-8")
    return made


@pytest.mark.parametrize("name", ["options", "types", "numbers"])
def test_options_and_numbers_that_the_exporter_ignores(folder: Path, name: str) -> None:
    done = build(folder, f"model=nets:{name}", "test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("smoothed", "cross_entropy with label_smoothing=0.25; leave it out"),
        ("dropped", "with dropout_p=0.5 draws random numbers; pass dropout_p=0.0"),
    ],
)
def test_options_without_a_conversion_are_refused(folder: Path, name: str, says: str) -> None:
    done = build(folder, f"model=nets:{name}", "test")
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr
