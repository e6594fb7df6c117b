"""Poolings along axes of a dynamic size that PyTorch's own functions make constants of.

PyTorch takes no dynamic size as a kernel: one that covers a whole axis, as in avg_pool2d(x, x.shape[2:]), is
a mean or an extreme along it. max_pool1d makes a constant of the length; max_pool2d does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.frontend.torch.dynamic_functions import is_dynamic


def averages(axes: int, pool: Callable[..., Any]) -> Callable[..., Any]:
    """avg_pool1d, 2d or 3d, `pool`, along the last `axes`; NotImplemented where PyTorch's own serves."""

    def pooled(
        input: Any,  # noqa: A002 - PyTorch's name
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        if divisor_override is not None:
            return NotImplemented

        def rest(*windows: Any) -> Any:
            return pool(*windows, ceil_mode, count_include_pad)

        return _of_whole_axes(input, axes, (kernel_size, stride, padding), _mean, rest)

    return pooled


def extremes(axes: int, pool: Callable[..., Any]) -> Callable[..., Any]:
    """max_pool1d, 2d or 3d, `pool`, along the last `axes`; NotImplemented where PyTorch's own serves."""

    def pooled(
        input: Any,  # noqa: A002 - PyTorch's name
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        if return_indices:
            return NotImplemented

        def rest(*windows: Any) -> Any:
            return pool(*windows, dilation, ceil_mode)

        windows = kernel_size, stride, padding
        result = _of_whole_axes(input, axes, windows, _greatest, rest)
        if result is NotImplemented and axes == 1 and is_dynamic(*input.shape):
            return _of_lines(input, *windows, dilation, ceil_mode)
        return result

    return pooled


def _of_whole_axes(
    x: Any, axes: int, windows: tuple[Any, Any, Any], reduce: Callable[..., Any], rest: Callable[..., Any]
) -> Any:
    """A pooling whose kernel has dynamic sizes, which are those of whole axes: `reduce` along them.

    windows: kernel, stride and padding, each a number or one for each of the last `axes`. `rest` pools along
    the other axes. NotImplemented for a kernel of fixed sizes, or a dynamic one that is not the whole axis.
    """
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    kernel_size, stride, padding = windows
    if not is_dynamic(kernel_size):
        return NotImplemented
    kernel, edges = _for_all(kernel_size, axes), _for_all(padding, axes)
    strides = _for_all(kernel_size if stride is None or stride == [] else stride, axes)
    whole = [axis for axis in range(axes) if is_dynamic(kernel[axis])]
    if any(
        edges[axis] != 0 or not statically_known_true(kernel[axis] == x.shape[axis - axes]) for axis in whole
    ):
        return NotImplemented
    reduced = reduce(x, [axis - axes for axis in whole])
    if len(whole) == axes:
        return reduced
    for axis in whole:
        kernel[axis] = strides[axis] = 1
    return rest(reduced, kernel, strides, edges)


def _of_lines(x: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    """max_pool1d [..., n] as max_pool2d of images of one line."""
    import torch

    steps = kernel_size if stride is None or stride == [] else stride
    kernel, step, edge, spread = (
        _for_all(option, 1)[0] for option in (kernel_size, steps, padding, dilation)
    )
    image = x.unsqueeze(-2)
    return torch.max_pool2d(image, (1, kernel), (1, step), (0, edge), (1, spread), ceil_mode).squeeze(-2)


def _for_all(option: Any, axes: int) -> list[Any]:
    """One value for each axis of an option that is a number, or a list of one or of as many as `axes`."""
    values = list(option) if isinstance(option, (list, tuple)) else [option]
    return values * axes if len(values) == 1 else values


def _mean(x: Any, axes: list[int]) -> Any:
    return x.mean(axes, keepdim=True)


def _greatest(x: Any, axes: list[int]) -> Any:
    return x.amax(axes, keepdim=True)
