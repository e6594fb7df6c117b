"""Operators that PyTorch's exporter lacks, which Kiln composes of others in PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kiln.errors import KilnError
from kiln.frontend.torch.complex_numbers import without_complex
from kiln.frontend.torch.replaced import Replacement, replaced

from conformance.torch_builds import passes

pytestmark = pytest.mark.heavy

NETS = '''
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

class Composed(nn.Module):
    """Functions of numbers, moves, and means of parts, for a dynamic number of rows."""

    def forward(self, x, n):
        gaps = torch.where(x > 0.5, torch.nan, x)
        made = [torch.fmax(gaps, x[:1]), torch.fmin(x, gaps.flip(0)), torch.fmax(n, n[:1])]
        ends = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-42, -3e38, 0.75, 2.0**-30])
        made += [*torch.frexp(x * 100), *torch.frexp(ends), *torch.frexp(ends[5:].double())]
        small = n.to(torch.int8)
        made += [torch.fmin(gaps, n), torch.gcd(small, small[:1]), torch.lcm(small, small[0])]
        for order in (1, 2, 3):
            made += [torch.polygamma(order, x.abs() * 3 + 0.2), torch.polygamma(order, -x.abs() - 0.3)]
        zeta = torch.special.zeta
        made += [zeta(x.abs() + 1.5, x.abs() + 0.5), zeta(torch.tensor([1.0, 0.5, 3.0]), 2.0)]
        few, places = torch.zeros(3, 4), torch.tensor([0, -1, 5, 5])
        made += [few.put(places[:3], x[0, :3]), few.put(places, x[0, :4], accumulate=True)]
        made += [torch.as_strided_scatter(few, x[0, :4].view(2, 2), (2, 2), (5, 2), 1)]
        volume = x[:, None, None].expand(-1, 2, 3, 7)[..., None] * torch.arange(1.0, 6)
        made += [F.adaptive_avg_pool3d(volume, size) for size in ((2, 3, 5), (1, None, 1), (3, 7, 2))]
        return tuple(made)

def composed():
    torch.manual_seed(0)
    rows = {0: Dim("rows", min=2, max=5)}
    return Composed(), (torch.randn(3, 7), torch.randint(-90, 90, (3, 7))), (rows, rows)

class Moves(nn.Module):
    """Places in volumes and in flat tensors, reductions into places, and names that operators have twice."""

    def forward(self, x, n, grid):
        made, volume = [], x[:, None, None, None] * torch.arange(1.0, 9).view(4, 2, 1)
        for mode, padding in (("bilinear", "zeros"), ("bilinear", "reflection"), ("nearest", "border")):
            for aligned in (False, True):
                made.append(F.grid_sample(volume, grid, mode, padding, aligned))
        places = n % 7
        made += [x.take(n[:, :2] % 14 - 7), x.scatter(1, places, x * 2, reduce="add")]
        made += [x.scatter(1, places[:, :1], 3.0, reduce="multiply"), x.norm(keepdim=True)]
        ordered = x[0].sort().values
        made += [torch.searchsorted(ordered, 0.5), torch.searchsorted(ordered, x[0, 0], right=True)]
        counts = torch.tensor([2, 0, 3, 1])
        made += [x[:, :4].repeat_interleave(counts, 1, output_size=6), torch.linalg.norm(x[0, 0], dim=0)]
        made += [torch.divide(x, n * n + 1), torch.multiply(x, n), torch.subtract(n, x), n.true_divide(7)]
        made += [torch.greater(x, n), torch.less_equal(n, x), torch.divide(n, 3, rounding_mode="floor")]
        gaps = torch.where(x > 0.5, torch.nan, x)
        made += [gaps.nanmean(1), gaps != gaps, ~(gaps < 0), gaps * 0, torch.arctan2(x, n)]
        return *made, torch.nanmedian(x[0, 0], 0).values

def moves():
    torch.manual_seed(0)
    rows = {0: Dim("rows", min=2, max=5)}
    grid = torch.rand(3, 2, 3, 2, 3) * 3 - 1.5
    return Moves(), (torch.randn(3, 7), torch.randint(0, 90, (3, 7)), grid), (rows, rows, rows)

class Complex(nn.Module):
    """Products, variances, powers, and the functions of circle and hyperbola with their inverses."""

    def forward(self, x, y):
        c, d = torch.view_as_complex(x), torch.view_as_complex(y)
        made = [torch.prod(c, 1), torch.prod(c, 0, True), c.cumprod(1), c.cumprod(0), *torch.var_mean(c, 1)]
        made += [c.std(), c.var(1, correction=0), c**d, c ** d[0, 0], 2.0**c, c**2.5, c**-2, c**0]
        made += [(c * 0) ** 1.5, (c * 0) ** d.abs(), c.tan(), c.sinh(), c.cosh(), c.asin(), c.acos()]
        made += [c.atan(), c.asinh(), c.acosh(), c.atanh(), c.log2(), c.log1p(), torch.exp2(c)]
        made += [c.expm1(), c.isnan()]
        return tuple(torch.view_as_real(one) if one.is_complex() else one for one in made)

def complex_functions():
    torch.manual_seed(0)
    rows = {0: Dim("rows", min=2, max=5)}
    return Complex(), (torch.randn(3, 4, 2), torch.randn(3, 4, 2)), (rows, rows)

class Factors(nn.Module):
    """LU factors, of wide and of tall matrices, and what is solved with them."""

    def forward(self, a, b):
        L = torch.linalg
        made = [*L.lu(a), *L.lu(a[:, :2]), *L.lu(a[..., :2])]
        factors, pivots = L.lu_factor(a)
        made += [factors, pivots, L.lu_solve(factors, pivots, b)]
        made += [L.lu_solve(factors, pivots, b, adjoint=True)]
        made += [L.lu_solve(factors, pivots, b.mT, left=False), *torch.lu_unpack(factors[0], pivots[0])]
        low = a.tril() + 3 * torch.eye(3)
        made += [torch.cholesky_inverse(low), torch.cholesky_inverse(low.mT, upper=True)]
        made += torch.triangular_solve(b, low, upper=False, transpose=True)
        return tuple(made)

def factors():
    torch.manual_seed(0)
    rows = {0: Dim("rows", max=5)}
    return Factors(), (torch.randn(2, 3, 3), torch.randn(2, 3, 2)), (rows, rows)

class Attention(nn.Module):
    """Attention whose operands differ in their number of axes, and in axes that are broadcast."""

    def forward(self, q, k, q5, k5, mask):
        f = F.scaled_dot_product_attention
        made = [f(q, k, k), f(q, k, k, is_causal=True), f(q5, k5, k5 * 2), f(q5, k, k, is_causal=True)]
        return *made, f(q5, k5, k[0], mask > 0)

def attention():
    torch.manual_seed(0)
    shapes = (4, 3, 8), (2, 4, 6, 8), (3, 1, 4, 3, 8), (2, 1, 6, 8), (3, 6)
    heads = {0: Dim("heads", min=2, max=5)}
    return Attention(), tuple(torch.randn(*shape) for shape in shapes), (None, None, heads, None, None)

class Extremes(nn.Module):
    """Functions of float64, which keep its digits, of other types, of huge, tiny and infinite numbers."""

    def __init__(self):
        super().__init__()
        self.points = torch.cat((torch.linspace(-5.07, 12, 40), torch.tensor([-1e-5, 1e5]))).double()
        self.wanted = torch.stack((torch.lgamma(self.points), torch.digamma(self.points)))

    def forward(self, x, n):
        points, special = self.points + x[0, 0].double(), torch.special
        gaps = torch.stack((torch.lgamma(points), torch.digamma(points))) - self.wanted
        made = [gaps / (1 + self.wanted.abs()) * 1e9 + 1, torch.digamma(x[0] - 1e-5) * 1e-5]
        made += [special.erfcx(n), torch.polygamma(1, (x + 1.5).half()), torch.lgamma(n + 1)]
        made += [torch.sinc(n > 2)]
        made += [torch.einsum("ij->i", n), torch.einsum("ij,kj->ik", n.byte(), n.byte())]
        c, nan = torch.view_as_complex(x.view(-1, 4, 2) + 0.5), x[0] / x[0]
        alone = c[0, 0] * 1j
        moved = alone.cumsum(0), alone.index_select(0, torch.tensor([0])), torch.conj_physical(c)
        made += [torch.view_as_real(one) for one in moved]
        for scale in (1e30, 1e-30):
            one = c * scale
            parts = [one.abs() / scale, one.sgn(), scale / one, one / one[:1], one.log()]
            parts += [one.sqrt() / scale**0.5]
            made += [torch.view_as_real(part) if part.is_complex() else part for part in parts]
        return *made, torch.hypot(1 / x[0], nan), torch.hypot(x[1] * 0, nan).isnan()

def extremes():
    x = torch.arange(16.0).view(2, 8) / 4
    x[0] = 0
    return Extremes(), (x, torch.arange(8, dtype=torch.int32).view(2, 4))
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("torch_composed")
    (made / "nets.py").write_text(NETS, encoding="utf-8")
    return made


NAMES = ["composed", "moves", "complex_functions", "factors", "attention", "extremes"]


@pytest.mark.parametrize("name", NAMES)
def test_operators_that_kiln_composes(folder: Path, name: str) -> None:
    passes(folder, name)


def test_a_program_that_cannot_be_traced_again_is_refused() -> None:
    """What the exporter would convert wrongly is not left to it."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch onnxscript")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x.ceil() + 1

    def fails(*_: Any) -> Any:
        raise RuntimeError("no such sizes")

    program = torch.export.export(Net(), (torch.ones(2),))
    always = Replacement(lambda *_: True, lambda aten: {aten.ceil.default: fails})
    with pytest.raises(KilnError, match=r"without aten\.ceil\.default.*RuntimeError: no such sizes"):
        replaced(program, always)


def test_complex_numbers_of_16_bits_are_refused_by_name() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch onnxscript")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.view_as_complex(x).real

    program = torch.export.export(Net(), (torch.ones(3, 2).half(),))
    with pytest.raises(KilnError, match=r"16-bit floats \(torch\.complex32\) at view_as_complex"):
        without_complex(program)
