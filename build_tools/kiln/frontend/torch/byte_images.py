"""Linear and cubic resizes of uint8 images, one axis at a time, rounded after each, as PyTorch computes them.

PyTorch resizes columns first. It weights with numbers of 16 bits, so that a result may differ by 1, seldom by
2. ONNX truncates resized integers, and has no cubic resizes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.replaced import Replacement

_GREATEST = 255  # of uint8


def _applies(_: Any, values: Sequence[Any]) -> bool:
    """Whether the first argument of a call is a tensor of uint8."""
    import torch

    return isinstance(values[0], torch.Tensor) and values[0].dtype == torch.uint8


def _rules(aten: Any) -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    rules: dict[Any, Callable[..., Any]] = {}
    for name in (
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
    ):
        operator = getattr(aten, name)
        rules[operator.default] = _by_sizes(operator.default)
        rules[operator.vec] = _by_list(operator.vec)
    return rules


def _by_sizes(operator: Any) -> Callable[..., Any]:
    """`operator` by two sizes, with a factor or None for each axis."""

    def resized(
        x: Any, sizes: Sequence[Any], aligned: bool, down: float | None = None, across: float | None = None
    ) -> Any:
        def once(x: Any, new: list[Any], factors: list[float | None]) -> Any:
            known = factors if None not in factors else [None, None]
            return operator(x, new, aligned, *known)

        return _resized(x, sizes, (down, across), once)

    return resized


def _by_list(operator: Any) -> Callable[..., Any]:
    """`operator` by a list of two sizes, or by a list of two factors."""

    def resized(
        x: Any, sizes: Sequence[Any] | None, aligned: bool, factors: Sequence[float] | None = None
    ) -> Any:
        def once(x: Any, new: list[Any], factors: list[float | None]) -> Any:
            return operator(x, new, aligned, None) if None in factors else operator(x, None, aligned, factors)

        import torch

        given = (None, None) if factors is None else factors
        if sizes is None:
            pairs = zip(x.shape[-2:], factors or (), strict=True)
            sizes = [torch.sym_int(size * factor) for size, factor in pairs]
        return _resized(x, sizes, given, once)

    return resized


def _resized(
    x: Any,
    sizes: Sequence[Any],
    factors: Sequence[float | None],
    once: Callable[[Any, list[Any], list[float | None]], Any],
) -> Any:
    """x [n, c, h, w] of uint8, resized by `once` along one axis after the other.

    once: of an image of float32, its new sizes and its factors. An axis whose size stays is copied.
    """
    import torch

    image = x.float()
    for axis in (1, 0):
        old = list(image.shape[-2:])
        if isinstance(sizes[axis], int) and sizes[axis] == old[axis]:
            continue
        new = [sizes[at] if at == axis else old[at] for at in (0, 1)]
        scales = [factors[at] if at == axis else 1.0 for at in (0, 1)]
        image = once(image, new, scales)
        image = torch.floor(image + 0.5).clamp(0, _GREATEST)
    return image.to(torch.uint8)


BYTE_IMAGES = Replacement(_applies, _rules)
