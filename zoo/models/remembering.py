"""Networks with memories, state spaces and long sequences, and decoders of structures, in plain PyTorch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from zoo.catalogue import Made, entry
from zoo.models.plain import mlp

SEQ: dict[str, Any] = {"axes": {"x": {0: "batch", 1: "seq"}}, "ranges": {"batch": (1, 4), "seq": (2, 32)}}
ROWS: dict[str, Any] = {"axes": {"x": {0: "batch"}}, "ranges": {"batch": (1, 8)}}


class NeuralComputer(nn.Module):
    """A step of a differentiable neural computer: allocation by sorting usage, links, and reads."""

    def __init__(self, slots: int = 8, width: int = 6) -> None:
        super().__init__()
        self.cell, self.interface = nn.LSTMCell(5 + width, 16), nn.Linear(16, 4 * width + 9)
        self.out, self.width = nn.Linear(16 + width, 3), width

    def forward(self, x: Any, h: Any, c: Any, memory: Any, usage: Any, link: Any, weights: Any) -> Any:
        old_write, old_read, precedence = weights.unbind(1)
        h, c = self.cell(torch.cat((x, (old_read[:, None] @ memory)[:, 0]), -1), (h, c))
        w = self.width
        key_r, key_w, erase, write, rest = self.interface(h).split([w, w, w, w, 9], -1)
        strength_r, strength_w = (1 + functional.softplus(rest[:, i : i + 1]) for i in (0, 1))
        free, allocate, gate = rest[:, 2:5].sigmoid().split(1, -1)
        modes = rest[:, 5:8].softmax(-1)
        usage = (usage + old_write - usage * old_write) * (1 - free * old_read)
        ordered, order = torch.sort(usage, dim=-1, stable=True)
        before = torch.cat((torch.ones_like(ordered[:, :1]), torch.cumprod(ordered, -1)[:, :-1]), -1)
        allocation = torch.zeros_like(usage).scatter(1, order, (1 - ordered) * before)
        content = (functional.cosine_similarity(memory, key_w[:, None], dim=-1) * strength_w).softmax(-1)
        new = gate * (allocate * allocation + (1 - allocate) * content)
        memory = memory * (1 - new[..., None] * erase.sigmoid()[:, None]) + new[..., None] * write[:, None]
        link = (1 - new[:, :, None] - new[:, None]) * link + new[:, :, None] * precedence[:, None]
        link = link * (1 - torch.eye(link.shape[-1]))
        precedence = (1 - new.sum(-1, keepdim=True)) * precedence + new
        found = (functional.cosine_similarity(memory, key_r[:, None], dim=-1) * strength_r).softmax(-1)
        ahead, back = (link @ old_read[..., None])[..., 0], (old_read[:, None] @ link)[:, 0]
        read = (torch.stack((back, found, ahead), -1) @ modes[..., None])[..., 0]
        y = self.out(torch.cat((h, (read[:, None] @ memory)[:, 0]), -1))
        return y, h, c, memory, usage, link, torch.stack((new, read, precedence), 1)


_DNC = ("x", "h", "c", "memory", "usage", "link", "weights")


@entry("control", {key: {0: "batch"} for key in _DNC}, {"batch": (1, 4)})
def neural_computer() -> Made:
    shapes = ((5,), (16,), (16,), (8, 6), (8,), (8, 8), (3, 8))
    tensors = [torch.randn(2, *shape) for shape in shapes]
    tensors[4] = tensors[4].sigmoid()
    tensors[6] = tensors[6].softmax(-1)
    return NeuralComputer(), dict(zip(_DNC, tensors, strict=True))


class TuringStep(nn.Module):
    """A step of a neural Turing machine: addresses by content, interpolation, circular shifts, sharpening."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(5 + width, 16), nn.Linear(16, 3 * width + 6)

    def forward(self, x: Any, h: Any, memory: Any, weight: Any) -> Any:
        h = self.cell(torch.cat((x, torch.einsum("bn,bnw->bw", weight, memory)), -1), h)
        key, erase, add, beta, gate, shift, gamma = self.head(h).split([6, 6, 6, 1, 1, 3, 1], -1)
        near = functional.cosine_similarity(memory, key[:, None], dim=-1) * functional.softplus(beta)
        gate = gate.sigmoid()
        mixed = gate * near.softmax(-1) + (1 - gate) * weight
        s = shift.softmax(-1)
        turned = sum(s[:, i : i + 1] * torch.roll(mixed, i - 1, 1) for i in range(3))
        sharp = turned.clamp(min=1e-6) ** (1 + functional.softplus(gamma))
        weight = sharp / sharp.sum(-1, keepdim=True)
        memory = (
            memory * (1 - weight[..., None] * erase.sigmoid()[:, None]) + weight[..., None] * add[:, None]
        )
        return h, memory, weight


@entry("control", {k: {0: "batch"} for k in ("x", "h", "memory", "weight")}, {"batch": (1, 4)})
def turing_step() -> Made:
    h, memory = torch.randn(2, 16), torch.randn(2, 10, 6)
    weight = torch.randn(2, 10).softmax(-1)
    return TuringStep(), {"x": torch.randn(2, 5), "h": h, "memory": memory, "weight": weight}


class Retention(nn.Module):
    """RetNet: products with decays in place of a softmax, rotations, and a group norm of the heads."""

    def __init__(self, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.heads, self.qkvg, self.out = heads, nn.Linear(width, 4 * width), nn.Linear(width, width)
        self.norm = nn.GroupNorm(heads, width)
        self.register_buffer("decay", torch.log(1 - 2 ** (-5 - torch.arange(heads, dtype=torch.float))))
        self.register_buffer("angle", 1 / 10000 ** torch.linspace(0, 1, width // heads // 2))

    def _turn(self, x: Any) -> Any:
        angle = (torch.arange(x.shape[2])[:, None] * self.angle).repeat_interleave(2, -1)
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        return x * angle.cos() + turned * angle.sin()

    def forward(self, x: Any) -> Any:
        n = x.shape[1]
        q, k, v, g = self.qkvg(x).chunk(4, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        away = torch.arange(n)[:, None] - torch.arange(n)
        mask = torch.exp(away.clamp(min=0) * self.decay[:, None, None]) * (away >= 0)
        mask = mask / mask.sum(-1, keepdim=True).sqrt()
        scores = self._turn(q) @ self._turn(k).transpose(-1, -2) * mask
        scores = scores / scores.detach().abs().sum(-1, keepdim=True).clamp(min=1)
        y = (scores @ v).transpose(1, 2).flatten(2)
        y = self.norm(y.flatten(0, 1)).view_as(y)
        return self.out(functional.silu(g) * y)


@entry("language", **SEQ)
def retention() -> Made:
    return Retention(), {"x": torch.randn(2, 10, 24)}


class LongConvolution(nn.Module):
    """Hyena: gates and convolutions as long as the sequence, by an FFT of twice its length."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up = nn.Linear(width, 3 * width)
        self.short = nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width)
        self.filter, self.bias = mlp(5, 16, width, act=nn.SiLU), nn.Parameter(torch.randn(width))
        self.register_buffer("speed", torch.linspace(0.5, 4, width))

    def forward(self, x: Any) -> Any:
        n = x.shape[1]
        a, b, v = self.short(self.up(x).transpose(1, 2))[..., :n].chunk(3, 1)
        time = torch.linspace(0, 1, 32)[:n, None]
        places = torch.cat((time, torch.cos(6.28 * time), torch.sin(6.28 * time), time**2, time.sqrt()), -1)
        k = (self.filter(places) * torch.exp(-time * self.speed)).T
        u = v * a
        y = torch.fft.irfft(torch.fft.rfft(u, n=64) * torch.fft.rfft(k, n=64), n=64)[..., :n]
        return ((y + u * self.bias[:, None]) * b).transpose(1, 2)


@entry("language", **SEQ)
def hyena() -> Made:
    return LongConvolution(), {"x": torch.randn(2, 10, 8)}


class DiagonalStates(nn.Module):
    """S4D and the linear recurrent unit: a kernel of complex exponentials, applied as a convolution."""

    def __init__(self, width: int = 6, states: int = 4, length: int = 24) -> None:
        super().__init__()
        self.rate, self.turn = (
            nn.Parameter(torch.rand(width, states)),
            nn.Parameter(torch.rand(width, states)),
        )
        self.c, self.skip = nn.Parameter(torch.randn(width, states, 2)), nn.Parameter(torch.randn(width))
        self.step, self.length, self.out = nn.Parameter(torch.rand(width)), length, nn.Conv1d(width, 12, 1)

    def forward(self, x: Any) -> Any:
        a = torch.complex(-torch.exp(self.rate), self.turn * math.pi)
        delta = torch.exp(self.step)[:, None] * 0.1
        c = torch.view_as_complex(self.c) * (torch.exp(a * delta) - 1) / a
        powers = torch.exp((a * delta)[..., None] * torch.arange(self.length))
        kernel = 2 * torch.einsum("wn,wnl->wl", c, powers).real
        u = x.transpose(1, 2)
        y = functional.conv1d(functional.pad(u, (self.length - 1, 0)), kernel.flip(-1)[:, None], groups=6)
        return functional.glu(self.out(functional.gelu(y + u * self.skip[:, None])), 1).transpose(1, 2)


@entry("language", **ROWS)
def diagonal_states() -> Made:
    return DiagonalStates(), {"x": torch.randn(2, 24, 6)}


class RandomFeatures(nn.Module):
    """Performer and linear attention: features of q and k, sums along the sequence, causal by cumsum."""

    def __init__(self, width: int = 16, features: int = 12) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("drawn", torch.randn(features, 8))

    def _map(self, x: Any) -> Any:
        x = x / 8**0.25
        raw = x @ self.drawn.T - 0.5 * x.square().sum(-1, keepdim=True)
        return torch.exp(raw - raw.amax(-1, keepdim=True)) + 1e-4

    def forward(self, x: Any) -> Any:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k = self._map(q), self._map(k)
        memory = torch.einsum("bhnf,bhnd->bhnfd", k, v).cumsum(2)
        norm = torch.einsum("bhnf,bhnf->bhn", q, k.cumsum(2)).clamp(min=1e-6)
        y = torch.einsum("bhnf,bhnfd->bhnd", q, memory) / norm[..., None]
        return self.out(y.transpose(1, 2).flatten(2))


@entry("language", **SEQ)
def performer() -> Made:
    return RandomFeatures(), {"x": torch.randn(2, 10, 16)}


class MinimalRecurrence(nn.Module):
    """minGRU in parallel: a scan by cumsum and logcumsumexp; a quasi-recurrent layer by cumprod."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.gate, self.new = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        k, new = self.gate(x), self.new(x)
        log_z, log_keep = -functional.softplus(-k), -functional.softplus(k)
        log_new = torch.where(new >= 0, (new.relu() + 0.5).log(), -functional.softplus(-new))
        total = log_keep.cumsum(1)
        h = torch.exp(total + torch.logcumsumexp(log_z + log_new - total, dim=1))
        keep = torch.cumprod(k.sigmoid() * 0.5 + 0.5, dim=1)
        return h, keep * torch.cumsum(new / keep, dim=1)


@entry("language", **SEQ)
def minimal_gru() -> Made:
    return MinimalRecurrence(), {"x": torch.randn(2, 10, 8)}


class ChainField(nn.Module):
    """The Viterbi path of a linear chain CRF over twelve steps, and the logarithm of its sum of paths."""

    def __init__(self, tags: int = 5) -> None:
        super().__init__()
        self.emit, self.move = nn.Linear(8, tags), nn.Parameter(torch.randn(tags, tags))

    def forward(self, x: Any) -> Any:
        e = self.emit(x)
        best, total = e[:, 0], e[:, 0]
        back = []
        for step in range(1, 12):
            values, places = (best[:, :, None] + self.move).max(1)
            best, total = values + e[:, step], torch.logsumexp(total[:, :, None] + self.move, 1) + e[:, step]
            back.append(places)
        tag = best.argmax(1, keepdim=True)
        path = [tag]
        for places in reversed(back):
            tag = places.gather(1, tag)
            path.append(tag)
        return torch.cat(path[::-1], 1), best.amax(1), torch.logsumexp(total, 1)


@entry("text", **ROWS)
def chain_field() -> Made:
    return ChainField(), {"x": torch.randn(3, 12, 8)}


class Parser(nn.Module):
    """A biaffine parser: heads and labels by bilinear maps, characters by convolutions and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.conv = nn.Embedding(40, 6), nn.Conv1d(6, 10, 3, padding=1)
        self.rnn = nn.LSTM(10, 12, batch_first=True, bidirectional=True)
        self.head, self.child = mlp(24, 16, 16, act=nn.ELU), mlp(24, 16, 16, act=nn.ELU)
        self.arc, self.label = nn.Parameter(torch.randn(17, 16)), nn.Bilinear(16, 16, 4)

    def forward(self, ids: Any) -> Any:
        n = ids.shape[1]
        x = self.conv(self.letters(ids).flatten(0, 1).transpose(1, 2)).amax(-1)
        x = self.rnn(x.unflatten(0, (-1, n)))[0]
        h, c = self.head(x), self.child(x)
        arcs = functional.pad(c, (0, 1), value=1.0) @ self.arc @ h.transpose(1, 2)
        arcs = arcs.masked_fill(torch.eye(n, dtype=torch.bool), -1e4)
        best = arcs.argmax(-1)
        chosen = h.gather(1, best[..., None].expand(-1, -1, 16))
        return arcs.log_softmax(-1), best, self.label(chosen.contiguous(), c)


@entry("text", {"ids": {0: "batch", 1: "seq"}}, {"batch": (1, 4), "seq": (2, 16)})
def biaffine_parser() -> Made:
    return Parser(), {"ids": torch.randint(0, 40, (2, 6, 5))}


class Pointers(nn.Module):
    """A pointer network that visits each of six places once: a greedy tour by masked attention."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.cell = nn.GRU(2, 12, batch_first=True), nn.GRUCell(2, 12)
        self.a, self.b, self.v = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 1, bias=False)

    def forward(self, x: Any) -> Any:
        memory, h = self.encode(x)
        h, at = h[0], x[:, 0]
        seen = torch.zeros(x.shape[:2], dtype=torch.bool)
        tour = []
        for _ in range(6):
            h = self.cell(at, h)
            scores = self.v(torch.tanh(self.a(memory) + self.b(h)[:, None]))[..., 0]
            place = scores.masked_fill(seen, -torch.inf).argmax(1)
            seen = seen.scatter(1, place[:, None], True)
            at = torch.take_along_dim(x, place[:, None, None], 1)[:, 0]
            tour.append(place)
        return torch.stack(tour, 1), h


@entry("control", **ROWS)
def pointer_network() -> Made:
    return Pointers(), {"x": torch.rand(2, 6, 2)}
