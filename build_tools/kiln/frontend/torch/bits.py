"""Bit shifts of integers, which ONNX has for unsigned types only, and `all` and `any` over all elements.

Each function is traced by PyTorch's exporter. The exporter's own shifts of uint8 give int8, and its shifts by
as many bits as the type has are left undefined; PyTorch defines both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kiln.frontend.torch.present import aten as own_operators

_BOOL, _UINT8, _INT32 = 9, 2, 6  # of ONNX's element types
_UNSIGNED = {_UINT8: _UINT8, 3: _UINT8, 4: 4, 5: 4, 12: 12, _INT32: 12, 13: 13, 7: 13}  # of the same width
_BITS = {_UINT8: 8, 4: 16, 12: 32, 13: 64}


def bits() -> Mapping[Any, Callable[..., Any]]:
    """The operators of this module, for torch.onnx.export's `custom_translation_table`."""

    aten = own_operators()
    return {
        aten.bitwise_left_shift.Tensor: left_shift,
        aten.bitwise_right_shift.Tensor: right_shift,
        aten._is_all_true.default: is_all_true,
        aten._is_any_true.default: is_any_true,
    }


def left_shift(self: Any, other: Any) -> Any:
    """aten::bitwise_left_shift.Tensor of two tensors of one type; 0 where all bits are shifted out.

    A negative number of bits shifts all of them out, as in PyTorch.
    """
    from onnxscript import opset18 as op

    return op.Cast(_shifted(self, other, "LEFT"), to=int(self.dtype))


def right_shift(self: Any, other: Any) -> Any:
    """aten::bitwise_right_shift.Tensor of two tensors of one type, which shifts in copies of the sign bit."""
    from onnxscript import opset18 as op

    kind = int(self.dtype)
    if _UNSIGNED[kind] == kind:
        return _shifted(self, other, "RIGHT")
    # The bits of a negative number are inverted, shifted with zeros coming in from the left, and inverted
    # again.
    sign = op.Sub(_zero(self), op.CastLike(op.Less(self, _zero(self)), self))
    turned = op.BitwiseXor(self, sign)
    turned.dtype = self.dtype
    return op.BitwiseXor(op.Cast(_shifted(turned, other, "RIGHT"), to=kind), sign)


def is_all_true(self: Any) -> Any:
    """aten::_is_all_true: whether all elements of a boolean tensor are true, as a tensor without axes."""
    from onnxscript import opset18 as op

    return op.Cast(op.ReduceMin(op.Cast(self, to=_INT32), keepdims=0), to=_BOOL)


def is_any_true(self: Any) -> Any:
    """aten::_is_any_true: whether any element of a boolean tensor is true, as a tensor without axes."""
    from onnxscript import opset18 as op

    return op.Cast(op.ReduceMax(op.Cast(self, to=_INT32), keepdims=0), to=_BOOL)


def _shifted(x: Any, by: Any, direction: str) -> Any:
    """The bits of `x` as an unsigned integer, shifted by `by` bits; 0 where `by` is not 0 to the last one."""
    from onnxscript import opset18 as op

    kind = _UNSIGNED[int(x.dtype)]
    plain, most = op.Cast(by, to=kind), op.Cast(op.Constant(value_int=_BITS[kind] - 1), to=kind)
    kept = op.LessOrEqual(plain, most)  # a negative number is a great one as an unsigned integer
    shifted = op.BitShift(op.Cast(x, to=kind), op.Where(kept, plain, most), direction=direction)
    return op.Where(kept, shifted, op.Cast(op.Constant(value_int=0), to=kind))


def _zero(x: Any) -> Any:
    from onnxscript import opset18 as op

    return op.CastLike(op.Constant(value_int=0), x)
