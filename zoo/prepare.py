"""PyTorch, torchvision, and random weights that let every branch of a network count."""

from __future__ import annotations

import sys
from typing import Any

import torch

__all__ = ["randomise", "torch", "torchvision"]


_STAND_INS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def _torchvision() -> Any:
    """The module torchvision.

    The compiled operators of PyPI's wheels need a PyTorch for CUDA. With another PyTorch torchvision can be
    imported only if its operators are declared; no model of the zoo calls them.
    """
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name, schema in _STAND_INS.items():
            _LIBRARY.define(name + schema)
        import torchvision
    return torchvision


_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
torchvision = _torchvision()


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
