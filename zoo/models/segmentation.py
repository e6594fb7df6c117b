"""Segmentation and depth."""

from __future__ import annotations

from typing import Any

import timm
import torch
import torchvision
from torch import nn
from transformers import SegformerConfig, SegformerForSemanticSegmentation

from zoo.catalogue import Made, entry

IMAGE = {"image": {2: "8*h", 3: "8*w"}}
SIZES = {"h": (8, 16), "w": (8, 16)}
BATCH = {"image": {0: "batch"}}


class Field(nn.Module):
    """A network with one field of its result as the output."""

    def __init__(self, net: Any, name: str) -> None:
        super().__init__()
        self.net, self.name = net, name

    def forward(self, image: Any) -> Any:
        return self.net(image)[self.name]


@entry("segmentation", IMAGE, SIZES)
def deeplabv3() -> Made:
    make = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large
    return Field(make(weights=None, weights_backbone=None, num_classes=6), "out"), {
        "image": torch.randn(1, 3, 96, 64)
    }


@entry("segmentation", IMAGE, SIZES)
def lraspp() -> Made:
    make = torchvision.models.segmentation.lraspp_mobilenet_v3_large
    return Field(make(weights=None, weights_backbone=None, num_classes=6), "out"), {
        "image": torch.randn(1, 3, 96, 64)
    }


@entry("segmentation", BATCH, {"batch": (1, 3)})
def segformer() -> Made:
    config = SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 48, 64],
        decoder_hidden_size=32,
        num_labels=5,
        num_attention_heads=[1, 2, 3, 4],
    )
    return Field(SegformerForSemanticSegmentation(config), "logits"), {"image": torch.randn(1, 3, 64, 64)}


def _twice(a: int, b: int) -> Any:
    layers: list[Any] = []
    for c in (a, b):
        layers += [nn.Conv2d(c, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A U-Net with transposed convolutions and skips."""

    def __init__(self, c: tuple[int, ...] = (8, 16, 32, 64)) -> None:
        super().__init__()
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip((3, *c), c, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(c[i + 1], c[i], 2, 2) for i in (2, 1, 0))
        self.join = nn.ModuleList(_twice(2 * c[i], c[i]) for i in (2, 1, 0))
        self.head = nn.Conv2d(c[0], 2, 1)

    def forward(self, image: Any) -> Any:
        x, skips = image, []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else nn.functional.max_pool2d(x, 2))
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, skips[-2::-1], strict=True):
            x = join(torch.cat((skip, up(x)), 1))
        return self.head(x)


@entry("segmentation", IMAGE, {"h": (4, 12), "w": (4, 12)})
def unet() -> Made:
    return UNet(), {"image": torch.randn(1, 3, 64, 48)}


def _volume(a: int, b: int, stride: int) -> Any:
    layers: list[Any] = []
    for c, step in ((a, stride), (b, 1)):
        layers += [nn.Conv3d(c, b, 3, step, 1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU()]
    return nn.Sequential(*layers)


class VolumeUNet(nn.Module):
    """A U-Net of volumes, such as scans: strided convolutions, instance norms over all voxels, skips."""

    def __init__(self, c: tuple[int, ...] = (4, 8, 16)) -> None:
        super().__init__()
        self.down = nn.ModuleList(_volume(a, b, 1 + (a > 1)) for a, b in zip((1, *c), c, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose3d(c[i + 1], c[i], 2, 2) for i in (1, 0))
        self.join = nn.ModuleList(_volume(2 * c[i], c[i], 1) for i in (1, 0))
        self.head = nn.Conv3d(c[0], 2, 1)

    def forward(self, volume: Any) -> Any:
        x, skips = volume, []
        for block in self.down:
            x = block(x)
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, skips[-2::-1], strict=True):
            x = join(torch.cat((skip, up(x)), 1))
        return self.head(x)


@entry("segmentation", {"volume": {2: "4*d", 3: "4*h", 4: "4*w"}}, {"d": (2, 8), "h": (2, 16), "w": (2, 16)})
def volume_unet() -> Made:
    return VolumeUNet(), {"volume": torch.randn(1, 1, 16, 32, 32)}


class Unit(nn.Module):
    """A residual unit of DPT's decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return x + self.b(nn.functional.relu(self.a(nn.functional.relu(x))))


class Dpt(nn.Module):
    """Depth: a vision transformer, tokens reassembled to images of four sizes, fusion, a bicubic resize."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = timm.create_model("vit_tiny_patch16_224", pretrained=False, depth=4, img_size=64)
        self.project = nn.ModuleList(nn.Conv2d(192, 32, 1) for _ in range(4))
        self.scale = nn.ModuleList(
            [
                nn.ConvTranspose2d(32, 32, 4, 4),
                nn.ConvTranspose2d(32, 32, 2, 2),
                nn.Identity(),
                nn.Conv2d(32, 32, 3, 2, 1),
            ]
        )
        self.units = nn.ModuleList(Unit() for _ in range(4))
        self.head = nn.Sequential(nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1), nn.ReLU())

    def forward(self, image: Any) -> Any:
        resize = nn.functional.interpolate
        maps = self.vit.forward_intermediates(image, intermediates_only=True)
        x: Any = None
        for index in (3, 2, 1, 0):
            level = self.scale[index](self.project[index](maps[index]))
            x = self.units[index](level if x is None else x + level)
            x = resize(x, scale_factor=2.0, mode="bilinear", align_corners=True)
        return self.head(resize(x, size=image.shape[2:], mode="bicubic")).squeeze(1)


@entry("depth", BATCH, {"batch": (1, 3)})
def dpt() -> Made:
    return Dpt(), {"image": torch.randn(1, 3, 64, 64)}
