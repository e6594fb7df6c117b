"""Cross entropies that ONNX's SoftmaxCrossEntropyLoss lacks, composed of other operators of PyTorch.

Those with probabilities of classes, with `label_smoothing`, and of one element without a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.replaced import Replacement

_NONE, _MEAN, _SUM = range(3)  # of `reduction`


def _applies(_: Any, values: Sequence[Any]) -> bool:
    """Whether a call has probabilities, an element without a batch, or smoothing, the only float."""
    scores, target = values[:2]
    smoothed = any(isinstance(value, float) and value != 0 for value in values)
    return bool(smoothed or scores.dim() == 1 or target.dtype.is_floating_point)


def _rules(aten: Any) -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    return {aten.cross_entropy_loss.default: cross_entropy}


def cross_entropy(
    scores: Any,
    target: Any,
    weight: Any = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """aten::cross_entropy_loss of scores [n, classes, …] or [classes].

    target: probabilities of the shape of `scores`, or classes of that shape without the axis of classes.
    weight: (classes,).
    """
    import torch

    axis = 0 if scores.dim() == 1 else 1
    classes = scores.shape[axis]
    logs = scores.log_softmax(axis)
    if weight is not None:
        logs = logs * weight.reshape([-1] + [1] * (scores.dim() - axis - 1))
    even = logs.sum(axis)
    if target.dtype.is_floating_point:
        share = target * (1 - label_smoothing) + label_smoothing / classes if label_smoothing else target
        losses = -(logs * share).sum(axis)
        counted: Any = losses.numel()
    else:
        is_counted = target != ignore_index
        place = torch.where(is_counted, target, torch.zeros_like(target))
        chosen = logs.gather(axis, place.unsqueeze(axis)).squeeze(axis)
        if label_smoothing:
            chosen = chosen * (1 - label_smoothing) + even * (label_smoothing / classes)
        losses = torch.where(is_counted, -chosen, torch.zeros_like(chosen))
        factors = torch.ones_like(chosen)
        if weight is not None:
            factors = weight.index_select(0, place.reshape(-1)).reshape(place.shape)
        counted = torch.where(is_counted, factors, torch.zeros_like(factors)).sum()
    if reduction == _NONE:
        return losses
    return losses.sum() / counted if reduction == _MEAN else losses.sum()


LOSSES = Replacement(_applies, _rules)
