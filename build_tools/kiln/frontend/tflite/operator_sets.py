"""Sets of TFLite operators whose converters accept quantised, partly quantised or complex tensors."""

from __future__ import annotations

from typing import Any

import tflite

from kiln.frontend.tflite.state_tensors import STATES

# Operators that only move values: with equal quantisation of input and output they are correct on the raw
# integers, but TVM 0.27 refuses quantised operators outside its own list ("require explicit QDQ lowering").
_MOVE_NAMES = """
    PAD PADV2 MIRROR_PAD SQUEEZE EXPAND_DIMS TRANSPOSE SLICE STRIDED_SLICE GATHER SPLIT SPLIT_V PACK UNPACK
    TILE RESIZE_NEAREST_NEIGHBOR DEPTH_TO_SPACE SPACE_TO_DEPTH BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND
    REVERSE_V2 BROADCAST_TO SHAPE RANK DILATE FILL GATHER_ND MATRIX_DIAG REVERSE_SEQUENCE SCATTER_ND
    TOPK_V2
"""
MOVES = frozenset(_MOVE_NAMES.split())
# Operators whose converters accept quantised tensors, and operators of which only the weights may be
# quantised.
_QUANTISED_NAMES = """
    ARG_MAX ARG_MIN BATCH_MATMUL CAST DENSIFY DYNAMIC_UPDATE_SLICE ELU EMBEDDING_LOOKUP FLOOR_DIV FLOOR_MOD
    GELU L2_NORMALIZATION MATRIX_SET_DIAG ONE_HOT PRELU RELU_0_TO_1 SELECT SELECT_V2
"""
QUANTISED = frozenset(_QUANTISED_NAMES.split())
_HYBRID_NAMES = """
    BATCH_MATMUL CONV_2D DEPTHWISE_CONV_2D EMBEDDING_LOOKUP FULLY_CONNECTED TRANSPOSE_CONV
"""
# Operators that read complex numbers, which have a last axis of the real and the imaginary part here.
COMPLEX = frozenset(("CAST", "COMPLEX_ABS", "EXPAND_DIMS", "IMAG", "REAL", "RESHAPE", "SQUEEZE"))
HYBRID = frozenset([*_HYBRID_NAMES.split(), *STATES])
# Operators that LiteRT computes with scales, by types of integers: without a scale it multiplies by 0.
_BYTES = (tflite.TensorType.INT8, tflite.TensorType.UINT8)
_SCALED = {
    **dict.fromkeys(("ADD", "SUB", "MUL", "DIV", "SQUARED_DIFFERENCE"), _BYTES),
    **dict.fromkeys(("BATCH_MATMUL", "PRELU"), (*_BYTES, tflite.TensorType.INT16)),
}


def refused_input(name: str, tensor: Any) -> str:
    """The reason, as a predicate, why the operator `name` cannot read an input; empty if it can.

    `tensor`: as TVM's importer describes it. No operator computes with the two parts of complex numbers
    separately.
    """
    kind = tensor.tensor.Type()
    if kind == tflite.TensorType.COMPLEX64 and name not in COMPLEX:
        return (
            f"has complex numbers, allowed as an input of: {', '.join(sorted(COMPLEX))}; "
            "compute with their real and imaginary parts"
        )
    if kind in _SCALED.get(name, ()) and tensor.qnn_params is None:
        return "has no scale, with which LiteRT computes integers of this type: give it one, or use int32"
    return ""
