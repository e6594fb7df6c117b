"""Operators that move or choose elements, and means of parts, which PyTorch's exporter to ONNX lacks.

Each function has the arguments of the operator of its name, and computes it by other operators of PyTorch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.config.sizes import ceil_div
from kiln.frontend.torch.present import aten as own_operators


def moves() -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    aten = own_operators()
    return {
        aten._adaptive_avg_pool3d.default: adaptive_avg_pool,
        aten.put.default: put,
        aten.as_strided_scatter.default: as_strided_scatter,
        aten.take.default: take,
        aten.scatter.reduce: scatter_reduced,
        aten.scatter.value_reduce: scatter_reduced,
        aten.searchsorted.Scalar: search_of_number,
        aten.grid_sampler_3d.default: grid_sampler_3d,
    }


def adaptive_parts(size: int, parts: int) -> list[tuple[int, int]]:
    """Begin and end of each of the `parts`, which may overlap, of an axis of an adaptive pool."""
    return [(part * size // parts, ceil_div((part + 1) * size, parts)) for part in range(parts)]


def adaptive_avg_pool(self: Any, output_size: Sequence[int]) -> Any:
    """aten::_adaptive_avg_pool3d, of fixed sizes: the means of parts of the last axes, one after another.

    Part i of m of an axis of n elements goes from floor(i n / m) to ceil((i + 1) n / m).
    """
    import torch

    for place, parts in enumerate(output_size):
        axis = place - len(output_size)
        size = self.shape[axis]
        if parts == size:
            continue
        ends = adaptive_parts(size, parts)
        means = [self.narrow(axis, begin, end - begin).mean(axis, keepdim=True) for begin, end in ends]
        self = means[0] if parts == 1 else torch.cat(means, axis)
    return self


def put(self: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """aten::put: `source` is written, or added, to the places `index` of all elements in order."""
    import torch

    flat, places, values = self.reshape(-1), index.reshape(-1), source.reshape(-1)
    places = torch.where(places < 0, places + flat.shape[0], places)
    scattered = flat.scatter_add(0, places, values) if accumulate else flat.scatter(0, places, values)
    return scattered.reshape(self.shape)


def as_strided_scatter(
    self: Any, src: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    """aten::as_strided_scatter: `src` is written to the elements that a view of `self` would have."""
    import torch

    places = torch.full((), storage_offset or 0, dtype=torch.int64)
    for length, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + torch.arange(length) * step
    return self.reshape(-1).scatter(0, places.reshape(-1), src.reshape(-1)).reshape(self.shape)


def take(self: Any, index: Any) -> Any:
    """aten::take: elements of `self` in order, at the places `index`; negative ones count from the end."""
    import torch

    flat = self.reshape(-1)
    places = torch.where(index < 0, index + flat.shape[0], index)
    return flat.index_select(0, places.reshape(-1)).reshape(index.shape)


def scatter_reduced(self: Any, dim: int, index: Any, src: Any, *, reduce: str) -> Any:
    """aten::scatter.reduce and .value_reduce: `src`, or one number, is added or multiplied into `self`."""
    import torch

    values = src if isinstance(src, torch.Tensor) else torch.full_like(index, src, dtype=self.dtype)
    if reduce == "add":
        return self.scatter_add(dim, index, values)
    return self.scatter_reduce(dim, index, values, "prod")


def search_of_number(sorted_sequence: Any, self: Any, **options: Any) -> Any:
    """aten::searchsorted.Scalar: `searchsorted` of one number, a tensor without axes."""
    import torch

    options.pop("sorter", None)  # the count of smaller elements does not depend on their order
    number = torch.full((), self, dtype=sorted_sequence.dtype)
    return torch.searchsorted(sorted_sequence, number, **options)


def grid_sampler_3d(self: Any, grid: Any, mode: int, padding_mode: int, align_corners: bool) -> Any:
    """aten::grid_sampler_3d: elements of `self` [n, c, d, h, w] at places [n, a, b, e, 3] from -1 to 1.

    mode: 0 linear, 1 nearest. padding_mode: 0 zeros, 1 the border, 2 reflections.
    """
    sizes = list(self.shape)[:1:-1]  # of x, y and z
    places = [_unnormalised(grid[..., axis], size, align_corners) for axis, size in enumerate(sizes)]
    if padding_mode == 2:
        reflected = zip(places, sizes, strict=True)
        places = [_reflected(place, size, align_corners) for place, size in reflected]
    if padding_mode:
        places = [place.clamp(0, size - 1) for place, size in zip(places, sizes, strict=True)]
    if mode == 1:
        return _at(self, [place.round() for place in places], sizes)
    lower = [place.floor() for place in places]
    interpolated: Any = 0
    for upper in itertools.product((0, 1), repeat=3):
        corner = [low + step for low, step in zip(lower, upper, strict=True)]
        weight: Any = 1
        for place, low, step in zip(places, lower, upper, strict=True):
            weight = weight * (place - low if step else 1 - (place - low))
        interpolated = interpolated + _at(self, corner, sizes) * weight.unsqueeze(1)
    return interpolated


def _unnormalised(place: Any, size: Any, align_corners: bool) -> Any:
    return (place + 1) / 2 * (size - 1) if align_corners else ((place + 1) * size - 1) / 2


def _reflected(place: Any, size: Any, align_corners: bool) -> Any:
    """Places reflected at the centres of the first and last element, or at their outer edges."""
    import torch

    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if isinstance(span, int) and span == 0:
        return torch.zeros_like(place)
    away = (place - low).abs()
    rest = torch.fmod(away, span)
    is_odd = torch.remainder(torch.floor(away / span), 2) == 1
    return torch.where(is_odd, span - rest, rest) + low


def _at(x: Any, places: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """Elements [n, c, a, b, e] of x [n, c, d, h, w] at whole places [n, a, b, e] of x, y, z; 0 outside."""
    import torch

    inside = torch.ones_like(places[0], dtype=torch.bool)
    flat: Any = 0
    for place, size in zip(reversed(places), reversed(sizes), strict=True):
        inside = inside & (place >= 0) & (place <= size - 1)
        flat = flat * size + place.clamp(0, size - 1).to(torch.int64)
    count, channels = x.shape[:2]
    index = flat.reshape(count, 1, -1).expand(-1, channels, -1)
    pooled = x.reshape(count, channels, -1).gather(2, index).reshape(count, channels, *flat.shape[1:])
    return torch.where(inside.unsqueeze(1), pooled, torch.zeros((), dtype=x.dtype))
