"""Detectors, with their post-processing."""

from __future__ import annotations

from typing import Any

import torch
import torchvision
from torch import nn

from zoo.catalogue import Made, entry

BATCH = {"image": {0: "batch"}}
RANGE = {"batch": (1, 3)}


class Conv(nn.Module):
    """A convolution, batch normalisation and SiLU."""

    def __init__(self, c1: int, c2: int, k: int = 1, s: int = 1) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(c1, c2, k, s, k // 2, bias=False), nn.BatchNorm2d(c2)

    def forward(self, x: Any) -> Any:
        return nn.functional.silu(self.bn(self.conv(x)))


class Csp(nn.Module):
    """Half of the channels through residual blocks; every intermediate result is concatenated."""

    def __init__(self, c1: int, c2: int) -> None:
        super().__init__()
        half = c2 // 2
        self.first, self.last = Conv(c1, c2), Conv(3 * half, c2)
        self.block = nn.Sequential(Conv(half, half, 3), Conv(half, half, 3))

    def forward(self, x: Any) -> Any:
        a, b = self.first(x).chunk(2, 1)
        return self.last(torch.cat((a, b, b + self.block(b)), 1))


class Sppf(nn.Module):
    """Three max poolings in a row, concatenated."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.first, self.last, self.pool = Conv(c, c // 2), Conv(c * 2, c), nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        y = self.pool(x)
        z = self.pool(y)
        return self.last(torch.cat((x, y, z, self.pool(z)), 1))


class Yolo(nn.Module):
    """An anchor-free detector: a feature pyramid, boxes from distributions, the best boxes by TopK."""

    def __init__(self, classes: int = 20, bins: int = 8, most: int = 30) -> None:
        super().__init__()
        self.bins, self.most = bins, most
        self.s8 = nn.Sequential(
            Conv(3, 16, 3, 2), Conv(16, 32, 3, 2), Csp(32, 32), Conv(32, 64, 3, 2), Csp(64, 64)
        )
        self.s16 = nn.Sequential(Conv(64, 128, 3, 2), Csp(128, 128))
        self.s32 = nn.Sequential(Conv(128, 128, 3, 2), Csp(128, 128), Sppf(128))
        self.up16, self.up8 = Csp(256, 128), Csp(192, 64)
        self.down16, self.out16 = Conv(64, 64, 3, 2), Csp(192, 128)
        self.box, self.cls = (
            nn.ModuleList(nn.Sequential(Conv(c, 32, 3), nn.Conv2d(32, n, 1)) for c in (64, 128, 128))
            for n in (4 * bins, classes)
        )
        for module in self.modules():  # PyTorch's own initialisation leaves all scores nearly equal
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, image: Any) -> Any:
        a = self.s8(image)
        b = self.s16(a)
        c = self.s32(b)
        up = nn.functional.interpolate
        b = self.up16(torch.cat((up(c, scale_factor=2.0), b), 1))
        a = self.up8(torch.cat((up(b, scale_factor=2.0), a), 1))
        b = self.out16(torch.cat((self.down16(a), b), 1))
        boxes, scores = [], []
        for level, (x, stride) in enumerate(((a, 8), (b, 16), (c, 32))):
            n, _, h, w = x.shape
            d = self.box[level](x).view(n, 4, self.bins, h * w).softmax(2)
            d = (d * torch.arange(self.bins, dtype=x.dtype).view(1, 1, -1, 1)).sum(2)
            gy, gx = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
            centre = torch.stack((gx, gy)).reshape(1, 2, -1)
            boxes.append(torch.cat((centre - d[:, :2], centre + d[:, 2:]), 1) * stride)
            scores.append(self.cls[level](x).flatten(2))
        box = torch.cat(boxes, 2).transpose(1, 2)
        best, label = torch.cat(scores, 2).transpose(1, 2).sigmoid().max(-1)
        best, index = best.topk(self.most, dim=1)
        return (
            torch.gather(box, 1, index.unsqueeze(-1).expand(-1, -1, 4)),
            best,
            torch.gather(label, 1, index),
        )


@entry("detection", BATCH, RANGE)
def yolo() -> Made:
    return Yolo(), {"image": torch.randn(1, 3, 96, 96)}


class Ssd(nn.Module):
    """SSDLite: MobileNetV3 features, separable heads, boxes decoded against anchors."""

    def __init__(self, size: int = 128) -> None:
        super().__init__()
        detection = torchvision.models.detection
        net = detection.ssdlite320_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=11
        ).eval()
        self.backbone, self.head, self.limit = net.backbone, net.head, size
        image = torch.zeros(1, 3, size, size)
        with torch.no_grad():
            maps = list(self.backbone(image).values())
            anchors = net.anchor_generator(detection.image_list.ImageList(image, [(size, size)]), maps)[0]
        self.register_buffer("centre", (anchors[:, :2] + anchors[:, 2:]) / 2)
        self.register_buffer("size", anchors[:, 2:] - anchors[:, :2])

    def forward(self, image: Any) -> Any:
        out = self.head(list(self.backbone(image).values()))
        d = out["bbox_regression"]
        middle = d[..., :2] / 10 * self.size + self.centre
        half = torch.exp(torch.clamp(d[..., 2:] / 5, max=4.135)) * self.size / 2
        boxes = torch.cat((middle - half, middle + half), -1).clamp(0, self.limit)
        return boxes, out["cls_logits"].softmax(-1)


@entry("detection", BATCH, RANGE)
def ssdlite() -> Made:
    return Ssd(), {"image": torch.randn(1, 3, 128, 128)}


class Detr(nn.Module):
    """A convolutional backbone, a transformer with learnt queries, sine positions by cumulative sums."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[Any] = []
        for a, b in ((3, 16), (16, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()]
        self.backbone, self.query = nn.Sequential(*layers), nn.Parameter(torch.randn(10, 64))
        encoder = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True)
        decoder = nn.TransformerDecoderLayer(64, 4, 128, 0.0, batch_first=True)
        self.encoder, self.decoder = nn.TransformerEncoder(encoder, 1), nn.TransformerDecoder(decoder, 1)
        self.classes, self.boxes = nn.Linear(64, 12), nn.Linear(64, 4)

    def forward(self, image: Any) -> Any:
        x = self.backbone(image)
        scale = 100 ** (2 * (torch.arange(32) // 2) / 32)
        position = []
        for axis in (1, 2):
            p = torch.ones_like(x[:, 0]).cumsum(axis)[..., None] / scale
            position.append(torch.stack((p[..., 0::2].sin(), p[..., 1::2].cos()), 4).flatten(3))
        tokens = x.flatten(2).transpose(1, 2) + torch.cat(position, 3).flatten(1, 2)
        queries = self.query.unsqueeze(0).expand(image.shape[0], -1, -1)
        h = self.decoder(queries, self.encoder(tokens))
        return self.classes(h), self.boxes(h).sigmoid()


@entry("detection", BATCH, RANGE)
def detr() -> Made:
    return Detr(), {"image": torch.randn(1, 3, 96, 64)}
