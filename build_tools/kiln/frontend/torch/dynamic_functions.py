"""Functions of PyTorch for dynamic sizes that PyTorch's own ones make constants of.

Each function has the arguments of PyTorch's, and returns NotImplemented where no size is dynamic, and where
an option is given that it does not have.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any


def is_dynamic(*values: Any) -> bool:
    """Whether a number among `values`, or in lists of them, depends on a dynamic size."""
    import torch

    dynamic = (torch.SymInt, torch.SymFloat)
    return any(
        is_dynamic(*value) if isinstance(value, (list, tuple)) else isinstance(value, dynamic)
        for value in values
    )


def linspace(
    start: Any, end: Any, steps: Any = None, *, dtype: Any = None, device: Any = None, **options: Any
) -> Any:
    """torch.linspace of floats [steps], computed from both ends as PyTorch does."""
    import torch

    dtype = dtype or torch.get_default_dtype()
    if not is_dynamic(steps) or options.get("out") is not None or not dtype.is_floating_point:
        return NotImplemented
    first, last = (_number(value, dtype, device) for value in (start, end))
    step = (last - first) / _number(torch.sym_max(steps - 1, 1), dtype, device)
    places = torch.arange(steps, dtype=dtype, device=device)
    below = places < torch.sym_max(steps // 2, 1)
    return torch.where(below, first + step * places, last - step * (steps - 1 - places))


def _number(value: Any, dtype: Any, device: Any) -> Any:
    """A number, or a tensor of one, as a tensor without axes."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    return torch.full((), value, dtype=dtype, device=device)


def fftfreq(n: Any, d: Any = 1.0, *, dtype: Any = None, device: Any = None, **options: Any) -> Any:
    """torch.fft.fftfreq: 0, 1, … and then the negative frequencies of n samples at a distance of d."""
    import torch

    if not is_dynamic(n) or options.get("out") is not None:
        return NotImplemented
    dtype = dtype or torch.get_default_dtype()
    positive = torch.arange((n + 1) // 2, dtype=dtype, device=device)
    negative = torch.arange(-(n // 2), 0, dtype=dtype, device=device)
    return torch.cat([positive, negative]) * (1.0 / (n * d))


def rfftfreq(n: Any, d: Any = 1.0, *, dtype: Any = None, device: Any = None, **options: Any) -> Any:
    """torch.fft.rfftfreq: the frequencies from 0 up of n samples at a distance of d."""
    import torch

    if not is_dynamic(n) or options.get("out") is not None:
        return NotImplemented
    dtype = dtype or torch.get_default_dtype()
    return torch.arange(n // 2 + 1, dtype=dtype, device=device) * (1.0 / (n * d))


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
    """torch.as_tensor of numbers, or of lists of them."""
    return _nested(data, dtype or _type_of(data), device) if is_dynamic(data) else NotImplemented


def _type_of(data: Any) -> Any:
    """The type that PyTorch gives a tensor of numbers."""
    import torch

    leaves = torch.utils._pytree.tree_leaves(data)
    has_floats = any(isinstance(leaf, (float, torch.SymFloat)) for leaf in leaves)
    return torch.get_default_dtype() if has_floats else torch.int64


def _nested(data: Any, dtype: Any, device: Any) -> Any:
    """The tensor of a number, of a tensor of one, or of a list of them, lists among them."""
    import torch

    if isinstance(data, (list, tuple)):
        return torch.stack([_nested(item, dtype, device) for item in data])
    return _number(data, dtype, device)


def new_tensor(self: Any, data: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> Any:
    """torch.Tensor.new_tensor of numbers, of the type of `self`."""
    return _nested(data, dtype or self.dtype, device or self.device) if is_dynamic(data) else NotImplemented


def one_hot(tensor: Any, num_classes: Any = -1) -> Any:
    """torch.nn.functional.one_hot: [..., num_classes] of int64."""
    import torch

    if not is_dynamic(num_classes):
        return NotImplemented
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).long()


def affine_grid(theta: Any, size: Sequence[Any], align_corners: bool | None = None) -> Any:
    """torch.nn.functional.affine_grid: places [n, *spatial, axes] of images of `size` [n, c, *spatial]."""
    import torch

    if not is_dynamic(*size):
        return NotImplemented
    spatial = list(size[2:])
    axes = []
    for count in reversed(spatial):  # the last axis is the first coordinate
        last = torch.sym_max(count - 1, 1) / torch.sym_max(count, 1)
        places = torch.arange(count, dtype=theta.dtype, device=theta.device)
        ends = 1.0 if align_corners else last
        line = places * (2.0 * ends / torch.sym_max(count - 1, 1)) - ends
        axes.append(torch.where(torch.full((), count) == 1, 0.0, line) if _may_be_one(count) else line)
    grids = [
        axis.view([-1 if place == len(spatial) - 1 - index else 1 for place in range(len(spatial))])
        for index, axis in enumerate(axes)
    ]
    places = torch.stack([grid.expand(spatial) for grid in [*grids, torch.ones_like(grids[0])]], -1)
    flat = places.reshape(1, -1, len(spatial) + 1).expand(size[0], -1, -1)
    return (flat @ theta.transpose(1, 2)).view(size[0], *spatial, len(spatial))


def _may_be_one(size: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return not statically_known_true(size > 1)


def kron(input: Any, other: Any, **options: Any) -> Any:  # noqa: A002 - PyTorch's name
    """torch.kron: each element of `input` times the whole of `other`."""
    if not is_dynamic(*input.shape, *other.shape) or options.get("out") is not None:
        return NotImplemented
    rank = max(input.ndim, other.ndim)
    left, right = ([1] * (rank - one.ndim) + list(one.shape) for one in (input, other))
    spread = input.reshape(_alternate(left, [1] * rank)) * other.reshape(_alternate([1] * rank, right))
    return spread.reshape([a * b for a, b in zip(left, right, strict=True)])


def _alternate(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    return list(itertools.chain.from_iterable(zip(first, second, strict=True)))


def take_along_dim(
    input: Any,  # noqa: A002 - PyTorch's name
    indices: Any,
    dim: Any = None,
    **options: Any,
) -> Any:
    """torch.take_along_dim: both tensors are broadcast along the other axes."""
    import torch

    if dim is None or not is_dynamic(*input.shape, *indices.shape) or options.get("out") is not None:
        return NotImplemented
    axis = dim % input.ndim
    shapes = [[*one.shape[:axis], 1, *one.shape[axis + 1 :]] for one in (input, indices)]
    shape = list(torch.broadcast_shapes(*shapes))
    full = [[*shape[:axis], one.shape[axis], *shape[axis + 1 :]] for one in (input, indices)]
    return torch.gather(input.expand(full[0]), axis, indices.expand(full[1]))
