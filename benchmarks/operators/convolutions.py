"""Convolutions and transposed convolutions of every rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.operators.case import Case, sizes_text

# Columns: kind, batch, channels, image, outputs, kernel, and attributes other than the defaults.
_TABLE: list[tuple[str, int, int, tuple[int, ...], int, int, dict[str, Any]]] = [
    ("conv2d", 1, 3, (161, 97), 19, 3, {"strides": [2, 2]}),
    ("conv2d", 1, 3, (224, 224), 96, 4, {"strides": [4, 4]}),
    ("conv2d", 1, 3, (224, 224), 32, 3, {"strides": [2, 2]}),
    ("conv2d", 4, 3, (96, 96), 24, 3, {"strides": [2, 2]}),
    ("conv2d", 1, 3, (224, 224), 64, 7, {"strides": [2, 2]}),
    ("conv2d", 1, 3, (224, 224), 64, 11, {"strides": [4, 4]}),
    ("conv2d", 1, 3, (224, 224), 64, 3, {}),
    ("conv2d", 1, 3, (32, 32), 64, 3, {}),
    ("conv2d", 1, 24, (35, 51), 40, 5, {}),
    ("conv2d", 2, 67, (19, 23), 45, 3, {}),
    ("conv2d", 1, 130, (13, 13), 130, 3, {}),
    ("conv2d", 1, 33, (64, 64), 1, 3, {}),
    ("conv2d", 1, 1, (128, 128), 16, 7, {}),
    ("conv2d", 1, 64, (28, 28), 100, 1, {}),
    ("conv2d", 1, 255, (20, 20), 18, 1, {}),
    ("conv2d", 4, 48, (16, 16), 48, 3, {}),
    ("conv2d", 1, 5, (64, 64), 24, 3, {}),
    ("conv2d", 1, 24, (56, 56), 36, 1, {}),
    ("conv2d", 1, 36, (28, 28), 65, 3, {"strides": [2, 2]}),
    ("conv2d", 1, 65, (20, 20), 255, 1, {}),
    ("conv2d", 1, 3, (96, 96), 8, 5, {}),
    ("conv2d", 1, 32, (80, 80), 1, 1, {}),
    ("conv2d", 1, 16, (64, 64), 3, 3, {}),
    ("conv2d", 8, 16, (14, 14), 24, 1, {}),
    ("conv2d", 1, 512, (7, 7), 512, 1, {}),
    ("conv2d", 1, 96, (5, 5), 160, 3, {}),
    ("conv2d", 1, 24, (40, 40), 24, 7, {"strides": [2, 2]}),
    ("dilated", 1, 64, (40, 40), 64, 3, {"dilations": [2, 2]}),
    ("dilated", 1, 48, (33, 33), 96, 3, {"dilations": [6, 6]}),
    ("dilated", 1, 40, (30, 44), 24, 3, {"dilations": [3, 1]}),
    ("grouped", 1, 64, (28, 28), 64, 3, {"group": 4}),
    ("grouped", 1, 128, (28, 28), 128, 3, {"group": 32}),
    ("grouped", 1, 120, (20, 20), 240, 1, {"group": 3}),
    ("grouped", 1, 96, (33, 33), 96, 3, {"group": 8, "strides": [2, 2]}),
    ("grouped", 1, 48, (40, 40), 96, 3, {"group": 48}),
    ("grouped", 1, 32, (28, 28), 64, 5, {"group": 2}),
    ("grouped", 1, 24, (56, 56), 24, 3, {"group": 8}),
    ("depthwise", 1, 96, (56, 56), 96, 5, {"group": 96}),
    ("depthwise", 1, 72, (28, 28), 72, 5, {"group": 72, "strides": [2, 2]}),
    ("depthwise", 1, 96, (28, 28), 96, 7, {"group": 96}),
    ("depthwise", 1, 33, (40, 40), 33, 3, {"group": 33}),
    ("depthwise", 1, 64, (32, 32), 64, 3, {"group": 64, "dilations": [2, 2]}),
    ("depthwise", 1, 48, (31, 31), 48, 9, {"group": 48}),
    ("depthwise", 1, 120, (28, 28), 120, 5, {"group": 120, "dilations": [2, 2]}),
    ("depthwise", 1, 64, (56, 56), 64, 7, {"group": 64, "strides": [2, 2]}),
    ("depthwise", 1, 24, (112, 112), 24, 5, {"group": 24, "strides": [2, 2]}),
    ("depthwise", 1, 5, (60, 60), 5, 3, {"group": 5}),
    ("depthwise", 4, 40, (14, 14), 40, 3, {"group": 40}),
    ("conv1d", 1, 1, (16000,), 32, 16, {"strides": [8]}),
    ("conv1d", 1, 1, (16000,), 512, 10, {"strides": [5]}),
    ("conv1d", 1, 64, (1000,), 64, 3, {}),
    ("conv1d", 1, 80, (300,), 256, 3, {}),
    ("conv1d", 1, 128, (400,), 512, 1, {}),
    ("conv1d", 1, 64, (2000,), 64, 3, {"dilations": [8]}),
    ("conv1d", 1, 32, (4000,), 32, 31, {}),
    ("conv1d", 1, 2, (44100,), 48, 8, {"strides": [4]}),
    ("conv1d", 1, 1, (8000,), 16, 25, {}),
    ("conv1d", 1, 16, (16000,), 16, 3, {"dilations": [16]}),
    ("conv1d", 1, 36, (5000,), 5, 7, {}),
    ("conv1d", 1, 256, (50,), 256, 5, {}),
    ("depthwise1d", 1, 256, (300,), 256, 31, {"group": 256}),
    ("depthwise1d", 1, 512, (400,), 512, 3, {"group": 512, "dilations": [4]}),
    ("depthwise1d", 1, 100, (1000,), 100, 5, {"group": 100}),
    ("conv3d", 1, 16, (8, 28, 28), 32, 1, {}),
    ("conv3d", 1, 64, (4, 20, 20), 40, 1, {}),
    ("conv3d", 1, 3, (8, 56, 56), 24, 3, {"strides": [1, 2, 2]}),
    ("conv3d", 1, 32, (8, 14, 14), 32, 3, {}),
    ("conv3d", 1, 1, (24, 24, 24), 8, 3, {}),
    ("depthwise3d", 1, 48, (8, 28, 28), 48, 3, {"group": 48}),
]


def convolutions() -> Iterator[Case]:
    """Convolutions of every rank."""
    for kind, batch, channels, image, outputs, size, options in _TABLE:
        differs = "".join(f" {name} {sizes_text(*np.ravel(value))}" for name, value in options.items())
        case = Case(f"{kind} {sizes_text(batch, channels, *image)} to {outputs} kernel {size}{differs}")
        kernel = [size] * len(image)
        dilations = options.get("dilations", [1] * len(image))
        pads: list[int] = [] if size % 2 == 0 else [(size - 1) * step // 2 for step in dilations] * 2
        weight = case.weight(outputs, channels // options.get("group", 1), *kernel)
        operands = case.input([batch, channels, *image]), weight, case.weight(outputs)
        if pads:
            options = {**options, "pads": pads}
        case.node("Conv", *operands, **options)
        yield case


def transposed() -> Iterator[Case]:
    """Transposed convolutions of every rank."""
    table: list[tuple[int, tuple[int, ...], int, int, dict[str, Any]]] = [
        (64, (28, 28), 32, 2, {"strides": [2, 2]}),
        (256, (14, 14), 256, 2, {"strides": [2, 2]}),
        (24, (60, 80), 1, 2, {"strides": [2, 2]}),
        (64, (20, 20), 48, 3, {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        (128, (16, 16), 64, 4, {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        (32, (30, 30), 32, 3, {"pads": [1, 1, 1, 1]}),
        (100, (1, 1), 128, 4, {}),
        (21, (28, 28), 21, 16, {"strides": [8, 8], "pads": [4, 4, 4, 4], "group": 21}),
        (64, (400,), 32, 16, {"strides": [8]}),
        (128, (300,), 64, 4, {"strides": [2], "pads": [1, 1]}),
        (512, (100,), 1, 16, {"strides": [8]}),
        (48, (2000,), 4, 8, {"strides": [4]}),
        (256, (60,), 128, 10, {"strides": [5], "pads": [2, 2], "output_padding": [1]}),
        (32, (4, 10, 10), 16, 2, {"strides": [2, 2, 2]}),
        (32, (40, 40), 3, 4, {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        (65, (17, 17), 24, 3, {"strides": [2, 2]}),
    ]
    for channels, image, outputs, size, options in table:
        differs = "".join(f" {name} {sizes_text(*np.ravel(value))}" for name, value in options.items())
        case = Case(f"transposed {sizes_text(channels, *image)} to {outputs} kernel {size}{differs}")
        weight = case.weight(channels, outputs // options.get("group", 1), *([size] * len(image)))
        case.node("ConvTranspose", case.input([1, channels, *image]), weight, case.weight(outputs), **options)
        yield case
