"""PyTorch, torchvision, and random weights that let every branch of a network count."""

from __future__ import annotations

from typing import Any

import torch

from zoo import vision_operators

__all__ = ["randomise", "spread", "torch", "torchvision"]


torchvision = vision_operators.torchvision()


def randomise(module: Any, seed: int = 0) -> None:
    """Replace constant parameters (norms, layer scales, zero-initialised branches) by random ones."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(like: Any, low: float, high: float) -> Any:
        return torch.rand(like.shape, generator=generator) * (high - low) + low

    with torch.no_grad():
        for parameter in module.parameters():
            if (
                parameter.numel() < 2
                or not parameter.is_floating_point()
                or parameter.min() != parameter.max()
            ):
                continue
            value = float(parameter.flatten()[0])
            if abs(value) > 0.01:
                parameter.copy_(value * uniform(parameter, 0.5, 1.5))
            elif value:
                parameter.copy_(uniform(parameter, 0.1, 0.5))
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)
            elif name.endswith("running_var"):
                buffer.copy_(uniform(buffer, 0.5, 1.5))


def spread(module: Any) -> Any:
    """`module` with larger weights: initial ones leave all scores of detectors nearly equal."""
    for part in module.modules():
        if isinstance(part, torch.nn.Conv2d | torch.nn.Linear):
            torch.nn.init.kaiming_normal_(part.weight, nonlinearity="linear")
        elif isinstance(part, torch.nn.BatchNorm2d):  # transformers draws their weights as those of products
            torch.nn.init.ones_(part.weight)
    return module
