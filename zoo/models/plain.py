"""Networks in plain PyTorch that are neither images nor language: control, tables, flows, physics."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from zoo.catalogue import Made, entry

ROWS: dict[str, Any] = {"axes": {"x": {0: "batch"}}, "ranges": {"batch": (1, 16)}}


def mlp(*sizes: int, act: Any = nn.Tanh) -> Any:
    """Linear layers of these widths, with activations between."""
    layers: list[Any] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


class SquashedPolicy(nn.Module):
    """The actor of soft actor-critic: an action of a squashed Gaussian for given noise, and its chance."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.deviation = (
            mlp(17, 64, 64, act=nn.ReLU),
            nn.Linear(64, 6),
            nn.Linear(64, 6),
        )

    def forward(self, x: Any, noise: Any) -> Any:
        h = torch.relu(self.body(x))
        mean, logarithm = self.mean(h), self.deviation(h).clamp(-5, 2)
        raw = mean + noise * logarithm.exp()
        action = raw.tanh()
        chance = -0.5 * (noise**2 + math.log(2 * math.pi)) - logarithm - torch.log1p(-(action**2) + 1e-6)
        return action, chance.sum(-1)


@entry("control", {"x": {0: "batch"}, "noise": {0: "batch"}}, {"batch": (1, 16)})
def squashed_policy() -> Made:
    return SquashedPolicy(), {"x": torch.randn(3, 17), "noise": torch.randn(3, 6)}


class RecurrentPolicy(nn.Module):
    """A convolutional and recurrent policy: frames, a GRU cell, masked logits, the best allowed action."""

    def __init__(self) -> None:
        super().__init__()
        self.eyes = nn.Sequential(
            nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten()
        )
        self.cell, self.advantage, self.value = nn.GRUCell(32 * 36, 64), nn.Linear(64, 7), nn.Linear(64, 1)

    def forward(self, frames: Any, state: Any, allowed: Any) -> Any:
        state = self.cell(self.eyes(frames / 255.0), state)
        advantage = self.advantage(state)
        q = self.value(state) + advantage - advantage.mean(1, keepdim=True)
        q = q.masked_fill(~allowed, float("-inf"))
        return q.argmax(1), q.softmax(1), state


@entry("control", {k: {0: "batch"} for k in ("frames", "state", "allowed")}, {"batch": (1, 4)})
def recurrent_policy() -> Made:
    return RecurrentPolicy(), {
        "frames": torch.rand(2, 4, 64, 64) * 255,
        "state": torch.randn(2, 64),
        "allowed": torch.tensor([[True, False, True, True, True, False, True]] * 2),
    }


class Coupling(nn.Module):
    """Real NVP: affine couplings and an invertible product, with the logarithm of the determinant."""

    def __init__(self, width: int = 8, depth: int = 4) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp(width // 2, 32, width) for _ in range(depth))
        self.mix = nn.ParameterList(torch.linalg.qr(torch.randn(width, width))[0] for _ in range(depth))

    def forward(self, x: Any) -> Any:
        logdet = torch.zeros(x.shape[0])
        for net, mix in zip(self.nets, self.mix, strict=True):
            x = x @ mix
            a, b = x.chunk(2, -1)
            s, t = net(a).chunk(2, -1)
            s = torch.tanh(s)
            x = torch.cat((b * s.exp() + t, a), -1)
            logdet = logdet + s.sum(-1)
        return x, -0.5 * (x**2).sum(-1) - 4 * math.log(2 * math.pi) + logdet


@entry("flow", **ROWS)
def real_nvp() -> Made:
    return Coupling(), {"x": torch.randn(5, 8)}


class Spline(nn.Module):
    """A neural spline flow: rational quadratic splines, whose bins are found by searchsorted and gather."""

    def __init__(self, width: int = 4, bins: int = 6) -> None:
        super().__init__()
        self.bins, self.net = bins, mlp(width, 32, width * (3 * bins + 1))

    def forward(self, x: Any) -> Any:
        a, b = x, x.flip(-1).clamp(-2.9, 2.9)
        raw = self.net(a).view(*x.shape, -1)
        w, h, d = raw.split((self.bins, self.bins, self.bins + 1), -1)
        w, h, d = w.softmax(-1) * 6, h.softmax(-1) * 6, functional.softplus(d) + 1e-3
        left = functional.pad(w.cumsum(-1), (1, 0)) - 3
        low = functional.pad(h.cumsum(-1), (1, 0)) - 3
        k = (b[..., None] >= left[..., 1:-1]).sum(-1, keepdim=True)

        def pick(values: Any) -> Any:
            return values.gather(-1, k)[..., 0]

        wk, hk, d0, d1 = pick(w), pick(h), pick(d), pick(d[..., 1:])
        s, t = hk / wk, (b - pick(left)) / wk
        q = t * (1 - t)
        bottom = s + (d1 + d0 - 2 * s) * q
        y = pick(low) + hk * (s * t**2 + d0 * q) / bottom
        slope = s**2 * (d1 * t**2 + 2 * s * q + d0 * (1 - t) ** 2) / bottom**2
        return y, slope.log().sum(-1)


@entry("flow", **ROWS)
def spline_flow() -> Made:
    return Spline(), {"x": torch.randn(5, 4)}


class KanLayer(nn.Module):
    """A Kolmogorov-Arnold layer: B-splines of third order by the recursion of Cox and de Boor."""

    def __init__(self, a: int, b: int, grid: int = 5, order: int = 3) -> None:
        super().__init__()
        self.order = order
        knots = torch.arange(-order, grid + order + 1) * (2 / grid) - 1
        self.register_buffer("knots", knots)
        self.base, self.spline = nn.Linear(a, b), nn.Parameter(torch.randn(b, a, grid + order) * 0.3)

    def forward(self, x: Any) -> Any:
        t, u = self.knots, x[..., None]
        basis = ((u >= t[:-1]) & (u < t[1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            basis = (u - t[: -k - 1]) / (t[k:-1] - t[: -k - 1]) * basis[..., :-1] + (t[k + 1 :] - u) / (
                t[k + 1 :] - t[1:-k]
            ) * basis[..., 1:]
        return self.base(functional.silu(x)) + torch.einsum("nik,oik->no", basis, self.spline)


@entry("table", **ROWS)
def kan() -> Made:
    return nn.Sequential(KanLayer(6, 12), KanLayer(12, 3)), {"x": torch.randn(5, 6).clamp(-1, 1)}


class Recommender(nn.Module):
    """DLRM: bags of categories with offsets as masks, pairwise products of features."""

    def __init__(self, fields: int = 6, width: int = 16) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50 + i, width, mode="sum") for i in range(fields))
        self.low, self.top = mlp(13, 64, width, act=nn.ReLU), mlp(width + 21, 64, 1, act=nn.ReLU)
        self.register_buffer("pairs", torch.tril_indices(fields + 1, fields + 1, -1))

    def forward(self, x: Any, ids: Any) -> Any:
        dense = self.low(x)
        parts = torch.stack([dense] + [bag(ids[:, i]) for i, bag in enumerate(self.bags)], 1)
        products = torch.bmm(parts, parts.transpose(1, 2))
        flat = products[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat((dense, flat), 1)))[:, 0]


@entry("table", {"x": {0: "batch"}, "ids": {0: "batch"}}, {"batch": (1, 16)})
def dlrm() -> Made:
    return Recommender(), {"x": torch.rand(3, 13), "ids": torch.randint(0, 50, (3, 6, 4))}


class Kalman(nn.Module):
    """Steps of a Kalman filter: products of small matrices and the inverse of one."""

    def __init__(self) -> None:
        super().__init__()
        self.move = nn.Parameter(torch.eye(4) + torch.diag(torch.full((2,), 0.1), 2))
        self.see = nn.Parameter(torch.eye(2, 4))

    def forward(self, mean: Any, cov: Any, seen: Any) -> Any:
        for step in range(3):
            mean, cov = self.move @ mean, self.move @ cov @ self.move.T + 0.01 * torch.eye(4)
            s = self.see @ cov @ self.see.T + 0.1 * torch.eye(2)
            a, b, c, d = s[:, 0, 0], s[:, 0, 1], s[:, 1, 0], s[:, 1, 1]
            det = a * d - b * c
            inverse = torch.stack((d, -b, -c, a), -1).view(-1, 2, 2) / det[:, None, None]
            gain = cov @ self.see.T @ inverse
            mean = mean + gain @ (seen[:, step, :, None] - self.see @ mean)
            cov = (torch.eye(4) - gain @ self.see) @ cov
        return mean, cov, cov.diagonal(dim1=1, dim2=2).sum(1)


@entry("control", {k: {0: "batch"} for k in ("mean", "cov", "seen")}, {"batch": (1, 4)})
def kalman() -> Made:
    cov = torch.eye(4).repeat(2, 1, 1)
    return Kalman(), {"mean": torch.randn(2, 4, 1), "cov": cov, "seen": torch.randn(2, 3, 2)}


class NeuralOde(nn.Module):
    """A neural differential equation, by Runge and Kutta's method of fourth order with ten steps."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(9, 64, 64, 8)

    def slope(self, t: float, x: Any) -> Any:
        """The derivative at a time."""
        return self.net(torch.cat((x, torch.full_like(x[:, :1], t)), 1))

    def forward(self, x: Any) -> Any:
        h = 0.1
        for step in range(10):
            t = step * h
            a = self.slope(t, x)
            b = self.slope(t + h / 2, x + a * h / 2)
            c = self.slope(t + h / 2, x + b * h / 2)
            x = x + (a + 2 * b + 2 * c + self.slope(t + h, x + c * h)) * (h / 6)
        return x


@entry("flow", **ROWS)
def neural_ode() -> Made:
    return NeuralOde(), {"x": torch.randn(5, 8)}


class FourierOperator(nn.Module):
    """A Fourier neural operator: the lowest modes of a real transform, mixed, and transformed back."""

    def __init__(self, width: int = 16, modes: int = 6) -> None:
        super().__init__()
        self.modes, self.lift, self.out = modes, nn.Linear(2, width), nn.Linear(width, 1)
        self.weight = nn.ParameterList(torch.randn(width, width, modes, 2) / width for _ in range(2))
        self.skip = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(2))

    def forward(self, x: Any) -> Any:
        n = x.shape[1]
        h = self.lift(torch.stack((x, torch.linspace(0, 1, n).expand_as(x)), -1)).transpose(1, 2)
        for weight, skip in zip(self.weight, self.skip, strict=True):
            f = torch.view_as_real(torch.fft.rfft(h))[:, :, : self.modes]
            re = torch.einsum("bim,iom->bom", f[..., 0], weight[..., 0]) - torch.einsum(
                "bim,iom->bom", f[..., 1], weight[..., 1]
            )
            im = torch.einsum("bim,iom->bom", f[..., 0], weight[..., 1]) + torch.einsum(
                "bim,iom->bom", f[..., 1], weight[..., 0]
            )
            spectrum = functional.pad(torch.stack((re, im), -1), (0, 0, 0, n // 2 + 1 - self.modes))
            h = functional.gelu(torch.fft.irfft(torch.view_as_complex(spectrum.contiguous()), n) + skip(h))
        return self.out(h.transpose(1, 2))[..., 0]


@entry("flow", **ROWS)
def fourier_operator() -> Made:
    return FourierOperator(), {"x": torch.randn(2, 48)}
