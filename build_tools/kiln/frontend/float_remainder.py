"""The remainder of floats with the sign of the divisor, as TFLite and PyTorch compute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

op = relax.op


def float_floor_mod(emit: Callable[[Any], Any], x: Any, y: Any) -> Any:
    """The remainder of x / y, plus y where the remainder is not 0 and has another sign than y.

    `x` and `y` are tensors of floats, broadcast as in Relax; `emit` binds an expression to a variable. The
    remainder itself is exact; TVM's floor_mod would compute it through a rounded quotient.
    """
    zero = relax.const(0.0, str(x.ty.dtype))
    rest = emit(op.mod(x, y))
    differ = emit(op.logical_xor(op.less(rest, zero), op.less(y, zero)))
    return op.where(op.logical_and(op.not_equal(rest, zero), differ), op.add(rest, y), rest)
