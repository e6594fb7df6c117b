"""Networks from images to images, and of video."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo.catalogue import Made, entry

IMAGE = {"image": {2: "8*h", 3: "8*w"}}
SIZES = {"h": (4, 12), "w": (4, 12)}
BATCH = {"image": {0: "batch"}}


class Block(nn.Module):
    """A residual block with reflection padding, a grouped convolution and PReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(24, 24, 3, padding=1, padding_mode="reflect")
        self.b, self.act = nn.Conv2d(24, 24, 3, padding=1, groups=4), nn.PReLU(24)

    def forward(self, x: Any) -> Any:
        return x + self.b(self.act(self.a(x)))


@entry("image", IMAGE, SIZES)
def super_resolution() -> Made:
    last = nn.Conv2d(24, 27, 3, padding=1)
    net = nn.Sequential(nn.Conv2d(3, 24, 5, padding=2), Block(), Block(), last, nn.PixelShuffle(3))
    return net, {"image": torch.randn(1, 3, 32, 40)}


@entry("image", IMAGE, SIZES)
def style_transfer() -> Made:
    def conv(a: int, b: int, k: int, s: int = 1) -> list[Any]:
        return [
            nn.ReflectionPad2d(k // 2),
            nn.Conv2d(a, b, k, s),
            nn.InstanceNorm2d(b, affine=True),
            nn.ReLU(),
        ]

    down = [*conv(3, 8, 9), *conv(8, 16, 3, 2), *conv(16, 32, 3, 2), *conv(32, 32, 3)]
    up = [nn.Upsample(scale_factor=2), *conv(32, 16, 3), nn.Upsample(scale_factor=2), *conv(16, 8, 3)]
    last = [nn.ReflectionPad2d(4), nn.Conv2d(8, 3, 9), nn.Tanh()]
    return nn.Sequential(*down, *up, *last), {"image": torch.randn(1, 3, 64, 48)}


@entry("image", BATCH, {"batch": (1, 4)})
def dcgan() -> Made:
    layers: list[Any] = []
    for a, b, s, p in ((50, 64, 1, 0), (64, 32, 2, 1), (32, 16, 2, 1), (16, 8, 2, 1)):
        layers += [nn.ConvTranspose2d(a, b, 4, s, p, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh()), {
        "image": torch.randn(1, 50, 1, 1)
    }


class Flow(nn.Module):
    """A step of optical flow: features of two frames, correlations by grid_sample, a convolutional GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3), nn.InstanceNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1)
        )
        self.z, self.r, self.q = (nn.Conv2d(32 + 32 + 9, 32, 3, padding=1) for _ in range(3))
        self.head = nn.Conv2d(32, 2, 3, padding=1)

    def forward(self, image: Any) -> Any:
        a, b = self.features(image[:, :3]), self.features(image[:, 3:])
        n, _, h, w = a.shape
        gy, gx = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        grid = torch.stack((gx, gy), -1).unsqueeze(0).expand(n, -1, -1, -1)
        costs = []
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                moved = grid + torch.tensor([dx * 2.0 / w, dy * 2.0 / h])
                moved = nn.functional.grid_sample(b, moved, align_corners=True)
                costs.append((a * moved).mean(1, keepdim=True))
        x, hidden = torch.cat([a, *costs], 1), torch.tanh(a)
        hidden_and_x = torch.cat((hidden, x), 1)
        z, r = torch.sigmoid(self.z(hidden_and_x)), torch.sigmoid(self.r(hidden_and_x))
        q = torch.tanh(self.q(torch.cat((r * hidden, x), 1)))
        return self.head((1 - z) * hidden + z * q)


@entry("image", BATCH, {"batch": (1, 3)})
def optical_flow() -> Made:
    return Flow(), {"image": torch.randn(1, 6, 48, 64)}


@entry("video", BATCH, {"batch": (1, 2)})
def r3d() -> Made:
    def block(a: int, b: int, s: int) -> list[Any]:
        return [nn.Conv3d(a, b, 3, s, 1, bias=False), nn.BatchNorm3d(b), nn.ReLU()]

    body = [*block(3, 8, 1), nn.MaxPool3d(2), *block(8, 16, 2), *block(16, 32, 1)]
    head = [nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, 10)]
    return nn.Sequential(*body, *head), {"image": torch.randn(1, 3, 8, 32, 32)}
