"""Forecasters and filters of series, in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from zoo.catalogue import Made, entry
from zoo.models.plain import mlp

BATCH: dict[str, Any] = {"axes": {"x": {0: "batch"}}, "ranges": {"batch": (1, 8)}}
LENGTH: dict[str, Any] = {
    "axes": {"x": {0: "batch", 1: "seq"}},
    "ranges": {"batch": (1, 4), "seq": (8, 48)},
}


class BasisBlocks(nn.Module):
    """N-BEATS: stacks of blocks with polynomial and Fourier bases, backward and forward."""

    def __init__(self, past: int = 24, future: int = 8) -> None:
        super().__init__()
        time = torch.arange(-past, future) / future
        trend = torch.stack([time**k for k in range(3)])
        waves = [f(2 * torch.pi * k * time) for k in range(4) for f in (torch.cos, torch.sin)]
        self.past, self.sizes = past, (3, 8)
        self.register_buffer("trend", trend)
        self.register_buffer("season", torch.stack(waves))
        self.nets = nn.ModuleList(mlp(past, 32, 2 * size, act=nn.ReLU) for size in self.sizes)

    def forward(self, x: Any) -> Any:
        total = 0.0
        for net, basis in zip(self.nets, (self.trend, self.season), strict=True):
            back, ahead = net(x).chunk(2, -1)
            x = x - back @ basis[:, : self.past]
            total = total + ahead @ basis[:, self.past :]
        return total, x


@entry("series", **BATCH)
def n_beats() -> Made:
    return BasisBlocks(), {"x": torch.randn(3, 24)}


class Hierarchical(nn.Module):
    """N-HiTS: pools of several rates, and forecasts that are interpolated linearly and cubically."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = (8, 4, 1)
        self.nets = nn.ModuleList(mlp(32 // r, 16, 32 // r + 16 // r, act=nn.ReLU) for r in self.rates)

    def forward(self, x: Any) -> Any:
        total = 0.0
        for net, r in zip(self.nets, self.rates, strict=True):
            pooled = functional.max_pool1d(x[:, None], r, r, ceil_mode=True)[:, 0]
            back, ahead = net(pooled).split([32 // r, 16 // r], -1)
            x = x - functional.interpolate(back[:, None], size=32, mode="linear")[:, 0]
            cubic = functional.interpolate(ahead[:, None, None], size=(1, 16), mode="bicubic")
            total = total + cubic[:, 0, 0]
        return total


@entry("series", **BATCH)
def n_hits() -> Made:
    return Hierarchical(), {"x": torch.randn(3, 32)}


class Periods(nn.Module):
    """TimesNet: amplitudes of an FFT weigh foldings of the series by periods into images."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Conv2d(6, 12, 3, padding=1), nn.Conv2d(12, 6, (1, 5), padding=(0, 2))
        self.register_buffer("places", torch.tensor([1, 3, 5]))

    def forward(self, x: Any) -> Any:
        n, t, c = x.shape
        strength = torch.fft.rfft(x, dim=1).abs().mean(-1)[:, self.places]
        results = []
        for period in (30, 10, 6):
            folded = functional.pad(x, (0, 0, 0, -t % period)).reshape(n, -1, period, c).permute(0, 3, 1, 2)
            made = self.down(functional.gelu(self.up(folded)))
            results.append(made.permute(0, 2, 3, 1).reshape(n, -1, c)[:, :t])
        return x + (torch.stack(results, -1) * strength.softmax(1)[:, None, None]).sum(-1)


@entry("series", **BATCH)
def times_net() -> Made:
    return Periods(), {"x": torch.randn(2, 32, 6)}


class DeepAutoregressive(nn.Module):
    """DeepAR: one step of an LSTM to a negative binomial and a Student t, and their likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.heads = nn.LSTM(5, 16, 2), nn.Linear(16, 5)

    def forward(self, x: Any, h: Any, c: Any, y: Any) -> Any:
        out, (h, c) = self.rnn(x, (h, c))
        mu, alpha, loc, scale, free = self.heads(out[-1]).unbind(-1)
        mu, alpha = functional.softplus(mu), functional.softplus(alpha) + 1e-3
        scale, free = functional.softplus(scale) + 1e-3, 2 + functional.softplus(free)
        r = 1 / alpha
        negative = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)
        negative = (
            negative - r * torch.log1p(alpha * mu) + y * (torch.log(alpha * mu) - torch.log1p(alpha * mu))
        )
        z = (y - loc) / scale
        student = torch.lgamma((free + 1) / 2) - torch.lgamma(free / 2) - 0.5 * torch.log(free * torch.pi)
        student = student - torch.log(scale) - (free + 1) / 2 * torch.log1p(z**2 / free)
        return negative, student, h, c


@entry("series", {"x": {1: "n"}, "h": {1: "n"}, "c": {1: "n"}, "y": {0: "n"}}, {"n": (1, 8)})
def deep_ar() -> Made:
    h, c = torch.randn(2, 2, 3, 16)
    y = torch.tensor([0.0, 2.0, 5.0])
    return DeepAutoregressive(), {"x": torch.randn(1, 3, 5), "h": h, "c": c, "y": y}


class Autoencoder(nn.Module):
    """An LSTM autoencoder: the last state is repeated and decoded backwards; errors as scores."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.LSTM(4, 12, batch_first=True, bidirectional=True)
        self.decode, self.last = nn.LSTM(24, 12, batch_first=True), nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:
        _, (h, _) = self.encode(x)
        code = torch.cat((h[0], h[1]), -1)
        made = self.last(self.decode(code[:, None].expand(-1, x.shape[1], -1))[0].flip(1))
        error = (x - made).abs().mean(-1)
        return made, error, error.amax(1), error.std(1)


@entry("series", **LENGTH)
def lstm_autoencoder() -> Made:
    return Autoencoder(), {"x": torch.randn(2, 16, 4)}


class Gated(nn.Module):
    """A gated residual network of temporal fusion transformers."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.skip, self.one, self.two = nn.Linear(a, b), nn.Linear(a, b), nn.Linear(b, 2 * b)
        self.norm = nn.LayerNorm(b)

    def forward(self, x: Any) -> Any:
        return self.norm(self.skip(x) + functional.glu(self.two(functional.elu(self.one(x)))))


class Fusion(nn.Module):
    """A temporal fusion transformer: choice of variables, LSTM, attention with shared values, quantiles."""

    def __init__(self, variables: int = 5, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.ModuleList(Gated(1, width) for _ in range(variables))
        self.choose, self.rnn = Gated(variables, variables), nn.LSTM(width, width, batch_first=True)
        self.q, self.k, self.v = nn.Linear(width, 16), nn.Linear(width, 16), nn.Linear(width, 8)
        self.after, self.last = Gated(width, width), nn.Linear(width, 3)

    def forward(self, x: Any) -> Any:
        parts = torch.stack([net(x[..., i : i + 1]) for i, net in enumerate(self.embed)], -1)
        y = (parts * self.choose(x).softmax(-1).unsqueeze(-2)).sum(-1)
        y = y + self.rnn(y)[0]
        q, k = (layer(y).unflatten(-1, (2, 8)).transpose(1, 2) for layer in (self.q, self.k))
        n = x.shape[1]
        hidden = torch.arange(n)[:, None] < torch.arange(n)
        weight = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(hidden, float("-inf")).softmax(-1)
        return self.last(self.after(y + weight.mean(1) @ self.v(y))), weight.mean(1)


@entry("series", **LENGTH)
def temporal_fusion() -> Made:
    return Fusion(), {"x": torch.randn(2, 16, 5)}


class Decomposed(nn.Module):
    """DLinear and iTransformer: moving averages with repeated edges, then attention among the variables."""

    def __init__(self) -> None:
        super().__init__()
        self.trend, self.season = nn.Linear(32, 8), nn.Linear(32, 8)
        self.up, self.down = nn.Linear(32, 16), nn.Linear(16, 8)
        self.mix = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True, activation="gelu")

    def forward(self, x: Any) -> Any:
        mean, deviation = x.mean(1, keepdim=True), (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        y = ((x - mean) / deviation).transpose(1, 2)
        average = functional.avg_pool1d(functional.pad(y, (4, 4), mode="replicate"), 9, 1)
        linear = self.trend(average) + self.season(y - average)
        return (linear + self.down(self.mix(self.up(y)))).transpose(1, 2) * deviation + mean


@entry("series", {"x": {0: "batch", 2: "variables"}}, {"batch": (1, 4), "variables": (1, 12)})
def inverted_transformer() -> Made:
    return Decomposed(), {"x": torch.randn(2, 32, 7)}


class FrequencyAttention(nn.Module):
    """FEDformer: products of the lowest frequencies with complex weights, then the inverse FFT."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 6, 8, 8) * 0.2)
        self.up, self.down = nn.Linear(3, 8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        y = self.up(x).transpose(1, 2)
        f = torch.fft.rfft(y)
        low = torch.einsum("bim,mio->bom", f[..., :6], torch.complex(self.weight[0], self.weight[1]))
        full = torch.zeros_like(f)
        full[..., :6] = low
        return self.down((torch.fft.irfft(full, n=32) + y).transpose(1, 2))


@entry("series", **BATCH)
def frequency_attention() -> Made:
    return FrequencyAttention(), {"x": torch.randn(2, 32, 3)}


class MissingValues(nn.Module):
    """GRU-D: decays of the last seen value and of the state, in a loop over fifteen steps."""

    def __init__(self, width: int = 3, hidden: int = 8) -> None:
        super().__init__()
        self.cell, self.decay_x = nn.GRUCell(2 * width, hidden), nn.Parameter(torch.rand(width))
        self.decay_h, self.mean = nn.Linear(width, hidden), nn.Parameter(torch.randn(width))

    def forward(self, x: Any) -> Any:
        seen = ~torch.isnan(x)
        x = torch.nan_to_num(x)
        h, last = x.new_zeros(x.shape[0], 8), self.mean.expand(x.shape[0], -1)
        since = torch.zeros_like(x[:, 0])
        for step in range(15):
            now, m = x[:, step], seen[:, step]
            fade = torch.exp(-torch.relu(since * self.decay_x))
            filled = torch.where(m, now, fade * last + (1 - fade) * self.mean)
            h = h * torch.exp(-torch.relu(self.decay_h(since)))
            h = self.cell(torch.cat((filled, m.float()), -1), h)
            last, since = torch.where(m, now, last), torch.where(m, torch.ones_like(since), since + 1)
        return h


@entry("series", **BATCH)
def gru_decay() -> Made:
    return MissingValues(), {"x": torch.randn(2, 15, 3)}


class LearnedKalman(nn.Module):
    """KalmanNet: a GRU learns the gain; and a Kalman smoother's gain by a solve and by Cholesky factors."""

    def __init__(self, m: int = 4, n: int = 3) -> None:
        super().__init__()
        self.move, self.see = nn.Parameter(torch.eye(m) * 0.9), nn.Parameter(torch.randn(n, m))
        self.cell, self.gain = nn.GRUCell(m + n, 16), nn.Linear(16, m * n)
        self.noise = nn.Parameter(torch.randn(m, m) * 0.2)

    def forward(self, x: Any, h: Any, y: Any) -> Any:
        prior = x @ self.move.T
        innovation = y - prior @ self.see.T
        change = functional.normalize(prior - x, dim=-1)
        h = self.cell(torch.cat((change, functional.normalize(innovation, dim=-1)), -1), h)
        gain = self.gain(h).unflatten(-1, (4, 3))
        x = prior + (gain @ innovation[..., None])[..., 0]
        cov = x[:, :, None] * x[:, None] + self.noise @ self.noise.T + torch.eye(4)
        return (
            x,
            h,
            torch.linalg.solve(cov, self.move.expand_as(cov)),
            torch.linalg.cholesky(cov),
            torch.linalg.inv(cov),
        )


@entry("control", {"x": {0: "batch"}, "h": {0: "batch"}, "y": {0: "batch"}}, {"batch": (1, 8)})
def kalman_net() -> Made:
    return LearnedKalman(), {"x": torch.randn(2, 4), "h": torch.randn(2, 16), "y": torch.randn(2, 3)}
