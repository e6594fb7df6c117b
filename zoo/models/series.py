"""Networks for tables, time series and sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo.catalogue import Made, entry


def _body() -> Any:
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Table(nn.Module):
    """A transformer over the columns of a table: numbers and kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 32)), nn.Parameter(torch.randn(6, 32))
        self.embed, self.token = nn.Embedding(30, 32), nn.Parameter(torch.randn(1, 1, 32))
        self.register_buffer("offsets", torch.tensor([0, 10, 20]))
        self.body, self.head = _body(), nn.Linear(32, 1)

    def forward(self, x: Any, kinds: Any) -> Any:
        numbers = x.unsqueeze(-1) * self.weight + self.bias
        first = self.token.expand(x.shape[0], -1, -1)
        tokens = torch.cat((first, numbers, self.embed(kinds.clamp(0, 9) + self.offsets)), 1)
        return self.head(self.body(tokens)[:, 0])


@entry("series", {"x": {0: "rows"}, "kinds": {0: "rows"}}, {"rows": (2, 64)})
def ft_transformer() -> Made:
    return Table(), {"x": torch.randn(5, 6), "kinds": torch.randint(0, 10, (5, 3))}


class Forecast(nn.Module):
    """PatchTST's way: instance normalisation, patches by unfold, a transformer over the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.position = nn.Linear(16, 32), nn.Parameter(torch.randn(11, 32))
        self.body, self.head = _body(), nn.Linear(11 * 32, 24)

    def forward(self, x: Any) -> Any:
        mean, scale = x.mean(1, keepdim=True), x.std(1, keepdim=True, unbiased=False) + 1e-5
        y = ((x - mean) / scale).transpose(1, 2).unfold(2, 16, 8)
        n, c, p, _ = y.shape
        h = self.body(self.patch(y).reshape(n * c, p, 32) + self.position)
        return self.head(h.flatten(1)).view(n, c, 24).transpose(1, 2) * scale + mean


@entry("series", {"x": {0: "batch"}}, {"batch": (1, 8)})
def patch_tst() -> Made:
    return Forecast(), {"x": torch.randn(2, 96, 3)}


class StateSpace(nn.Module):
    """One step of a selective state-space model, with its state as an input and an output."""

    def __init__(self, d: int = 32, n: int = 8) -> None:
        super().__init__()
        self.inner, self.bc = nn.Linear(d, 2 * d), nn.Linear(d, 2 * n)
        self.dt, self.out = nn.Linear(d, d), nn.Linear(d, d)
        self.a, self.skip = nn.Parameter(torch.rand(d, n)), nn.Parameter(torch.rand(d))

    def forward(self, x: Any, state: Any) -> Any:
        u, gate = self.inner(x).chunk(2, -1)
        u = nn.functional.silu(u)
        b, c = self.bc(u).chunk(2, -1)
        dt = nn.functional.softplus(self.dt(u)).unsqueeze(-1)
        state = state * torch.exp(-dt * self.a) + dt * b.unsqueeze(1) * u.unsqueeze(-1)
        y = (state * c.unsqueeze(1)).sum(-1) + self.skip * u
        return self.out(y * nn.functional.silu(gate)), state


@entry("series", {"x": {0: "batch"}, "state": {0: "batch"}}, {"batch": (1, 8)})
def state_space_step() -> Made:
    return StateSpace(), {"x": torch.randn(2, 32), "state": torch.randn(2, 32, 8)}


class Mixer(nn.Module):
    """Einsum, cumulative sums, rolling and sorting, as forecasters use them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.mix = nn.Linear(8, 16), nn.Linear(16, 8), nn.Parameter(torch.randn(4, 4, 4))

    def forward(self, x: Any) -> Any:
        h = nn.functional.softplus(self.a(x)).view(x.shape[0], -1, 4, 4)
        h = torch.einsum("blhd,hde->blhe", h, self.mix).flatten(2)
        trend = h.cumsum(1) / torch.arange(1, x.shape[1] + 1).view(1, -1, 1)
        return self.b(h + trend - torch.roll(h, 1, 1)), torch.sort(x.mean(-1), 1).values


@entry("series", {"x": {1: "length"}}, {"length": (8, 64)})
def series_mixer() -> Made:
    return Mixer(), {"x": torch.randn(2, 24, 8)}
