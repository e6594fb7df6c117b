"""Operators that move complex numbers, on pairs of their real and imaginary parts, the last axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from kiln.frontend.torch.present import aten as own_operators


def pair(x: Any) -> Any:
    """A complex tensor as a real one with a last axis of size 2; a real one with 0 as imaginary part."""
    import torch

    return torch.view_as_real(x) if x.is_complex() else torch.stack([x, torch.zeros_like(x)], -1)


def made(pairs: Any) -> Any:
    """The complex tensor of pairs."""
    import torch

    return torch.view_as_complex(pairs)


def joined(real: Any, imaginary: Any) -> Any:
    """The complex tensor of two real ones, or of one and a number, which are broadcast to each other."""
    import torch

    if not isinstance(imaginary, torch.Tensor):
        imaginary = torch.full_like(real, imaginary)
    elif not isinstance(real, torch.Tensor):
        real = torch.full_like(imaginary, real)
    return made(torch.stack(torch.broadcast_tensors(real, imaginary), -1))


def of_type(x: Any, dtype: Any) -> Any:
    """`x` in the type `dtype`, real or complex; None stands for its own."""

    if dtype is None or dtype == x.dtype:
        return x
    if not dtype.is_complex:
        return pair(x)[..., 0].to(dtype)
    return made(pair(x).to(dtype.to_real()))


def axis(dim: int) -> int:
    """An axis of a complex tensor, as an axis of its pairs."""
    return dim - 1 if dim < 0 else dim


def moves() -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    import torch

    aten = own_operators()
    return {**_shapes(aten), **_parts(aten), **_indexed(torch, aten), **_filled(torch, aten)}


def _shapes(aten: Any) -> Mapping[Any, Callable[..., Any]]:
    def squeezed(x: Any, dim: Any = None) -> Any:
        dims = range(x.dim()) if dim is None else (dim if isinstance(dim, (list, tuple)) else [dim])
        return made(pair(x).squeeze(tuple(d % max(x.dim(), 1) for d in dims if x.dim())))

    def shaped(x: Any, size: Any) -> Any:
        return made(pair(x).reshape([*size, 2]))

    def turned(x: Any, dims: Any) -> Any:
        return made(pair(x).permute([*(dim % x.dim() for dim in dims), x.dim()]))

    return {
        aten.unsqueeze.default: lambda x, dim: made(pair(x).unsqueeze(axis(dim))),
        aten.squeeze.default: squeezed,
        aten.squeeze.dim: squeezed,
        aten.squeeze.dims: squeezed,
        aten.view.default: shaped,
        aten._unsafe_view.default: shaped,
        aten.reshape.default: shaped,
        aten.expand.default: lambda x, size, implicit=False: made(pair(x).expand([*size, 2])),
        aten.repeat.default: lambda x, repeats: made(pair(x).repeat([*repeats, 1])),
        aten.permute.default: turned,
        aten.transpose.int: lambda x, a, b: made(pair(x).transpose(axis(a), axis(b))),
        aten.t.default: lambda x: made(pair(x).transpose(0, 1)) if x.dim() == 2 else x,
        aten.flip.default: lambda x, dims: made(pair(x).flip([axis(dim) for dim in dims])),
    }


def _parts(aten: Any) -> Mapping[Any, Callable[..., Any]]:
    import torch

    def rolled(x: Any, shifts: Any, dims: Any = ()) -> Any:
        if not dims:
            return made(pair(x).reshape(-1, 2).roll(shifts, 0).reshape([*x.shape, 2]))
        return made(pair(x).roll(shifts, [axis(dim) for dim in dims]))

    def sliced(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
        return made(aten.slice.Tensor(pair(x), axis(dim), start, end, step))

    def written(x: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
        return made(aten.slice_scatter.default(pair(x), pair(src), axis(dim), start, end, step))

    def copied(x: Any, src: Any) -> Any:
        src = of_type(src, x.dtype)
        return (
            made(pair(src).expand([*x.shape, 2]).clone()) if x.is_complex() else src.expand(x.shape).clone()
        )

    return {
        aten.slice.Tensor: sliced,
        aten.select.int: lambda x, dim, index: made(pair(x).select(axis(dim), index)),
        aten.split.Tensor: lambda x, size, dim=0: [made(part) for part in pair(x).split(size, axis(dim))],
        aten.split_with_sizes.default: lambda x, sizes, dim=0: [
            made(part) for part in pair(x).split(sizes, axis(dim))
        ],
        aten.unbind.int: lambda x, dim=0: [made(part) for part in pair(x).unbind(axis(dim))],
        aten.cat.default: lambda all_x, dim=0: made(torch.cat([pair(x) for x in all_x], axis(dim))),
        aten.stack.default: lambda all_x, dim=0: made(torch.stack([pair(x) for x in all_x], axis(dim))),
        aten.roll.default: rolled,
        aten.tril.default: lambda x, k=0: joined(*(part.tril(k) for part in pair(x).unbind(-1))),
        aten.triu.default: lambda x, k=0: joined(*(part.triu(k) for part in pair(x).unbind(-1))),
        aten.slice_scatter.default: written,
        aten.select_scatter.default: lambda x, src, dim, index: made(
            pair(x).select_scatter(pair(src), axis(dim), index)
        ),
        aten.clone.default: lambda x, memory_format=None: made(pair(x).clone()),
        aten.alias.default: lambda x: x,
        aten.detach.default: lambda x: x,
        aten.lift_fresh_copy.default: lambda x: x,
        aten.copy.default: lambda x, src, non_blocking=False: copied(x, src),
    }


def _indexed(torch: ModuleType, aten: Any) -> Mapping[Any, Callable[..., Any]]:
    def both(index: Any) -> Any:
        return torch.stack([index, index], -1)

    return {
        aten.index.Tensor: lambda x, indices: made(aten.index.Tensor(pair(x), indices)),
        aten.index_put.default: lambda x, indices, values, accumulate=False: made(
            pair(x).index_put(indices, pair(values), accumulate)
        ),
        aten.index_select.default: lambda x, dim, index: made(pair(x).index_select(axis(dim), index)),
        aten.index_add.default: lambda x, dim, index, source, alpha=1: made(
            pair(x).index_add(axis(dim), index, pair(source), alpha=alpha)
        ),
        aten.gather.default: lambda x, dim, index, sparse_grad=False: made(
            pair(x).gather(axis(dim), both(index))
        ),
        aten.scatter.src: lambda x, dim, index, src: made(pair(x).scatter(axis(dim), both(index), pair(src))),
        aten.scatter_add.default: lambda x, dim, index, src: made(
            pair(x).scatter_add(axis(dim), both(index), pair(src))
        ),
    }


def _filled(torch: ModuleType, aten: Any) -> Mapping[Any, Callable[..., Any]]:
    def number(value: Any, like: Any) -> Any:
        """A number, or a tensor, as pairs of the type of `like`."""
        if isinstance(value, torch.Tensor):
            return pair(value)
        value = complex(value)
        parts = (like.new_full((), part) for part in (value.real, value.imag))
        return torch.stack(list(parts))

    def chosen(condition: Any, x: Any, y: Any) -> Any:
        like = pair(x if isinstance(x, torch.Tensor) else y)
        return made(torch.where(condition.unsqueeze(-1), number(x, like), number(y, like)))

    def masked(x: Any, mask: Any, value: Any) -> Any:
        return chosen(mask, value, x)

    def padded(x: Any, pad: Any, value: Any = 0) -> Any:
        number_given = complex(value)
        x = pair(x)
        real = aten.constant_pad_nd.default(x[..., 0], pad, number_given.real)
        return joined(real, aten.constant_pad_nd.default(x[..., 1], pad, number_given.imag))

    def full(size: Any, value: Any, dtype: Any) -> Any:
        kind = dtype.to_real()
        value = complex(value)
        return joined(torch.full(size, value.real, dtype=kind), torch.full(size, value.imag, dtype=kind))

    def filled(size: Any, value: Any, dtype: Any) -> Any:
        return full(size, value, dtype) if dtype.is_complex else torch.full(size, value, dtype=dtype)

    def like(value: Any) -> Callable[..., Any]:
        return lambda x, given=value, dtype=None, **_: filled(x.shape, given, dtype or x.dtype)

    def new(value: Any) -> Callable[..., Any]:
        return lambda x, size, given=value, dtype=None, **_: filled(size, given, dtype or x.dtype)

    return {
        aten.where.self: chosen,
        aten.where.ScalarSelf: chosen,
        aten.where.ScalarOther: chosen,
        aten.masked_fill.Scalar: masked,
        aten.masked_fill.Tensor: masked,
        aten.constant_pad_nd.default: padded,
        aten.zeros_like.default: like(0),
        aten.ones_like.default: like(1),
        aten.full_like.default: like(0),
        aten.new_zeros.default: new(0),
        aten.new_ones.default: new(1),
        aten.new_full.default: new(0),
        aten.zeros.default: lambda size, dtype=None, **_: full(size, 0, dtype),
        aten.ones.default: lambda size, dtype=None, **_: full(size, 1, dtype),
        aten.full.default: lambda size, value, dtype=None, **_: full(size, value, dtype),
    }
