"""The angle of a vector in the plane, for which TVM 0.27 calls the C library."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from kiln.frontend.tflite.operands import const

op = relax.op


def angle_of(y: Any, x: Any) -> Any:
    """atan2(y, x) of equal shapes, by the arc tangent of the quotient; the signs select the quadrant."""
    zero, half_turn = const(0, "float32"), const(math.pi, "float32")
    quotient = op.atan(op.divide(y, x))
    turned = op.where(op.less(y, zero), op.subtract(quotient, half_turn), op.add(quotient, half_turn))
    upright = op.multiply(op.sign(y), const(math.pi / 2, "float32"))
    return op.where(op.equal(x, zero), upright, op.where(op.less(x, zero), turned, quotient))
