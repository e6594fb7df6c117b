"""Options of PyTorch's operators that its exporter ignores, and numbers that are dynamic sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.torch_builds import build, passes

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
        pools += F.avg_pool2d(x, (3, 2), 3, 1, ceil_mode=True, divisor_override=4),
        pools += F.avg_pool3d(x, 3, (2, 3, 4), (1, 0, 1), ceil_mode=True, divisor_override=5),
        bags = F.embedding_bag(i[0].abs() % 4, x[0, 0, :4], i[0, :1] * 0, padding_idx=-1, mode="sum")
        resized = F.interpolate(x[None], scale_factor=1.3, mode="trilinear")
        kinds = [(f, m) for f in (1.1, 2.1) for m in ("nearest", "bilinear")]
        images = [F.interpolate(x, scale_factor=factor, mode=mode) for factor, mode in kinds]
        for mode in ("bilinear", "bicubic"):
            images.append(F.interpolate(x, scale_factor=1.3, mode=mode, align_corners=True))
        few = (x * 60).abs().to(torch.uint8)  # rounded after each axis
        for factor, mode in ((f, m) for f in (0.5, 2) for m in ("bilinear", "bicubic")):
            images.append(F.interpolate(few, scale_factor=factor, mode=mode))
        linear = torch.ops.aten.upsample_linear1d(x[0], [10], False, 1.3)
        place = torch.zeros_like(i)
        means = i.scatter_reduce(1, place, i, "mean"), i.index_reduce(1, place[0], i, "mean")
        one, old, half = x[0, :, 0, 0], (x[0, 0, 0, :3] * 1, x[1, 0, 0, :3] ** 2), x.half()
        norms = torch.native_batch_norm(x, one, None, *old, True, 0.3, 1e-3)
        norms += (F.batch_norm(half, old[0].half(), old[1].half(), training=True),)
        return *pools, bags, resized, *images, linear, *means, F.celu(x, 2.0), *norms

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
        pools += [F.adaptive_avg_pool1d(x.T, 4), torch.fft.fftshift(x), torch.fft.ifftshift(x[:, :5])]
        pools += [torch.fft.fftshift(torch.fft.fft(x)).abs()]
        counts = x.sum() / x.numel(), torch.arange(x.numel()) // 3
        return *sums, *rolled, *curves, *pools, x.scatter(1, x[:, :1].long() * 0, n), *counts

def numbers():
    torch.manual_seed(0)
    return Numbers(), (torch.randn(4, 6),), ({0: Dim("rows", min=2, max=9)},)

class Doubles(nn.Module):
    """Numbers of float64: what float32 had rounded would differ by more than 1e-9."""

    def forward(self, x):
        x = x.abs()  # golden vectors have numbers below 0, too, where gaps would be no gaps
        one = torch.ones_like(x)
        gaps = [F.leaky_relu(-x, 0.1) + x * 0.1, F.elu(-x, 0.3) - torch.expm1(-x) * 0.3]
        gaps += [F.celu(-x, 0.3) - torch.expm1(x / -0.3) * 0.3, F.selu(x) - x * 1.0507009873554805]
        gaps += [F.celu(-x) - torch.expm1(-x), torch.rsub(x, 0.1, alpha=0.3) + x * 0.3 - 0.1]
        gaps += [torch.rsub(x, one, alpha=0.3) + x * 0.3 - one]
        gaps += [F.hinge_embedding_loss(x, -one, 8.1, reduction="none") - (one * 8.1 - x)]
        gaps += [one * torch.linalg.vector_norm(x[0, 0], 6) - x[0, 0]]
        gaps += [F.hardtanh(x * 0, 0.1, 0.7) - one * 0.1, F.softplus(x * 0, 0.3) * 0.3 - 0.6931471805599453]
        gaps += [x.add(one, alpha=0.1) - (x + 0.1), x.sub(one, alpha=0.1) - (x - 0.1)]
        gaps += [x.masked_fill(x > -1, 0.1) - one * 0.1, torch.full_like(x, 0.1) - one * 0.1]
        gaps += [torch.full((3, 4), 0.1, dtype=x.dtype) - one * 0.1, x.new_full((3, 4), 0.1) - one * 0.1]
        gaps += [torch.linspace(0.1, 0.7, 4, dtype=x.dtype) - torch.arange(4) * 0.2 - one * 0.1]
        gaps += [torch.addcmul(x, x, x, value=0.1) - x - x * x * 0.1]
        gaps += [torch.addcdiv(x, one, one, value=0.1) - x - 0.1]
        gaps += [torch.addmm(x, x, torch.eye(4).to(x), beta=0.1, alpha=0.3) - x * 0.4]
        gaps += [torch.deg2rad(x) - x * 0.017453292519943295]
        gaps += [torch.log2(one * 8) - 3, torch.log10(one * 1e3) - 3, F.hardsigmoid(x) - (x + 3) / 6]
        gaps += [F.hardshrink(one * 0.1, 0.1), F.interpolate(x[None], 8)[0, :, ::2] - x]
        few = x[:1, None, None].expand(-1, 8, 4, -1)
        gaps += [F.interpolate(few, (8, 8))[0, 0, :3, ::2] - x[0]]
        return torch.stack(gaps) * 1e9 + 1, F.hardshrink(x, 0.1), torch.sinc(x * 0.5)

def doubles():
    torch.manual_seed(0)
    return Doubles(), (torch.rand(3, 4, dtype=torch.float64),)

class Same(nn.Module):
    """An input and a weight as results, also several times, and no operator."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(3.0))

    def forward(self, x):
        return x.contiguous(), self.weight, +x, x, self.weight

def same():
    return Same(), (torch.rand(3, 4),)

class Halves(nn.Module):
    """Types of results that the exporter computes in float32, and casts for other operators alone."""

    def forward(self, x):
        b = x.bfloat16()
        return x.sum(1), x.sum(1) * 2, x.prod(1), b.sum(0), b.softmax(1), x.logsumexp(1), x.cumsum(0), b.std()

def halves():
    torch.manual_seed(0)
    return Halves(), (torch.rand(3, 4).half(),)

class Numberless(nn.Module):
    """Tensors without axes along an axis, copies that are broadcast, and statistics that are empty."""

    def forward(self, x, n):
        zero = torch.tensor(0)
        made = [x.prod(0), x.prod(-1, keepdim=True), *x.topk(1, 0), x.var(0, correction=0), x.flip(0)]
        made += [*torch.var_mean(x, 0, correction=0), n.all(0), n.any(0), x.scatter(0, zero, x * 2)]
        made += [x.scatter(0, zero, 2.0), x.scatter_add(0, zero, x), x.index_fill(0, zero[None], 3.0)]
        made += [x.index_reduce(0, zero[None], x * 3, "mean")]
        made += [x.scatter_reduce(0, zero, x * 3, "mean"), *x.max(0), x.std(0, correction=0)]
        ends = x * 0 + 1, n * 3.0
        made += [torch.linspace(*ends, 1), torch.linspace(*ends, 5), torch.logspace(*ends, 1)]
        row = x.expand(2, 3, 3) + torch.arange(3.0)
        made += [torch.linalg.matrix_power(row, power) for power in (0, 3)]
        written, ones = torch.zeros(2, 3, dtype=torch.int32), torch.ones(3)
        written.copy_(row[0, 0])
        norm = torch.native_batch_norm(row, ones, ones, x * ones, ones, False, 0.1, 1e-5)
        return *made, written, norm[0]

def numberless():
    return Numberless(), (torch.tensor(2.5), torch.tensor(1))

class Losses(nn.Module):
    """Cross entropies of probabilities, with smoothing, weights and ignored rows."""

    def forward(self, x, place):
        made, f, shares, weight = [], F.cross_entropy, x.abs() / 4, torch.arange(1.0, 5)
        for reduction in ("none", "mean", "sum"):
            for options in ({}, {"weight": weight}, {"weight": weight, "label_smoothing": 0.25}):
                options = {**options, "reduction": reduction}
                made += [f(x, shares, **options), f(x[0], place[0], **options)]
                made += [f(x, place, ignore_index=2, **options)]
            made += [f(x, place, reduction=reduction, label_smoothing=0.1)]
        many = x.reshape(3, 4, 1) * torch.arange(5)
        made += [f(many, place[:, None].expand(3, 5), label_smoothing=0.1), f(many, many.softmax(1))]
        return tuple(made)

def losses():
    torch.manual_seed(0)
    return Losses(), (torch.randn(3, 4), torch.tensor([3, 2, 0]))

class Padded(nn.Module):
    """Elements after a transposed convolution that its stride would not reach, which its padding pays."""

    def forward(self, x, w):
        more = F.conv_transpose2d(x, w, stride=(2, 3), padding=(0, 2), output_padding=(1, 3), dilation=4)
        return F.conv_transpose2d(x, w, padding=1, output_padding=(1, 0), dilation=2), more

def padded():
    torch.manual_seed(0)
    return Padded(), (torch.randn(1, 2, 5, 5), torch.randn(2, 3, 3, 3))

class Whole(nn.Module):
    """Integers and truth values of operators that ONNX has of floats alone, and angles of all quarters."""

    def forward(self, n, b, x):
        made = [f(n) for f in (torch.ceil, torch.floor, torch.trunc, torch.round, torch.isnan, torch.isinf)]
        made += [n.isfinite(), n.isposinf(), n.nansum(1), n.nanmedian(), n.angle()]
        made += [b + b.mT, b * b.mT, b + b[0]]
        made += [torch.polygamma(1, n.abs() + 1), torch.digamma(n), torch.atan2(n, n.flip(1))]
        return *made, *torch.nanmedian(n, 1), torch.atan2(x[:, None], x).nan_to_num(5.0)

def whole():
    number, flags = torch.tensor([[-3, 0, 5], [2, -7, 5]]), torch.eye(3, dtype=torch.bool)
    ends = torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 2.5, -3e38, 1e-30])
    return Whole(), (number, flags, ends)

class TooMuch(nn.Module):
    def forward(self, x, w):
        return F.conv_transpose1d(x, w, output_padding=1, dilation=2)

def too_much():
    return TooMuch(), (torch.randn(1, 2, 5), torch.randn(2, 3, 3))

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


NAMES = [
    "options",
    "types",
    "numbers",
    "doubles",
    "halves",
    "numberless",
    "losses",
    "padded",
    "whole",
    "same",
]


@pytest.mark.parametrize("name", NAMES)
def test_options_and_numbers_that_the_exporter_ignores(folder: Path, name: str) -> None:
    passes(folder, name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("too_much", "output_padding 1 of an axis with stride 1 and 0 of pads after it, allowed: at most 0"),
        ("dropped", "with dropout_p=0.5 draws random numbers; pass dropout_p=0.0"),
    ],
)
def test_options_without_a_conversion_are_refused(folder: Path, name: str, says: str) -> None:
    done = build(folder, f"model=nets:{name}", "test")
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr
