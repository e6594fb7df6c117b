"""Calls along an axis of tensors without axes, which PyTorch allows, as calls on tensors of one axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.replaced import Replacement


def _applies(_: Any, values: Sequence[Any]) -> bool:
    """Whether the first argument of a call is a tensor without axes."""
    import torch

    return isinstance(values[0], torch.Tensor) and values[0].dim() == 0


def _rules(aten: Any) -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    single = (
        aten.all.dim,
        aten.any.dim,
        aten.cumsum.default,
        aten.flip.default,
        aten.index_fill.int_Scalar,
        aten.index_reduce.default,
        aten.index_select.default,
        aten.prod.dim_int,
        aten.scatter.src,
        aten.scatter.value,
        aten.scatter.reduce,
        aten.scatter.value_reduce,
        aten.scatter_add.default,
        aten.scatter_reduce.two,
        aten.topk.default,
        aten.var.correction,
        aten.var_mean.correction,
        aten.std.correction,
        aten.std_mean.correction,
    )
    return {operator: _with_axis(operator) for operator in single}


def _with_axis(operator: Any) -> Callable[..., Any]:
    """A function that calls `operator` with an axis added to tensors without one; its results have none."""
    import torch

    def called(*arguments: Any, **keywords: Any) -> Any:
        wide = [
            value.unsqueeze(0) if isinstance(value, torch.Tensor) and value.dim() == 0 else value
            for value in arguments
        ]
        made = operator(*wide, **keywords)
        if isinstance(made, torch.Tensor):
            return made.reshape(())
        return tuple(result.reshape(()) for result in made)

    return called


WITHOUT_AXES = Replacement(_applies, _rules)
