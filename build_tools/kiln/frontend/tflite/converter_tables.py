"""Kiln's own converters of TFLite operators. If a converter returns None, the next one is tried."""

from __future__ import annotations

from kiln.frontend.tflite import (
    comparing_ops,
    computing_ops,
    int16_elementwise,
    int16_functions,
    integer_log_softmax,
    integer_quotients,
    interpolated_tables,
    moving_ops,
    rectifiers,
    recurrent_ops,
    resizing_ops,
    reversing_ops,
    slicing_ops,
    stablehlo_scatter,
    window_ops,
)

CONVERTERS = {
    **moving_ops.CONVERTERS,
    **resizing_ops.CONVERTERS,
    **reversing_ops.CONVERTERS,
    **slicing_ops.CONVERTERS,
    **stablehlo_scatter.CONVERTERS,
    **comparing_ops.CONVERTERS,
    **computing_ops.CONVERTERS,
    **window_ops.CONVERTERS,
    **recurrent_ops.CONVERTERS,
}
# Converters that compute with integers exactly as LiteRT's kernels do; they are tried before those above.
INTEGER_CONVERTERS = {
    **int16_elementwise.CONVERTERS,
    **int16_functions.CONVERTERS,
    **integer_log_softmax.CONVERTERS,
    **integer_quotients.CONVERTERS,
    **interpolated_tables.CONVERTERS,
    **rectifiers.CONVERTERS,
}
