"""Generators of images, enhancers of speech, and policies that draw, in plain PyTorch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from zoo.catalogue import Made, entry
from zoo.models.plain import mlp


class Modulated(nn.Module):
    """A convolution of StyleGAN2, whose weights a style scales for each image, and a blurred upsampling."""

    def __init__(self, before: int, after: int, size: int = 3, up: bool = False, even: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, after, before, size, size))
        self.style, self.bias = nn.Linear(32, before), nn.Parameter(torch.zeros(after))
        self.size, self.after, self.up, self.even = size, after, up, even
        line = torch.tensor([1.0, 3.0, 3.0, 1.0])
        self.register_buffer("blur", (line[:, None] * line / 16)[None, None])

    def forward(self, x: Any, style: Any) -> Any:
        n, before, height, width = x.shape
        scale = (self.style(style) + 1).view(n, 1, before, 1, 1) / math.sqrt(before * self.size**2)
        weight = self.weight * scale
        if self.even:
            weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        x = x.reshape(1, n * before, height, width)
        if self.up:
            weight = weight.transpose(1, 2).reshape(n * before, self.after, self.size, self.size)
            y = functional.conv_transpose2d(x, weight, stride=2, groups=n)
            y = functional.pad(y.view(n, self.after, *y.shape[-2:]), (1, 1, 1, 1))
            y = functional.conv2d(y, self.blur.expand(self.after, 1, 4, 4), groups=self.after)
        else:
            weight = weight.reshape(n * self.after, before, self.size, self.size)
            y = functional.conv2d(x, weight, padding=self.size // 2, groups=n)
            y = y.view(n, self.after, height, width)
        return functional.leaky_relu(y + self.bias.view(1, -1, 1, 1), 0.2) * math.sqrt(2)


class Styled(nn.Module):
    """A mapping network, a constant, and modulated convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.start = mlp(16, 32, 32, act=nn.ReLU), nn.Parameter(torch.randn(1, 16, 4, 4))
        self.parts = nn.ModuleList(
            (Modulated(16, 16), Modulated(16, 16, up=True), Modulated(16, 8), Modulated(8, 8, up=True))
        )
        self.color = Modulated(8, 3, 1, even=False)

    def forward(self, z: Any) -> Any:
        style = self.map(z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8))
        x = self.start.expand(z.shape[0], -1, -1, -1)
        for part in self.parts:
            x = part(x, style)
        return self.color(x, style)


@entry("image")
def style_gan() -> Made:
    return Styled(), {"z": torch.randn(2, 16)}


class DeepFilter(nn.Module):
    """DeepFilterNet's idea: gains of bands, and a complex filter of several frames of the low bins."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bands", torch.rand(65, 16))
        self.first, self.second = nn.GRU(16, 32, batch_first=True), nn.GRU(40, 32, batch_first=True)
        self.gains, self.filters = nn.Linear(32, 16), nn.Linear(32, 20 * 2 * 3)

    def forward(self, spectrum: Any) -> Any:
        n, frames = spectrum.shape[:2]
        level = (spectrum.square().sum(-1) @ self.bands + 1e-10).log10() * 10
        level = (level - level.cumsum(1) / torch.arange(1, frames + 1)[None, :, None]) / 40
        gains = torch.sigmoid(self.gains(self.first(level)[0])) @ self.bands.T
        whole = torch.view_as_complex(spectrum) * gains
        low = torch.view_as_real(whole[..., :20])
        drawn = torch.tanh(self.filters(self.second(low.flatten(2))[0])).view(n, frames, 3, 20, 2)
        past = [functional.pad(low, (0, 0, 0, 0, back, 0))[:, :frames] for back in (2, 1, 0)]
        made = torch.view_as_complex(torch.stack(past, 2)) * torch.view_as_complex(drawn)
        return torch.view_as_real(torch.cat([made.sum(2), whole[..., 20:]], -1))


@entry("speech")
def deep_filter() -> Made:
    return DeepFilter(), {"spectrum": torch.randn(1, 14, 65, 2)}


class ActorCritic(nn.Module):
    """An actor with a learnt deviation and a critic: an action for given noise, its chance, the entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic, self.kind = mlp(11, 32, 3), mlp(11, 32, 1), nn.Linear(11, 4)
        self.deviation = nn.Parameter(torch.randn(3) * 0.1)

    def forward(self, x: Any, noise: Any) -> Any:
        normal = torch.distributions.Normal(self.actor(x), self.deviation.exp())
        kind = torch.distributions.Categorical(logits=self.kind(x))
        action = normal.mean + normal.stddev * noise
        chance = normal.log_prob(action).sum(-1) + kind.log_prob(kind.probs.argmax(-1))
        return action.clamp(-1, 1), self.critic(x), chance, normal.entropy().sum(-1) + kind.entropy()


@entry("control", {"x": {0: "batch"}, "noise": {0: "batch"}}, {"batch": (1, 8)})
def actor_critic() -> Made:
    return ActorCritic(), {"x": torch.randn(2, 11), "noise": torch.randn(2, 3)}
