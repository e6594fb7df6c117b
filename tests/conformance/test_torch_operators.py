"""Operators that Kiln converts in place of PyTorch's exporter."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.torch_builds import build, passes

pytestmark = pytest.mark.heavy

NETS = '''
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
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
    rows = Dim("rows", min=9, max=12)  # PyTorch 2.15 exports no range with multiples of 8
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
        results = [moved.flatten(1), drawn, chosen, written.cumsum(1), sums, curves, products]
        results += [torch.fft.fft(c, n=7), torch.fft.ifft2(c, s=(6, 3), norm="ortho")]  # longer: padded
        return *(torch.view_as_real(one) for one in results), torch.fft.irfft(c, n=12)

def complex_numbers():
    torch.manual_seed(0)
    rows = Dim("rows", max=3)
    return Complex(), (torch.randn(2, 4, 5, 2), torch.randn(5, 5, 2)), ({0: rows}, None)

class Scans(nn.Module):
    """Running extremes and products, and values by rank, along axes of fixed and of open size."""

    def forward(self, x):
        few, gaps = (x * 2).round(), torch.where(x > 0.5, float("nan"), x)
        made = []
        for axis in (0, 1):
            made += [*torch.cummax(few, axis), *torch.cummin(x.unsqueeze(2), axis)]
            made += [torch.cumprod(x, axis), torch.cumprod(few.int(), axis), torch.logcumsumexp(x * 3, axis)]
            made += [*torch.kthvalue(x, 2, axis), *torch.median(x, axis, keepdim=True)]
            made += [*torch.mode(few, axis), torch.nanmedian(gaps, axis).values]
            made += torch.sort(few, dim=axis, stable=True, descending=True)
        return *made, torch.median(x), torch.logcumsumexp(torch.where(x > 0, x, -torch.inf), 1)

def scans():
    torch.manual_seed(0)
    return Scans(), (torch.randn(3, 7),), ({0: Dim("rows", min=2, max=9)},)

class Special(nn.Module):
    def forward(self, x):
        ends = torch.tensor([0.0, -0.0, 1.0, 2.0, -1.5, 0.5, 30.0, 1e5, 1e-5, -7.3])
        z = torch.cat((ends, (x * 4).flatten()))
        signs = torch.copysign(x, x.flip(1)), torch.copysign(z, z.flip(0))
        sizes = torch.hypot(x, x.flip(1)), torch.hypot(x * 1e30, x * 1e30)
        inverse = torch.erfinv(torch.cat((x.tanh().flatten(), torch.tensor([0.0, 0.9999, -0.99999]))))
        slopes = torch.digamma(z.abs() + 0.25), torch.digamma(-ends.abs() - 0.4)
        more = torch.special.erfcx(x * 3), torch.special.i0(x * 4), nn.functional.rrelu(x)
        return torch.lgamma(z), *slopes, inverse, *sizes, *signs, *more

def special():
    torch.manual_seed(0)
    return Special(), (torch.randn(3, 7),)

class Sizes(nn.Module):
    """Numbers that are dynamic sizes: remainders, powers, quotients, shifts and bitwise operations."""

    def forward(self, x, i):
        n = x.shape[0]
        places = torch.stack((i // n, i % n, n % (i.abs() + 1), torch.remainder(n, i.abs() + 2)), -1)
        bits = torch.stack((i & n, i | n, i ^ n, i << (n // 3), i >> (n // 4)), -1)
        below = x * (-n // 2), x * ((5 - n) // 3)  # rounded down, also below 0
        below += torch.cat((x, x + 1)).split([n, x.shape[0]])[1], x[:, None].squeeze((0, 1)) + 1
        return places, bits, x % n, x.abs() ** n, n ** x, torch.fmod(x, n), *below

def sizes():
    torch.manual_seed(0)
    rows = {0: Dim("rows", min=2, max=9)}
    return Sizes(), (torch.randn(5), torch.arange(5) - 2), (rows, rows)

class Bits(nn.Module):
    """Shifts, also by all bits, bitwise operations of types that differ, and conditions on all elements."""

    def forward(self, x, n):
        few, small, narrow, odd = x.to(torch.uint8), x.to(torch.int8), x.int(), (x & 1) == 1
        made = [x << n, x >> n, few << n.to(torch.uint8), few >> 1, small >> 2, small << narrow, -90 >> n]
        made += [narrow >> n.int(), 3 << n, x << 70, x >> 70, narrow << -1, torch.bitwise_right_shift(x, 3)]
        made += [few & narrow, odd & 1, odd | odd[:1], 6 ^ few, odd ^ x, few | 3, ~small]
        return *made, torch._is_all_true(x > -90), torch._is_any_true(odd)

def bits():
    torch.manual_seed(0)
    rows = {0: Dim("rows", max=4)}
    return Bits(), (torch.randint(-90, 90, (2, 7)), torch.randint(0, 9, (2, 7))), (rows, rows)

class Branches(nn.Module):
    """Branches and bodies of control flow with operators that the exporter lacks, or whose types differ."""

    def forward(self, x, n):
        def some(x, n):
            torch._check_tensor_all(n >= 0)
            turned = torch.view_as_complex(x.reshape(-1, 3, 2)) * 1j
            turned = torch.view_as_real(turned) * x.amax()
            return 1.0 - n, 7 // (n + 1) + (n << 2), turned, torch.cummax(x, 1)[0]

        def other(x, n):
            moved = x[:, :3].clone().view(-1, 3, 1).repeat(1, 1, 2)
            moved.diagonal(dim1=1, dim2=2).add_(1.0)
            return n * 0.5, n >> n, moved, torch.cumprod(x, 1)

        made = torch.cond(x.sum() > 0, some, other, (x, n)) + torch.cond(x.sum() < 0, some, other, (x, n))
        wanted = x.abs() + 1

        def far(step, y):
            return (step < 20) & ((y * y - wanted).abs().amax() > 1e-3)

        def nearer(step, y):
            return step + 1, (y + wanted / y) / 2

        root = while_loop(far, nearer, (torch.tensor(0), torch.ones_like(x)))[1]
        return *made, root, torch.amax(n > 3), torch.amin(n > 3, 1), x.amin(), n.amax((0, 1), True)

def branches():
    torch.manual_seed(0)
    rows = {0: Dim("rows", max=4)}
    return Branches(), (torch.randn(2, 6), torch.randint(0, 5, (2, 6))), (rows, rows)

class Kernels(nn.Module):
    """Convolutions with kernels of its own for each image of a batch, or of the first one, in 1 to 3 axes."""

    def __init__(self):
        super().__init__()
        self.kernels, self.bias = nn.Linear(4, 5 * 2 * 3 * 2), nn.Parameter(torch.randn(5))

    def forward(self, x, style):
        f, (n, c, h, w) = nn.functional, x.shape
        many = self.kernels(style).view(n * 5, c, 3, 2)
        plane, options = x.reshape(1, n * c, h, w), {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}
        two = f.conv2d(plane, many, self.bias.repeat(n), **options, groups=n).view(n, 5, h // 2, w + 2)
        one = f.conv1d(x[:, :, 0].reshape(1, n * c, w), many[..., 0], stride=3, groups=n)
        three = f.conv3d(plane[:, :, None], many[:, :, None], padding=(0, 1, 0), groups=n)
        alone = f.conv2d(plane[0], many, groups=n).view(n, 5, h - 2, -1)
        solid = f.conv3d(x[:, :, None], many[:5, :, None])  # one group, and no bias
        return two, one.view(n, 5, -1), three.view(n, 5, h, -1), alone, solid

def kernels():
    torch.manual_seed(0)
    rows = Dim("rows", max=4)
    return Kernels(), (torch.randn(3, 2, 6, 9), torch.randn(3, 4)), ({0: rows}, {0: rows})

class Kinds(nn.Module):
    """Operands whose types differ from that of the result, numbers first, and conditions on values."""

    def forward(self, x, m):
        torch._check_tensor_all(m >= 0)
        few, half = m.to(torch.uint8), x.half()
        made = [1.0 - m, 1.5 - few, torch.rsub(m, 1.5, alpha=2), 1 - m, m.int() - m, m - 1.5]
        made += [7 // (m + 1), 7.5 // (m + 1), -7 // (m + 1), (m - 2) // 2, (m - 2.5) // 0.7, (m - 2) // 1.5]
        made += [torch.softmax(m, -1, dtype=torch.float32), torch.log_softmax(half, -1, dtype=torch.float32)]
        made += [torch.pow(m, x.abs()), torch.stack((m.int(), m)), torch.copysign(x, -1.0)]
        short, odd = m.short(), m > 2
        made += [odd[:, :0].any(1), odd[:, :0].any(), odd.any(0), torch.any(m, (0, 1))]
        made += [odd.square(), odd**3, short**2, m**1.5]
        made += [x.clamp(0, 0.5), m.clamp(0, 2.5), x.clip(max=m.shape[0] - 1)]
        made += [x.clamp(-0.5, m.shape[0])]
        made += [short.amax(1), short @ short.mT, few.cumsum(1, dtype=few.dtype), odd.amin(0), short * short]
        made += [torch.div(m * 10**10 - 7, m - 9, rounding_mode=mode) for mode in ("floor", "trunc")]
        made += [m / 10.0 // 0.1, x * 1e6 % (x + 0.3), torch.fmod(x * 1e6, x - 0.3), x * 1e9 % m.shape[0]]
        for kind in (torch.float16, torch.bfloat16):
            steps, parts = (m * 9.7).to(kind), x.to(kind)
            made += [torch.div(steps, by, rounding_mode="trunc") for by in (parts, 0.7, parts[0, 0])]
            made += [steps // by for by in (parts, 0.1, parts[0, 0])]
        normal = torch.distributions.Normal(x, x.abs() + 0.1)
        chosen = torch.distributions.Categorical(logits=x)
        return *made, normal.log_prob(x * 0.5), chosen.entropy(), chosen.probs

def kinds():
    torch.manual_seed(0)
    rows = {0: Dim("rows", max=4)}
    return Kinds(), (torch.randn(2, 5), torch.randint(0, 5, (2, 5))), (rows, rows)

class Diagonals(nn.Module):
    def forward(self, x):
        jitter, moved, filled = x.clone(), x.clone(), x[0].clone()
        jitter.diagonal(dim1=-2, dim2=-1).add_(1.0)
        moved.diagonal(-1, 2, 1).copy_(x[..., 0, :3])
        return jitter, moved, filled.fill_diagonal_(5.0), torch.diagonal_scatter(x[0], x[1, 0, :3], 1)

def diagonals():
    torch.manual_seed(0)
    return Diagonals(), (torch.randn(2, 4, 4),), ({0: Dim("rows", min=2, max=4)},)

class Choices(nn.Module):
    """Pools of parts of unequal size, places, pairs, reductions by index, and resizes by factors."""

    def forward(self, x):
        f, where = nn.functional, torch.tensor([3, 0, 3, 2, 2])
        made = [*f.adaptive_max_pool2d(x[None], (2, 3), return_indices=True), f.adaptive_max_pool1d(x[0], 4)]
        made += f.adaptive_max_pool3d(x[None], (1, 2, 7), return_indices=True)
        made += [torch.nonzero_static(x > 0.5, size=20, fill_value=7)]
        made += [torch.pdist(x[0]), torch.pdist(x[1], 1)]
        made += [x[0, 0, :2] + torch.arange(0.1, -7.9, -4.0)]  # of float32, ONNX would count 3
        for axis in (None, 1):
            runs = torch.unique_consecutive(x.sign()[:, :, :1], True, True, dim=axis)
            made += [runs[0].sum(), runs[1], runs[2].cumsum(0).amax()]
        for mode in ("amax", "amin", "prod", "mean"):
            own = torch.full((4, 7), 0.3)
            made.append(own.index_reduce(0, where, x[0], mode, include_self=mode != "mean"))
        image = x[None]
        made.append(f.interpolate(image, scale_factor=0.5, mode="bilinear", antialias=True))
        return *made, f.interpolate(image, scale_factor=(0.7, 1.3), mode="bicubic", antialias=True)

def choices():
    torch.manual_seed(0)
    return Choices(), (torch.randn(2, 5, 7),)

class Matrices(nn.Module):
    """Factors, inverses and solutions; the first matrix needs another pivot than its corner."""

    def forward(self, a, b):
        a = a * 0.3 + torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 3.0], [4.0, 0.0, 0.0]])
        square, L = a @ a.mT + torch.eye(3), torch.linalg
        low, up = a.tril() + 3 * torch.eye(3), a.triu() + 3 * torch.eye(3)
        made = [L.inv(a), torch.inverse(a[0]), L.solve(a, b), L.solve(a, b.mT, left=False)]
        made += [L.cholesky(square), L.cholesky(square, upper=True), *L.slogdet(square)]
        made.append(torch.cholesky_solve(b, L.cholesky(square)))
        made += [*L.qr(a), *L.qr(a[..., :2], mode="complete"), *L.qr(a[:, :2]), L.solve(a[0], b[0, :, 0])]
        made.append(L.solve_triangular(low, b, upper=False))
        made.append(L.solve_triangular(up, b.mT, upper=True, left=False))
        made.append(L.tensorinv(a[0].reshape(3, 3, 1), ind=1))
        made += [L.matrix_exp(a), L.matrix_exp(a[0] * 0), L.matrix_exp(-a * 3)]
        return *made, L.solve_triangular(up, b, upper=True, unitriangular=True)

def matrices():
    torch.manual_seed(0)
    rows = {0: Dim("rows", max=5)}
    return Matrices(), (torch.randn(2, 3, 3), torch.randn(2, 3, 2)), (rows, rows)

class Large(nn.Module):
    def forward(self, x):
        return torch.linalg.inv(x)

def large_inverse():
    return Large(), (torch.randn(2, 40, 40),)

class Layers(nn.Module):
    """Recurrent layers of every kind, and one with projections, for any number of steps."""

    def __init__(self):
        super().__init__()
        options = {"num_layers": 2, "bidirectional": True, "batch_first": True}
        self.lstm, self.gru, self.rnn = (kind(4, 3, **options) for kind in (nn.LSTM, nn.GRU, nn.RNN))
        self.relu = nn.RNN(4, 3, nonlinearity="relu", bias=False)
        self.projected = nn.LSTM(4, 5, 2, proj_size=2)

    def forward(self, x, few):
        many = [layer(x) for layer in (self.lstm, self.gru, self.rnn)]
        other, last = self.projected(few)
        relu = self.relu(x.transpose(0, 1))[0]
        after = many[0][0] * torch.arange(x.shape[1])[:, None] + x[..., :1]
        return [each[0] for each in many], many[0][1], many[1][1], relu, other, last, after

def layers():
    torch.manual_seed(0)
    batch, steps = Dim("batch", max=3), Dim("steps", max=12)
    return Layers(), (torch.randn(2, 5, 4), torch.randn(4, 2, 4)), ({0: batch, 1: steps}, {1: batch})

class Attention(nn.Module):
    """Attention of three, two and five axes, with masks, one of which allows a row nothing."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", (torch.arange(25).view(5, 5) % 7 > 1) & (torch.arange(5)[:, None] != 2))

    def forward(self, q, k):
        f = nn.functional.scaled_dot_product_attention
        many = q.unflatten(-1, (2, 4)).transpose(1, 2).unsqueeze(1).expand(-1, 3, -1, -1, -1)
        masks = self.mask[None, None, None] & (k[:, None, None, :, :1] > -1).mT
        made = [f(q, k, k), f(q, k, q, is_causal=True), f(q, k, k, self.mask)]
        made += [f(q[0], k[0], k[0], self.mask.float()), f(many, many, many * 2), f(many, many, many, masks)]
        return *made, f(many[:, 0], many[:, 1], many[:, 0], masks[:, 0])

def attention():
    torch.manual_seed(0)
    rows = {0: Dim("rows", max=4)}
    return Attention(), (torch.randn(2, 5, 8), torch.randn(2, 5, 8)), (rows, rows)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("torch_operators")
    (made / "nets.py").write_text(NETS, encoding="utf-8")
    return made


def test_groups_of_rows_and_histograms(folder: Path) -> None:
    passes(folder, "groups")


def test_complex_numbers_inside(folder: Path) -> None:
    passes(folder, "complex_numbers")


NAMES = ["scans", "special", "matrices", "layers", "attention", "kinds", "sizes", "bits", "diagonals"]
NAMES += ["choices", "branches", "kernels"]


@pytest.mark.parametrize("name", NAMES)
def test_operators_that_the_exporter_lacks(folder: Path, name: str) -> None:
    passes(folder, name)


def test_a_matrix_that_is_too_large_is_refused_in_one_line(folder: Path) -> None:
    done = build(folder, "model=nets:large_inverse", "test")
    assert done.returncode != 0
    assert "inv of matrices of 40 rows or columns, allowed: at most 32" in done.stderr
    assert "Traceback" not in done.stderr
