"""Networks that change or repeat the elements that a mask chooses, in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from zoo.catalogue import Made, entry
from zoo.models.plain import mlp


class Halting(nn.Module):
    """Adaptive computation: rows whose score is still low pass through another layer, the others stay."""

    def __init__(self, width: int = 16, steps: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(mlp(width, 32, width, act=nn.GELU) for _ in range(steps))
        self.score = nn.Linear(width, 1)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            going = self.score(x)[:, 0] < 0.1
            changed = x.clone()
            changed[going] = x[going] + layer(x[going])
            x = changed
        return x


@entry("control", {"x": {0: "batch"}}, {"batch": (1, 16)})
def halting() -> Made:
    return Halting(), {"x": torch.randn(6, 16)}


class SpeakerBlock(nn.Module):
    """A block of ECAPA-TDNN: groups of channels in turn, lines padded by reflection, and a gate."""

    def __init__(self, width: int, scale: int, dilation: int) -> None:
        super().__init__()
        piece_width = width // scale
        self.scale, self.edge = scale, dilation
        self.first, self.last = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)
        self.parts = nn.ModuleList(
            nn.Conv1d(piece_width, piece_width, 3, dilation=dilation) for _ in range(scale - 1)
        )
        self.norm, self.gate = nn.BatchNorm1d(width), mlp(width, 8, width, act=nn.ReLU)

    def forward(self, x: Any) -> Any:
        pieces = list(torch.relu(self.first(x)).chunk(self.scale, 1))
        for at, part in enumerate(self.parts, 1):
            piece = pieces[at] if at == 1 else pieces[at] + pieces[at - 1]
            pieces[at] = torch.relu(part(functional.pad(piece, (self.edge, self.edge), mode="reflect")))
        h = self.norm(torch.relu(self.last(torch.cat(pieces, 1))))
        return x + h * torch.sigmoid(self.gate(h.mean(2)))[:, :, None]


class Speaker(nn.Module):
    """ECAPA-TDNN: blocks, attention over time, mean and deviation, an embedding."""

    def __init__(self, features: int = 16, width: int = 32) -> None:
        super().__init__()
        self.into = nn.Conv1d(features, width, 5, padding=2)
        self.blocks = nn.ModuleList(SpeakerBlock(width, 4, dilation) for dilation in (2, 3))
        self.score, self.out = nn.Conv1d(2 * width, 2 * width, 1), nn.Linear(4 * width, 12)

    def forward(self, x: Any) -> Any:
        h, outputs = torch.relu(self.into(x.transpose(1, 2))), []
        for block in self.blocks:
            h = block(h)
            outputs.append(h)
        h = torch.cat(outputs, 1)
        weight = self.score(torch.tanh(h)).softmax(2)
        mean = (h * weight).sum(2)
        deviation = ((h - mean[:, :, None]).square() * weight).sum(2).clamp_min(1e-6).sqrt()
        return self.out(torch.cat((mean, deviation), 1))


@entry("speech", {"x": {1: "frames"}}, {"frames": (8, 100)})
def speaker() -> Made:
    return Speaker(), {"x": torch.randn(1, 40, 16)}
