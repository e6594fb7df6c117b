"""Parts of diffusion models."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo.catalogue import Made, entry


class TimedRes(nn.Module):
    """A residual block that adds the embedding of the time."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.n1, self.c1, self.t = nn.GroupNorm(8, a), nn.Conv2d(a, b, 3, padding=1), nn.Linear(64, b)
        self.n2, self.c2 = nn.GroupNorm(8, b), nn.Conv2d(b, b, 3, padding=1)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x: Any, t: Any) -> Any:
        h = self.c1(nn.functional.silu(self.n1(x))) + self.t(nn.functional.silu(t))[:, :, None, None]
        return self.skip(x) + self.c2(nn.functional.silu(self.n2(h)))


class CrossAttention(nn.Module):
    """Attention among the pixels, then to a context, then a gated feed-forward layer."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm, self.proj_in, self.proj_out = nn.GroupNorm(8, c), nn.Conv2d(c, c, 1), nn.Conv2d(c, c, 1)
        self.n1, self.n2, self.n3 = nn.LayerNorm(c), nn.LayerNorm(c), nn.LayerNorm(c)
        self.own = nn.MultiheadAttention(c, 4, batch_first=True)
        self.other = nn.MultiheadAttention(c, 4, kdim=32, vdim=32, batch_first=True)
        self.up, self.down = nn.Linear(c, 8 * c), nn.Linear(4 * c, c)

    def forward(self, x: Any, context: Any) -> Any:
        n, c, h, w = x.shape
        y = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)
        z = self.n1(y)
        y = y + self.own(z, z, z, need_weights=False)[0]
        y = y + self.other(self.n2(y), context, context, need_weights=False)[0]
        value, gate = self.up(self.n3(y)).chunk(2, -1)
        y = y + self.down(value * nn.functional.gelu(gate))
        return x + self.proj_out(y.transpose(1, 2).reshape(n, c, h, w))


class Denoiser(nn.Module):
    """One level down and up."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 32, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64))
        self.r1, self.a1, self.down = TimedRes(32, 32), CrossAttention(32), nn.Conv2d(32, 32, 3, 2, 1)
        self.r2, self.a2, self.up = TimedRes(32, 64), CrossAttention(64), nn.Conv2d(64, 64, 3, padding=1)
        self.r3, self.a3 = TimedRes(96, 32), CrossAttention(32)
        self.last = nn.Sequential(nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 4, 3, padding=1))

    def forward(self, x: Any, t: Any, context: Any) -> Any:
        angle = t.float().unsqueeze(1) * torch.exp(-9.21 * torch.arange(16) / 16)
        time = self.time(torch.cat((angle.cos(), angle.sin()), 1))
        a = self.a1(self.r1(self.first(x), time), context)
        b = self.a2(self.r2(self.down(a), time), context)
        b = self.up(nn.functional.interpolate(b, scale_factor=2.0, mode="nearest"))
        return self.last(self.a3(self.r3(torch.cat((a, b), 1), time), context))


@entry("diffusion", {"x": {2: "8*h", 3: "8*w"}}, {"h": (2, 4), "w": (2, 4)})
def diffusion_unet() -> Made:
    context = torch.randn(1, 7, 32)
    return Denoiser(), {"x": torch.randn(1, 4, 16, 24), "t": torch.tensor([37]), "context": context}


class Res(nn.Module):
    """Group norm, SiLU and a convolution, twice, with a skip."""

    def __init__(self, c: int) -> None:
        super().__init__()
        layers: list[Any] = []
        for _ in range(2):
            layers += [nn.GroupNorm(4, c), nn.SiLU(), nn.Conv2d(c, c, 3, padding=1)]
        self.body = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


class PixelAttention(nn.Module):
    """Attention among all pixels, with one head, by products and a softmax."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.GroupNorm(4, c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x: Any) -> Any:
        n, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(n, 3, c, h * w).unbind(1)
        weight = (q.transpose(1, 2) @ k / c**0.5).softmax(-1)
        return x + self.out((v @ weight.transpose(1, 2)).reshape(n, c, h, w))


@entry("diffusion", {"z": {2: "h"}}, {"h": (2, 16)})
def vae_decoder() -> Made:
    low = [nn.Conv2d(4, 32, 3, padding=1), Res(32), PixelAttention(32), Res(32)]
    middle = [nn.Upsample(scale_factor=2.0), nn.Conv2d(32, 16, 3, padding=1), Res(16)]
    high = [nn.Upsample(scale_factor=2.0), nn.Conv2d(16, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU()]
    return nn.Sequential(*low, *middle, *high, nn.Conv2d(8, 3, 3, padding=1)), {"z": torch.randn(1, 4, 8, 8)}
