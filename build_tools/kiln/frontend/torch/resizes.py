"""Resizes by factors, which PyTorch's exporter to ONNX replaces by sizes, or uses where PyTorch does not.

PyTorch computes places with the factors of the caller, whose products with the sizes it rounds down. Where
the size of an axis stays as it is, linear resizes copy it, whatever the factor. So do nearest ones of images,
which also repeat elements twice where the size becomes twice as large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.present import aten as own_operators

_FLOAT, _INT64 = 1, 7  # of ONNX's element types


def resizes() -> Mapping[Any, Callable[..., Any]]:
    """The operators of this module, for torch.onnx.export's `custom_translation_table`."""
    aten = own_operators()
    return {
        aten._upsample_bilinear2d_aa.default: antialiased("linear", -0.75),
        aten._upsample_bicubic2d_aa.default: antialiased("cubic", -0.5),
        aten.upsample_linear1d.default: linear,
        aten.upsample_bilinear2d.default: linear,
        aten.upsample_trilinear3d.default: linear,
        aten.upsample_linear1d.vec: linear_by_list,
        aten.upsample_bilinear2d.vec: linear_by_list,
        aten.upsample_trilinear3d.vec: linear_by_list,
        aten.upsample_bicubic2d.default: cubic,
        aten.upsample_bicubic2d.vec: cubic_by_list,
        aten.upsample_nearest1d.default: nearest,
        aten.upsample_nearest2d.default: nearest,
        aten.upsample_nearest3d.default: nearest,
        aten.upsample_nearest1d.vec: nearest_by_list,
        aten.upsample_nearest2d.vec: nearest_by_list,
        aten.upsample_nearest3d.vec: nearest_by_list,
    }


def linear(self: Any, output_size: Any, align_corners: bool, *factors: float | None) -> Any:
    """aten::upsample_linear1d, upsample_bilinear2d, upsample_trilinear3d: a factor or None for each axis."""
    from onnxscript.function_libs.torch_lib.ops import nn

    factors_set = [factor for factor in factors if factor is not None]
    if not align_corners and factors_set and len(factors_set) == len(factors):
        return linear_by_list(self, output_size, False, factors_set)
    own = {1: nn.aten_upsample_linear1d, 2: nn.aten_upsample_bilinear2d, 3: nn.aten_upsample_trilinear3d}
    return own[len(self.shape) - 2](self, output_size, align_corners)


def linear_by_list(
    self: Any, output_size: Any, align_corners: bool, scale_factors: Sequence[float] | None
) -> Any:
    """The overloads `vec` of `linear`: sizes, or factors, which aligned corners use for sizes alone."""
    from onnxscript.function_libs.torch_lib.ops.nn import aten_upsample_trilinear3d_vec

    if scale_factors is None:
        return aten_upsample_trilinear3d_vec(self, output_size, align_corners, None)
    if align_corners:
        return aten_upsample_trilinear3d_vec(self, _sizes(self, scale_factors), True, None)
    return by_factors(self, _steady(self, scale_factors, (1,)), mode="linear")


def cubic(
    self: Any, output_size: Any, align_corners: bool, down: float | None = None, across: float | None = None
) -> Any:
    """aten::upsample_bicubic2d, by a factor or None for each axis, which the exporter ignores."""
    if align_corners or down is None or across is None:
        return cubic_by_list(self, output_size, align_corners, None)
    return cubic_by_list(self, output_size, False, (down, across))


def cubic_by_list(
    self: Any, output_size: Any, align_corners: bool, scale_factors: Sequence[float] | None
) -> Any:
    """aten::upsample_bicubic2d.vec, as `linear_by_list`."""
    from onnxscript.function_libs.torch_lib.ops.nn import aten_upsample_bicubic2d_vec

    if scale_factors is None:
        return aten_upsample_bicubic2d_vec(self, output_size, align_corners, None)
    if align_corners:
        return aten_upsample_bicubic2d_vec(self, _sizes(self, scale_factors), True, None)
    return by_factors(self, scale_factors, mode="cubic", cubic_coeff_a=-0.75)


def nearest(self: Any, output_size: Any, *factors: float | None) -> Any:
    """aten::upsample_nearest1d, 2d and 3d, by one factor or None for each axis."""
    factors_set = [factor for factor in factors if factor is not None]
    return nearest_by_list(
        self, output_size, factors_set if factors_set and len(factors_set) == len(factors) else None
    )


def nearest_by_list(self: Any, output_size: Any, scale_factors: Sequence[float] | None) -> Any:
    """The overloads `vec` of `nearest`: sizes, or a list of factors."""
    from onnxscript.function_libs.torch_lib.ops.nn import aten_upsample_nearestnd_vec

    if scale_factors is None:
        return aten_upsample_nearestnd_vec(self, output_size, None)
    options = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor", "mode": "nearest"}
    whole = (1, 2) if len(self.shape) == 4 else ()
    return by_factors(self, _steady(self, scale_factors, whole), **options)


def antialiased(mode: str, coefficient: float) -> Callable[..., Any]:
    """aten::_upsample_bilinear2d_aa and _bicubic2d_aa: factors that the caller gave are kept.

    What is made raises ValueError for aligned corners, for which PyTorch has a rule of its own.
    """

    def resized(
        self: Any, output_size: Any, align_corners: bool, scales_h: Any = None, scales_w: Any = None
    ) -> Any:
        from onnxscript.function_libs.torch_lib.ops import nn

        if align_corners:
            raise ValueError("antialiased interpolate with align_corners=True; use align_corners=False")
        if scales_h is None or scales_w is None:
            own = nn.aten__upsample_bilinear2d_aa if mode == "linear" else nn.aten__upsample_bicubic2d_aa
            return own(self, output_size, align_corners)
        for size, factor, wanted in zip(
            list(self.shape)[-2:], (scales_h, scales_w), output_size, strict=True
        ):
            if isinstance(size, int) and isinstance(wanted, int) and int(size * factor) != wanted:
                raise ValueError(f"resize of {size} elements to {wanted} by {factor}; give one of both")
        options = {"mode": mode, "cubic_coeff_a": coefficient, "antialias": 1, "exclude_outside": 1}
        return by_factors(self, (scales_h, scales_w), **options)

    return resized


def by_factors(x: Any, factors: Sequence[float], **options: Any) -> Any:
    """x [n, c, …], whose last axes are resized by `factors`; `options`: those of ONNX's Resize."""
    from onnxscript import opset18 as op

    sizes = list(x.shape)[-len(factors) :]
    scales = [_in_float32(size, factor) for size, factor in zip(sizes, factors, strict=True)]
    options = {"coordinate_transformation_mode": "half_pixel", **options}
    return op.Resize(x, None, op.Constant(value_floats=[1.0, 1.0, *scales]), None, **options)


def _sizes(x: Any, factors: Sequence[float]) -> Any:
    """The last sizes of x times `factors`, rounded down, as a tensor."""
    from onnxscript import opset18 as op

    sizes = list(x.shape)[-len(factors) :]
    if all(isinstance(size, int) for size in sizes):
        return op.Constant(
            value_ints=[int(size * factor) for size, factor in zip(sizes, factors, strict=True)]
        )
    old = op.Cast(op.Shape(x, start=2), to=_FLOAT)
    return op.Cast(op.Floor(op.Mul(old, op.Constant(value_floats=list(factors)))), to=_INT64)


def _steady(x: Any, factors: Sequence[float], whole: Sequence[int]) -> list[float]:
    """`factors` of the last axes of x; one of `whole` where the size becomes that many times the old one."""
    sizes = list(x.shape)[-len(factors) :]
    return [
        next((n for n in whole if isinstance(size, int) and int(size * factor) == n * size), factor)
        for size, factor in zip(sizes, factors, strict=True)
    ]


def _in_float32(size: Any, factor: float) -> float:
    """`factor` in float32, where it gives the size that PyTorch computes in float64.

    ONNX's inference multiplies exactly, and ONNX Runtime in float32: both must give this size.
    """
    import numpy as np

    narrow = np.float32(factor)
    if isinstance(size, int):
        wanted = int(size * factor)
        if int(size * float(narrow)) < wanted:
            narrow = np.nextafter(narrow, np.float32(np.inf))
        if int(np.float32(size) * narrow) > wanted:
            narrow = np.nextafter(narrow, np.float32(0))
    return float(narrow)
